"""SG101 in the inner rows of a table that one launch is given as a whole, however its programs share the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from programs import guarded, only

import shadowgraph as sg

ROWS, BLOCK = 6, 32
GRIDS: dict[str, Callable[[int], int]] = {
    "rows_first": lambda blocks: ROWS * blocks,
    "blocks_first": lambda blocks: ROWS * blocks,
    "backwards": lambda blocks: ROWS * blocks,
    "swizzled": lambda blocks: ROWS * blocks,
    "persistent_rows": lambda blocks: 4,
    "persistent_tiles": lambda blocks: 5,
    "persistent_columns": lambda blocks: 5,
    "chunks": lambda blocks: 3,
    "one_program_down": lambda blocks: 1,
    "listed": lambda blocks: ROWS,
    "tiles": lambda blocks: ROWS // 2 * blocks,
    "tall_tiles": lambda blocks: 2,
    "pairs": lambda blocks: 2,
    "blocked_pointers": lambda blocks: 4,
}
FEW = ("rows_first", "blocks_first", "persistent_rows", "persistent_tiles")
CASES = [
    *((name, 100, 120) for name in GRIDS),
    *((name, 96, 120) for name in GRIDS),  # a block too many begins where the next row does
    *((name, 100, 170) for name in FEW),
    *((name, 32, 40) for name in FEW),
]


def lens_of(name: str, width: int, length: int) -> torch.Tensor:
    """All rows as long, but the last one, so that nothing leaves the table."""
    last = BLOCK if name == "blocked_pointers" else width // 2  # it stores whole blocks
    return torch.tensor([length] * (ROWS - 1) + [last], dtype=torch.int32)


def launch(name: str, table: torch.Tensor, lens: torch.Tensor, length: int, width: int, bounded: bool) -> None:
    import row_kernels

    blocks = -(-length // BLOCK)
    kernel = getattr(row_kernels, name)
    kernel[(GRIDS[name](blocks),)](table, lens, width, ROWS, blocks, BOUNDED=bounded, BLOCK=BLOCK)


def replayed(name: str, width: int, length: int, bounded: bool, form: Callable[[torch.Tensor], Any]) -> Any:
    """The findings after two replays of a graph with the launch, and the graph's name."""
    with sg.debug() as debugger:
        table, lens = guarded(debugger, ROWS, width), lens_of(name, width, length)
        debugger.name("runner", {"table": table})
        given, graph = form(table), sg.HostGraph()
        with sg.host_graph(graph):
            launch(name, given, lens, length, width, bounded)
            graph.kept = table.sum(1)  # type: ignore[attr-defined]
        graph.replay()
        graph.replay()
    return debugger.findings, graph.model.name


