"""What a probed replay shows of launches that were given a part of a buffer and wrote another part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest
import torch
from playing import played
from programs import guarded, only, poke

import shadowgraph as sg
from shadowgraph.model.graphs import Access, Graph, LaunchKind, Node

ROWS, WIDTH = 4, 16
Body = Callable[[torch.Tensor], None]


def fill_at(target: torch.Tensor, start: int, count: int, value: int) -> None:
    """A Triton launch that stores ``value, value + 1, ...`` at ``target[start : start + count]``."""
    from shadowgraph.demos.kernels import fill

    fill[(1,)](target, start, count, value, BLOCK=64)


def walk(target: torch.Tensor, stride: int, rows: int, count: int) -> None:
    """A Triton launch that is given where a table begins and walks its rows by a stride."""
    import triton
    import triton.language as tl

    @triton.jit
    def walks(base, stride, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        lane = tl.arange(0, BLOCK)
        at = base + tl.program_id(0) * stride + lane
        tl.store(at, tl.load(at) + 1, mask=lane < count)

    walks[(rows,)](target, stride, count, BLOCK=64)


def following(target: torch.Tensor, stride: int) -> None:
    """A Triton launch that makes the next row from the one that it is given."""
    import triton
    import triton.language as tl

    @triton.jit
    def follow(row, stride, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        lane = tl.arange(0, BLOCK)
        tl.store(row + stride + lane, tl.load(row + lane) + 1)

    follow[(1,)](target, stride, BLOCK=WIDTH)


def seen_in(debugger: sg.Debugger, body: Body, *shape: int, replays: int = 1) -> tuple[sg.HostGraph, torch.Tensor]:
    """A graph over one table, all of which some node reads, after replays of which the first is looked at.

    The table is zeroed between replays: what is stored again unchanged is not seen.
    """
    table = guarded(debugger, *shape)
    debugger.name("table", table)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        body(table)
        kept = table + 1
    debugger.locate(graph)
    for replay in range(replays):
        table.zero_()
        graph.replay()
        debugger.check()
        assert bool(debugger.findings or debugger.notes) <= (replay == replays - 1)
    del kept
    return graph, table


@pytest.fixture(params=["host", "device"])
def watching(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[sg.Debugger, int]]:
    """A debugger, and how many probed replays it takes to be sure: on a device somebody else may have written."""
    with sg.debug() if request.param == "host" else played(monkeypatch) as debugger:
        yield debugger, 1 if request.param == "host" else 2


# -- rows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [range(3), range(2, -1, -1)], ids=["downwards", "upwards"])
def test_rows_that_run_into_their_neighbours(watching: tuple[sg.Debugger, int], order: range) -> None:
    debugger, replays = watching

    def body(table: torch.Tensor) -> None:
        for row in order:
            fill_at(table[row], 0, WIDTH + 3, 100 * (row + 1))

    graph, table = seen_in(debugger, body, ROWS, WIDTH, replays=replays)
    found = only(debugger.findings)
    assert debugger.notes == ()
    assert table[3, :3].tolist() == [316, 317, 318]
    assert (found.code, found.severity, found.phase, found.replay) == ("SG101", "error", "replay", replays)
    assert (found.buffer.name, found.bytes.side, found.confidence) == ("table", "row", "medium")
    assert [(row.row, row.width, row.written_past, row.into, row.rows) for row in found.detail.rows] == [
        (0, WIDTH, 3, (1,), ROWS),
        (1, WIDTH, 3, (2,), ROWS),
        (2, WIDTH, 3, (3,), ROWS),
    ]
    assert [row.lost for row in found.detail.rows] == [3, 3, 0], "nobody was given row 3"
    assert (found.bytes.first, found.bytes.last // 4) == (64, 3 * WIDTH + 2)
    culprit = found.culprit
    node = min(place for place, row in enumerate(order) if row < 2)
    assert (culprit.status, culprit.kind, culprit.name, culprit.node) == ("confirmed", "triton", "fill", node)
    assert (culprit.seen_in, culprit.stack[1].function) == (replays, "body")
    assert culprit.led_by is not None
    assert (culprit.led_by.name, culprit.led_by.buffer, culprit.led_by.at) == ("target", "table", 64 * order[node])
    assert {one.node for one in found.candidates} == {0, 1, 2} - {node}
    said = "wrote past the width of rows 0, 1, 2 of table (int32[4, 16], 256 bytes) into the next; 6 entries lost"
    assert f"SG101 out-of-bounds write: fill (node {node}) {said} in replay {replays} of {graph.model.name}" == (
        found.message
    )


def test_a_row_that_nobody_else_is_given_is_a_note(watching: tuple[sg.Debugger, int]) -> None:
    debugger, replays = watching
    seen_in(debugger, lambda table: fill_at(table[1], 0, WIDTH + 3, 100), ROWS, WIDTH, replays=replays)
    note = only(debugger.notes)
    assert debugger.findings == ()
    assert (note.code, note.bytes.side, note.culprit.name, note.culprit.node) == ("SG101", "row", "fill", 0)
    assert [(row.row, row.written_past, row.lost, row.into) for row in note.detail.rows] == [(1, 3, 0, (2,))]


# -- views -------------------------------------------------------------------------------------------------------------


def test_a_kernel_that_writes_the_rows_after_its_own(watching: tuple[sg.Debugger, int]) -> None:
    debugger, replays = watching

    def body(table: torch.Tensor) -> None:
        for first in (0, 2, 4):
            fill_at(table[first : first + 2], 0, 2 * WIDTH + (5 if first == 2 else 0), 100 * (first + 1))

    graph, _ = seen_in(debugger, body, 6, WIDTH, replays=replays)
    found = only(debugger.findings)
    assert (found.code, found.severity, found.bytes.side) == ("SG101", "error", None)
    assert (found.bytes.first, found.bytes.last // 4) == (4 * WIDTH * 4, 4 * WIDTH + 4)
    assert (found.culprit.name, found.culprit.node, found.candidates) == ("fill", 1, ())
    assert (found.culprit.led_by.name, found.culprit.led_by.at) == ("target", 2 * WIDTH * 4)
    assert "outside the view that it was given, in replay" in found.message
    assert "was given too little" in str(debugger.report(quiet=True))
    del graph


def operator(graph: Graph) -> None:
    """Let a graph's first node, which host code is, pass for an operator of torch that writes what was declared."""
    launch = graph.nodes[0].launch
    view = msgspec.structs.replace(launch.pointers[0], argument="self")
    graph.nodes[0] = Node(
        0, msgspec.structs.replace(launch, kind=LaunchKind.ATEN, name="aten.add_.Tensor", pointers=(view,))
    )


