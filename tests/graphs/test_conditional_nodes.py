"""What is inside a conditional node, over a driver that is played on the host."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from shadowgraph.graphs.cuda.driver import ConditionalParameters, Driver, DriverError
from shadowgraph.graphs.cuda.reading import UNATTRIBUTED, Allocations, GraphReader
from shadowgraph.model.device_nodes import DeviceNode, NodeKind
from shadowgraph.model.graphs import Graph
from shadowgraph.render.text.nodes_text import nodes_text

EMPTY, CONDITIONAL = 5, 13


class Library:
    """What of the driver's library is asked: graph 1 has a conditional node with bodies, the graphs 100 and up."""

    def __init__(self, condition: int, *bodies: int, kind: int = CONDITIONAL) -> None:
        self.condition, self.kind = condition, kind
        self.graphs = {1: [10, 11, 12], **{100 + place: self._nodes(place, n) for place, n in enumerate(bodies)}}
        self.handles = (ctypes.c_void_p * max(1, len(bodies)))(*(100 + place for place in range(len(bodies))))
        self.size = len(bodies)

    @staticmethod
    def _nodes(place: int, count: int) -> list[int]:
        return [1000 * (place + 1) + node for node in range(count)]

    def cuGraphGetNodes(self, graph: Any, nodes: Any, count: Any) -> int:
        found = self.graphs[graph.value]
        if nodes is None:
            count._obj.value = len(found)
        else:
            nodes[: len(found)] = found
        return 0

    def cuGraphGetEdges_v2(self, graph: Any, first: Any, second: Any, data: Any, count: Any) -> int:
        nodes = self.graphs[graph.value]
        count._obj.value = max(0, len(nodes) - 1)
        if first is not None:
            first[: len(nodes) - 1], second[: len(nodes) - 1] = nodes[:-1], nodes[1:]
        return 0

    def cuGraphNodeGetType(self, node: Any, kind: Any) -> int:
        kind._obj.value = CONDITIONAL if node.value == 11 else EMPTY
        return 0

    def cuGraphNodeGetParams(self, node: Any, held: Any) -> int:
        assert node.value == 11
        assert isinstance(held._obj, ConditionalParameters)
        held._obj.kind, held._obj.condition, held._obj.size = self.kind, self.condition, self.size
        held._obj.graphs = ctypes.cast(self.handles, ctypes.POINTER(ctypes.c_void_p))
        return 0


def read(library: Any) -> tuple[DeviceNode, ...]:
    known = Allocations(lambda address: None, ())
    return GraphReader(Driver(library, library), known, lambda address: False, lambda place: UNATTRIBUTED).read(1)


def test_the_parameters_are_laid_out_as_the_header_says() -> None:
    offsets = {name: getattr(ConditionalParameters, name).offset for name in ("handle", "condition", "size", "graphs")}
    assert offsets == {"handle": 16, "condition": 24, "size": 28, "graphs": 32}
    assert ConditionalParameters.end.offset == 16 + 29 * 8
    assert ctypes.sizeof(ConditionalParameters) == 256


@pytest.mark.parametrize(
    ("condition", "bodies", "name"),
    [
        (0, (3,), "if: nodes 0 to 2"),
        (0, (2, 1), "if: nodes 0 to 1 or nodes 2"),
        (1, (1,), "while: nodes 0"),
        (2, (1, 0, 2), "switch: nodes 0 or nodes none or nodes 1 to 2"),
        (9, (1,), "condition: nodes 0"),
    ],
)
def test_the_nodes_of_every_body(condition: int, bodies: tuple[int, ...], name: str) -> None:
    before, node, after = read(Library(condition, *bodies))
    assert (node.kind, node.name, node.note, node.after, after.after) == (NodeKind.CONDITIONAL, name, "", (0,), (1,))
    assert [inner.index for inner in node.inner] == list(range(sum(bodies)))
    starts = {sum(bodies[:place]) for place in range(len(bodies))}
    for inner in node.inner:
        assert inner.after == (() if inner.index in starts else (inner.index - 1,))
    assert before.inner == after.inner == ()


def test_they_are_listed_below_it() -> None:
    graph = Graph(3, "decode")
    graph.build_device_later(lambda: read(Library(0, 2, 1)))
    lines = nodes_text(graph).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["0", "1", "1.0", "1.1", "1.2", "2"]
    assert "if: nodes 0 to 1 or nodes 2" in lines[2]


class Old(Library):
    """A driver that cannot tell."""

    @property
    def cuGraphNodeGetParams(self) -> Callable[..., int]:  # type: ignore[override]
        raise AttributeError


@pytest.mark.parametrize(
    ("library", "why"),
    [
        (Old(0, 1), "this driver has no cuGraphNodeGetParams; a newer one does"),
        (Library(0, 1, kind=4), "cuGraphNodeGetParams does not tell what is inside"),
    ],
)
def test_one_line_where_it_cannot_be_read(library: Library, why: str) -> None:
    _, node, _ = read(library)
    assert (node.kind, node.inner, node.note) == (NodeKind.CONDITIONAL, (), f"its inside is not read: {why}")
    with pytest.raises(DriverError, match="cuGraphNodeGetParams"):
        Driver(library, library).bodies(11)
