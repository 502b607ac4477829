"""What is a fault, a note or nothing among changes outside of what launches were given, over made-up nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import shadowgraph as sg
from shadowgraph.checks.base import Context, Detection
from shadowgraph.checks.out_of_bounds.given_views import GivenViews
from shadowgraph.checks.out_of_bounds.view_overruns import view_overruns
from shadowgraph.checks.out_of_bounds.view_partition import cells_of
from shadowgraph.checks.probed import CellChange, Probed
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.device_nodes import DeviceNode, NodeKind
from shadowgraph.model.findings import Severity
from shadowgraph.model.graphs import Access, Graph, Launch, LaunchKind, Node, Pointer
from shadowgraph.model.probes import Hit
from shadowgraph.model.ranges import RangeSet
from shadowgraph.model.views import TensorView

TABLE = torch.zeros(4, 16, dtype=torch.int32)
BUFFER = Buffer(1, TABLE.data_ptr(), TABLE.nbytes, Role.POOL, "int32", (4, 16), 4)
Change = tuple[int, int, int]  # a node, and the first and last changed element of the table


def launch(part: torch.Tensor, name: str = "put", argument: str = "out", **facts: LaunchKind) -> Launch:
    pointer = Pointer(argument, TensorView.of(part), Access.UNKNOWN)
    return Launch(facts.get("kind", LaunchKind.TRITON), name, (pointer,))


def graph_of(*launches: Launch, kinds: dict[int, NodeKind] | None = None) -> Graph:
    graph = Graph(90_002, "graph", [Node(index, each) for index, each in enumerate(launches)])
    nodes = tuple(
        DeviceNode(index, (kinds or {}).get(index, NodeKind.KERNEL), each.name, launch=index)
        for index, each in enumerate(launches)
    )
    graph.build_device_later(lambda: nodes)
    return graph


def changes_of(graph: Graph, *changes: Change) -> Iterator[CellChange]:
    """What a probe of each cell shows."""
    for node, first, last in changes:
        low, high = BUFFER.start + 4 * first, BUFFER.start + 4 * last + 3
        for part, cell in enumerate(cells_of(graph, BUFFER)):
            start, stop = max(low, cell.start), min(high + 1, cell.stop)
            if start < stop:
                yield CellChange(BUFFER, cell, Hit(node, part, start, stop - 1, stop - start))


def judged(graph: Graph, *changes: Change) -> dict[int, Severity]:
    return {spill.node: spill.severity for spill in view_overruns(graph, tuple(changes_of(graph, *changes)))}


ROWS = launch(TABLE[0]), launch(TABLE[1])
RUN_ON = (0, 0, 18), (1, 16, 31)  # the first node writes three elements of the second one's row


def test_over_the_end_into_what_a_like_launch_writes_as_its_own() -> None:
    assert judged(graph_of(*ROWS), *RUN_ON) == {0: Severity.ERROR}
    assert judged(graph_of(*ROWS), (0, 0, 15), (1, 16, 31)) == {}


@pytest.mark.parametrize(
    "other",
    [launch(TABLE[1], name="get"), launch(TABLE[1], argument="extra"), launch(TABLE[1, :8]), launch(TABLE[1:2])],
    ids=["another kernel", "another argument", "another size", "another form"],
)
def test_what_is_not_alike_leaves_a_note(other: Launch) -> None:
    graph = graph_of(ROWS[0], other)
    assert judged(graph, (0, 0, 18), (1, 16, 23))[0] is Severity.NOTE


def test_what_its_owner_does_not_write_leaves_a_note() -> None:
    assert judged(graph_of(*ROWS), (0, 0, 18)) == {0: Severity.NOTE}
    assert judged(graph_of(*ROWS), (0, 0, 18), (1, 32, 47))[0] is Severity.NOTE


def test_over_a_gap_it_is_meant() -> None:
    assert judged(graph_of(*ROWS), (0, 0, 12), (0, 16, 18), (1, 16, 31)) == {}
    assert judged(graph_of(*ROWS), (0, 0, 15), (0, 17, 18), (1, 16, 31)) == {}


def test_two_launches_that_share_what_they_were_given() -> None:
    wide = launch(TABLE.view(-1)[:32]), launch(TABLE.view(-1)[16:48])
    assert judged(graph_of(*wide), (0, 0, 34), (1, 16, 47))[0] is Severity.NOTE


def test_whole_rows_are_meant_unless_the_view_has_the_buffers_form() -> None:
    assert judged(graph_of(ROWS[0], launch(TABLE[1], name="get")), (0, 0, 31)) == {}
    assert judged(graph_of(launch(TABLE[:1]), launch(TABLE[1], name="get")), (0, 0, 31)) == {0: Severity.NOTE}


def test_downwards_it_is_the_same() -> None:
    assert judged(graph_of(*ROWS), (1, 13, 31), (0, 0, 15)) == {1: Severity.ERROR}


def test_an_operator_needs_no_witness_and_a_custom_one_is_a_kernel() -> None:
    operator = launch(TABLE[0], name="aten.add_.Tensor", kind=LaunchKind.ATEN)
    custom = launch(TABLE[0], name="mine.add_.default", kind=LaunchKind.ATEN)
    assert judged(graph_of(operator), (0, 40, 40)) == {0: Severity.ERROR}
    assert judged(graph_of(custom), (0, 40, 40)) == {}


def test_where_somebody_else_wrote_nobody_is_named() -> None:
    """A node that writes nothing seems to have changed the same cell."""
    graph = graph_of(*ROWS, launch(TABLE[2]), kinds={2: NodeKind.EMPTY})
    assert judged(graph, *RUN_ON) == {0: Severity.ERROR}
    assert judged(graph, *RUN_ON, (2, 20, 20)) == {}


@pytest.fixture
def context() -> Iterator[Context]:
    with sg.debug() as debugger:
        yield debugger.monitor.context


@pytest.mark.parametrize("meanwhile", [None, 2, 3])
def test_what_another_launch_wrote_meanwhile(context: Context, meanwhile: int | None) -> None:
    operator = launch(TABLE[0], name="aten.add_.Tensor", kind=LaunchKind.ATEN)
    graph = graph_of(operator, launch(TABLE[2]))
    drafts: list[Detection] = []
    where = RangeSet.of([TensorView.of(TABLE[meanwhile]).hull] if meanwhile is not None else [])
    cells = tuple(changes_of(graph, (0, 33, 33), (0, 50, 50)))
    GivenViews(replace(context, report=drafts.append)).probed(Probed(graph, 2, (), where, cells))
    assert len(drafts) == (meanwhile is None)