@pytest.mark.parametrize("made", ["fresh", "given", "of its argument"])
def test_an_operator_may_shrink_the_result_that_it_made(watching: tuple[sg.Debugger, int], made: str) -> None:
    """As losses do: all elements are written, then reduced into one, and the result is a view of that."""
    debugger, replays = watching
    graph, table = sg.HostGraph(), guarded(debugger, WIDTH)
    debugger.name("table", table)

    def shrunk() -> None:
        poke(table, 0, table.nbytes, value=int(table[1]) % 100 + 1)

    with sg.host_graph(graph):
        graph.call(shrunk, writes=(table[0],))
        kept = table + 1
    launch = graph.model.nodes[0].launch
    result = msgspec.structs.replace(launch.pointers[0], argument="result" if made != "given" else "out")
    argument = msgspec.structs.replace(result, argument="self", access=Access.READ)
    pointers = (argument, result) if made == "of its argument" else (result,)
    loss = msgspec.structs.replace(
        launch, kind=LaunchKind.ATEN, name="aten.binary_cross_entropy.default", pointers=pointers
    )
    graph.model.nodes[0] = Node(0, loss)
    look = debugger.locate(graph)
    for _ in range(replays):
        graph.replay()
    debugger.check()
    assert look.write_sets is not None
    assert look.write_sets.written[0].last == table.nbytes - 1, "it wrote more than its result"
    assert [found.code for found in debugger.findings] == ["SG101"] * (made != "fresh")
    assert debugger.notes == ()
    del kept


def bumped(table: torch.Tensor, row: int) -> None:
    poke(table, row * WIDTH * 4, 1, value=int(table[row, 0]) + 1)


