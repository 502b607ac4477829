"""What a graph does first with buffers that it did not allocate, from graphs built by hand."""

from __future__ import annotations

import pytest

from shadowgraph.checks.dangling.liveness import captured_bytes, uses_of
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.graphs import Access, Graph, Launch, LaunchKind, Node, Pointer
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.views import TensorView

BASE, SIZE = 1 << 30, 64
READ, WRITE, BOTH, UNKNOWN = Access.READ, Access.WRITE, Access.READ_WRITE, Access.UNKNOWN

Pointed = tuple[Access, TensorView]


def view(start: int = 0, count: int = SIZE, step: int = 1, base: int = BASE) -> TensorView:
    """`count` bytes from `start` on, `step` apart, of the buffer at `base`."""
    return TensorView(base + start, base, SIZE, (count,), (step,), "uint8", 1, "cpu")


def buffer(serial: int = 7, base: int = BASE, role: Role = Role.STATIC, graph: int | None = None) -> Buffer:
    return Buffer(serial, base, SIZE, role, shape=(SIZE,), graph=graph)


def graph_of(*nodes: list[Pointed], given: tuple[Buffer, ...] = ()) -> Graph:
    made = [
        Node(i, Launch(LaunchKind.ATEN, f"op{i}", tuple(Pointer(f"a{k}", v, a) for k, (a, v) in enumerate(pointers))))
        for i, pointers in enumerate(nodes)
    ]
    graph = Graph(1, "graph#1", made)
    graph.inputs = {each.serial: each for each in given or (buffer(),)}
    return graph


def first(*nodes: list[Pointed]) -> tuple[int, bool]:
    """Node and kind of the one use."""
    (use,) = uses_of(graph_of(*nodes))
    return use.node.index, use.live_in


@pytest.mark.parametrize("access", [READ, BOTH, UNKNOWN])
def test_what_may_be_read_first_is_live_in(access: Access) -> None:
    assert first([(access, view())], [(WRITE, view())]) == (0, True)


def test_what_is_only_written_is_external_out() -> None:
    assert first([(WRITE, view())], [(WRITE, view(8, 8))]) == (0, False)


def test_what_is_read_after_it_was_written_in_full_is_external_out() -> None:
    assert first([(WRITE, view())], [(READ, view(16, 32))], [(BOTH, view())]) == (0, False)
    assert first([(WRITE, view(0, 32))], [(WRITE, view(32, 32))], [(READ, view())]) == (0, False)


@pytest.mark.parametrize(
    "written",
    [(WRITE, view(0, 63)), (WRITE, view(1, 63)), (WRITE, view(0, 32, 2)), (BOTH, view(8, 8)), (UNKNOWN, view(8, 8))],
    ids=["all but the last", "all but the first", "every other", "in place", "a kernel"],
)
def test_a_byte_that_no_node_wrote_for_sure_is_live_in(written: Pointed) -> None:
    node, live_in = first([written], [(READ, view())])
    assert live_in
    assert node == (1 if written[0] is WRITE else 0)


def test_within_a_node_reads_come_before_writes() -> None:
    """A copy from one half of a buffer onto the other."""
    assert first([(WRITE, view(0, 32)), (READ, view(32, 32))]) == (0, True)
    (use,) = uses_of(graph_of([(WRITE, view()), (READ, view())]))
    assert (use.live_in, use.pointer.argument) == (True, "a1")


def test_views_with_gaps_write_no_gap() -> None:
    columns = [(WRITE, view(0, 32, 2))], [(WRITE, view(1, 32, 2))]
    assert first(*columns, [(READ, view())]) == (0, False)
    assert first(columns[0], [(READ, view(1, 32, 2))]) == (1, True)


def test_what_the_graph_allocated_itself_is_internal() -> None:
    own, other = buffer(7, role=Role.POOL, graph=1), buffer(7, role=Role.POOL, graph=2)
    assert uses_of(graph_of([(READ, view())], given=(own,))) == []
    assert [use.buffer for use in uses_of(graph_of([(READ, view())], given=(other,)))] == [other]


def test_each_buffer_for_itself_in_order_of_allocation() -> None:
    far = BASE + 4096
    given = buffer(9, far), buffer(4), buffer(5, far + 4096)
    uses = uses_of(graph_of([(READ, view(base=far))], [(WRITE, view()), (READ, view(base=far))], given=given))
    assert [(use.buffer.serial, use.node.index, use.live_in) for use in uses] == [(4, 1, False), (9, 0, True)]


def test_an_empty_view_uses_nothing() -> None:
    assert uses_of(graph_of([(READ, view(8, 0))])) == []


def test_captured_bytes() -> None:
    graph = graph_of([(READ, view(8, 8))], [(WRITE, view(24, 2, 3))])
    assert captured_bytes(graph, buffer()) == ByteRange(BASE + 8, BASE + 28)
    assert captured_bytes(graph_of([]), buffer()) == ByteRange(BASE, BASE + SIZE)