@pytest.mark.parametrize(("name", "width", "length"), CASES)
def test_rows_that_run_into_the_next(name: str, width: int, length: int) -> None:
    written = -(-length // BLOCK) * BLOCK if name == "blocked_pointers" else length
    assert written > width, "invalid: the rows fit"
    findings, graph = replayed(name, width, length, False, lambda table: table)
    found = only(findings)
    assert (found.code, found.severity, found.bytes.side, found.buffer.name) == (
        "SG101",
        "error",
        "row",
        'runner["table"]',
    )
    assert (found.phase, found.graph, found.replay, found.occurrences) == ("replay", graph, 1, 2)
    assert (found.culprit.name, found.culprit.kind, found.culprit.stack[0].function) == (name, "triton", "launch")
    assert found.bytes.first >= 4 * width, "no row runs into row 0"
    lost = [first // (4 * width) for first, _ in found.bytes.ranges]
    assert {first % (4 * width) for first, _ in found.bytes.ranges} == {0}, "what is lost begins with the next row"
    if name == "chunks":  # a program that takes two rows stores the second one over what the first one left there
        assert lost == [2, 4]
    else:
        assert lost == list(range(1, ROWS))
        past = [(row.row, row.written_past) for row in found.detail.rows]
        assert past == [(row, written - width) for row in range(ROWS - 1)]


@pytest.mark.parametrize("name", GRIDS)
def test_rows_that_end_where_they_should(name: str) -> None:
    """The fixed twin."""
    assert replayed(name, 100, 120, True, lambda table: table)[0] == ()


@pytest.mark.parametrize("name", ["rows_first", "persistent_tiles"])
@pytest.mark.parametrize(
    "form",
    [lambda table: table.view(-1), lambda table: table[0], lambda table: table.view(ROWS, 4, -1)],
    ids=["flat", "first row", "three dimensions"],
)
def test_a_table_given_in_another_form(name: str, form: Callable[[torch.Tensor], torch.Tensor]) -> None:
    found = only(replayed(name, 100, 120, False, form)[0])
    assert (found.bytes.side, found.culprit.name) == ("row", name)
    assert [row.row for row in found.detail.rows] == list(range(ROWS - 1))
    assert replayed(name, 100, 120, True, form)[0] == ()


@pytest.mark.parametrize("name", ["blocks_first", "persistent_rows", "persistent_columns"])
def test_in_prepare(name: str) -> None:
    with sg.debug() as debugger:
        table = guarded(debugger, ROWS, 100)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            kept = table.sum(1)
        for step in range(3):
            with debugger.prepare(graph):
                length = 120 if step == 2 else 80
                launch(name, table, lens_of(name, 100, length), length, 100, False)
            graph.replay()
    found = only(debugger.findings)
    assert (found.bytes.side, found.phase, found.replay, found.culprit.name) == ("row", "prepare", 3, name)
    del kept


@pytest.mark.parametrize("name", ["rows_first", "persistent_rows", "persistent_tiles"])
def test_columns_to_spare_behind_each_row(name: str) -> None:
    """The other fix: rows are allocated wider than they are read."""
    with sg.debug() as debugger:
        table, lens = guarded(debugger, ROWS, 128), lens_of(name, 128, 120)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            launch(name, table, lens, 120, 128, False)
            kept = table[:, :100].sum(1)
        graph.replay()
    assert debugger.findings == ()
    assert kept[0] == sum(range(100)), "invalid: the kernel filled no row"


# -- kernels that mean it --------------------------------------------------------------------------------------------


def silent(shape: tuple[int, int], run: Callable[[Any, torch.Tensor], None]) -> torch.Tensor:
    """The table after a replay of a launch without a finding."""
    import meant_kernels

    with sg.debug() as debugger:
        table = guarded(debugger, *shape)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            run(meant_kernels, table)
            kept = table.sum(1)
        graph.replay()
    assert debugger.findings == (), [finding.message for finding in debugger.findings]
    del kept
    return table


@pytest.mark.parametrize("width", [40, 64, 100])
def test_element_by_element(width: int) -> None:
    count = ROWS * width
    silent((ROWS, width), lambda kernels, table: kernels.flat[(-(-count // BLOCK),)](table, count, BLOCK=BLOCK))
    silent((ROWS, width), lambda kernels, table: kernels.flat_shifted[(-(-count // BLOCK),)](table, count, BLOCK=BLOCK))


@pytest.mark.parametrize("width", [40, 50, 64])
@pytest.mark.parametrize("name", ["clear_then_rows", "rows_over_each_other"])
def test_one_program_that_overwrites_what_it_has_stored(name: str, width: int) -> None:
    table = silent((ROWS, width), lambda kernels, table: getattr(kernels, name)[(1,)](table, width, ROWS, BLOCK=64))
    assert (table[:, 0] == torch.arange(ROWS) * 1000).all(), "invalid: the rows are wrong"


def test_padded_tokens_share_a_slot() -> None:
    slots = torch.tensor([3, 0, 5, 0, 0, 2], dtype=torch.int32)
    silent((8, 20), lambda kernels, table: kernels.padded_slots[(6,)](table, slots, 20, BLOCK=BLOCK))


@pytest.mark.parametrize("width", [40, 64, 48])
def test_sliding_windows(width: int) -> None:
    count = ROWS * width
    silent((ROWS, width), lambda kernels, table: kernels.windows[(count // 16 - 1,)](table, 16, count, BLOCK=BLOCK))


def test_rows_that_overlap_as_they_were_given() -> None:
    def run(kernels: Any, table: torch.Tensor) -> None:
        kernels.windows[(ROWS,)](table.view(-1).as_strided((ROWS, BLOCK), (16, 1)), 16, 240, BLOCK=BLOCK)

    silent((ROWS, 40), run)


def test_parts_are_added_by_atomics() -> None:
    table = silent((ROWS, 40), lambda kernels, table: kernels.split[(2 * (ROWS - 1),)](table, 40, BLOCK=64))
    assert table[1, 0] != table[0, 0], "invalid: no row reached the next one"


@pytest.mark.parametrize("width", [40, 48, 64])
def test_the_last_program_goes_over_the_table(width: int) -> None:
    done = torch.zeros(1, dtype=torch.int32)
    grid = (-(-ROWS * width // 64),)
    silent((ROWS, width), lambda kernels, table: kernels.last_one_finishes[grid](table, done, width, ROWS, BLOCK=64))


@pytest.mark.parametrize("programs", [1, 2, 4, 6])
def test_rows_stored_twice(programs: int) -> None:
    silent((ROWS, 40), lambda kernels, table: kernels.two_passes[(programs,)](table, 40, ROWS, BLOCK=64))


def test_the_first_element_of_each_row_is_stored_twice() -> None:
    """By two programs of the row itself: in the first row, too, which follows none."""
    silent((ROWS, 40), lambda kernels, table: kernels.heads_twice[(2 * ROWS,)](table, 40, ROWS, BLOCK=64))
