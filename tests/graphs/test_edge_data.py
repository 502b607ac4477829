"""The data of a graph's edges, as the driver gives it: which of them are programmatic."""

from __future__ import annotations

from typing import Any

import pytest

from shadowgraph.graphs.cuda.driver import LAUNCH_ORDER, PROGRAMMATIC, Driver
from shadowgraph.graphs.cuda.reading import UNATTRIBUTED, Allocations, GraphReader

FULL = 0


def data(port: int, kind: int = 1) -> int:
    """A ``CUgraphEdgeData``: the ports of both nodes, and the kind of the edge."""
    return port | kind << 16


class EdgeDriver(Driver):
    """A driver with one graph, of empty nodes."""

    def __init__(self, *edges: tuple[int, int, int]) -> None:
        super().__init__(None, None)
        self.all = edges

    def call(self, name: str, *arguments: Any) -> None:
        assert name == "cuGraphGetEdges_v2"
        _, first, second, facts, count = arguments
        if first is None:
            count._obj.value = len(self.all)
            return
        for place, edge in enumerate(self.all):
            first[place], second[place], facts[place] = edge

    def every_node(self, graph: int) -> list[int]:
        return sorted({node for edge in self.all for node in edge[:2]})

    def kind(self, node: int) -> int:
        return 5


@pytest.mark.parametrize(
    ("edges", "early"),
    [
        ([(10, 20, FULL), (20, 30, FULL)], {}),
        ([(10, 20, data(PROGRAMMATIC)), (20, 30, FULL)], {(10, 20): PROGRAMMATIC}),
        (
            [(10, 20, data(LAUNCH_ORDER)), (10, 30, data(PROGRAMMATIC))],
            {(10, 20): LAUNCH_ORDER, (10, 30): PROGRAMMATIC},
        ),
        ([(10, 20, data(PROGRAMMATIC)), (10, 20, FULL)], {}),
        ([(10, 20, data(3)), (20, 30, data(PROGRAMMATIC, kind=0))], {}),
        ([(10, 20, data(PROGRAMMATIC) | 0xAB << 24)], {(10, 20): PROGRAMMATIC}),
    ],
)
def test_early_edges(edges: list[tuple[int, int, int]], early: dict[tuple[int, int], int]) -> None:
    driver = EdgeDriver(*edges)
    assert driver.early_edges(1) == early
    assert driver.edges(1) == [edge[:2] for edge in edges]
    driver.hide([10])
    assert driver.early_edges(1) == {pair: port for pair, port in early.items() if 10 not in pair}


def test_nodes_know_what_they_may_begin_before_the_end_of() -> None:
    driver = EdgeDriver((10, 30, data(PROGRAMMATIC)), (20, 30, data(LAUNCH_ORDER)), (30, 40, FULL), (10, 40, FULL))
    reader = GraphReader(driver, Allocations(lambda _: None, ()), lambda _: False, lambda _: UNATTRIBUTED)
    nodes = reader.read(1)
    assert [(node.after, node.triggered_by, node.begun_after) for node in nodes] == [
        ((), (), ()),
        ((), (), ()),
        ((0, 1), (0,), (1,)),
        ((0, 2), (), ()),
    ]