@pytest.mark.parametrize("row", [0, 1, 2, 3, 4, 5])
def test_an_operator_writes_its_outputs_only(watching: tuple[sg.Debugger, int], row: int) -> None:
    debugger, replays = watching
    graph = sg.HostGraph()
    table = guarded(debugger, 6, WIDTH)
    debugger.name("table", table)
    with sg.host_graph(graph):
        graph.call(lambda: bumped(table, row), writes=(table[2:4],))
        table[5].add_(1)
        kept = table + 1
    operator(graph.model)
    debugger.locate(graph)
    for _ in range(replays):
        graph.replay()
    debugger.check()
    assert debugger.notes == ()
    assert table[row, 0].item() == replays * (2 if row == 5 else 1)
    assert kept[row, 0].item() == table[row, 0].item() + 1
    if row in (2, 3):
        assert debugger.findings == ()
        return
    found = only(debugger.findings)
    assert (found.code, found.severity, found.bytes.side) == ("SG101", "error", None)
    assert found.confidence == ("high" if replays == 1 else "medium")
    assert (found.bytes.first, found.bytes.last, found.bytes.count) == (row * 64, row * 64, 1)
    assert (found.culprit.name, found.culprit.node) == ("aten.add_.Tensor", 0)


def test_a_narrow_view_of_the_same_form_is_a_note(watching: tuple[sg.Debugger, int]) -> None:
    """A workspace of which a kernel is given the start may be used on by it."""
    debugger, replays = watching
    seen_in(debugger, lambda table: fill_at(table[:8], 0, 20, 1), 64, replays=replays)
    assert debugger.findings == ()
    note = only(debugger.notes)
    assert (note.bytes.side, note.culprit.node, note.bytes.first, note.bytes.last // 4) == (None, 0, 32, 19)
    assert "beyond its view" in note.message


# -- what is meant -----------------------------------------------------------------------------------------------------


def each_row(table: torch.Tensor) -> None:
    for row in range(ROWS):
        fill_at(table[row], 0, WIDTH, 100 * (row + 1))


def by_stride(table: torch.Tensor) -> None:
    walk(table[0], WIDTH, ROWS, WIDTH - 4)


def by_stride_then_row(table: torch.Tensor) -> None:
    walk(table[0], WIDTH, ROWS, WIDTH - 4)
    table[2].add_(1)
    walk(table[1], WIDTH, 1, WIDTH - 4)


def recurrence(table: torch.Tensor) -> None:
    table[0].add_(1)
    for row in range(ROWS - 1):
        following(table[row], WIDTH)


def two_rows_each(table: torch.Tensor) -> None:
    for row in (0, 2):
        fill_at(table[row], 0, 2 * WIDTH, 100 * (row + 1))


def bases_and_parts(table: torch.Tensor) -> None:
    table.add_(1)
    table[1].mul_(2)
    table[:, :4].sub_(1)
    table.T[2:4].add_(3)
    torch.cumsum(table[2], 0, dtype=torch.int32, out=table[3])
    torch._foreach_add_([table[0], table[2]], 1)


def transposed(table: torch.Tensor) -> None:
    fill_at(table.T, 0, ROWS * WIDTH, 5)
    fill_at(table.as_strided((ROWS - 1, WIDTH), (WIDTH, 1), 8), 0, 2 * WIDTH, 5)


def base_and_row(table: torch.Tensor) -> None:
    import triton
    import triton.language as tl

    @triton.jit
    def both(row, base, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        lane = tl.arange(0, BLOCK)
        tl.store(base + lane, tl.load(row + lane) + 1)

    both[(1,)](table[1], table, BLOCK=64)


@pytest.mark.parametrize(
    "body",
    [each_row, by_stride, by_stride_then_row, recurrence, two_rows_each, bases_and_parts, transposed, base_and_row],
)
def test_what_is_meant_is_silent(watching: tuple[sg.Debugger, int], body: Body) -> None:
    debugger, _ = watching
    graph, table = seen_in(debugger, body, ROWS, WIDTH, replays=3)
    assert debugger.findings == debugger.notes == ()
    assert table.any()
    sets = debugger.monitor.locator.write_sets[graph.model.serial]
    assert sets.written, "it looked"
