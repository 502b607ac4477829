"""Byte maps against the bytes of programs, live and from dumps."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from map_makers import boxes, gids, require_readable, texts

import shadowgraph as sg
from shadowgraph.common.errors import UnknownBufferError, UsageError
from shadowgraph.demos import a10_fresh_input
from shadowgraph.demos.device import HostDevice
from shadowgraph.demos.kernels import fill
from shadowgraph.dumps.reader import read_dump
from shadowgraph.render.plots.byte_map import byte_map
from shadowgraph.render.text.text import finding_lines
from shadowgraph.views.byte_map import ByteFold, ByteMap, folded
from shadowgraph.views.byte_rows import ByteCell, Fate, Ground


def _run(debugger: sg.Debugger, past: int, elements: int = 8) -> Any:
    with debugger.guard():
        table = torch.zeros(elements, dtype=torch.int32)
    debugger.name("w.table", [table])
    debugger.name("w.tail", [table[elements // 2 :]])
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        out = table * 2
    fill[(1,)](table, 0, elements + past, 1, BLOCK=1024)
    graph.replay()
    assert len(debugger.findings) == bool(past)
    return table, graph, out


def _cells(map: ByteMap) -> dict[int, ByteCell]:
    return {cell.offset: cell for row in map.rows for cell in row.cells}


def test_bytes_around_a_fault(tmp_path: Path) -> None:
    with sg.debug() as debugger:
        kept = _run(debugger, past=3)
        window = debugger.findings[0].window
        live = ByteMap.of(debugger)
        with read_dump(debugger.dump(tmp_path / "run.dump")) as dump:
            assert ByteMap.of(dump) == live == ByteMap.of(dump, finding=1)
        memory = bytes(kept[0].numpy().tobytes())
    assert window is not None
    cells = _cells(live)
    assert bytes(cells[at].value or 0 for at in range(32)) == memory
    assert [at for at, cell in cells.items() if cell.fate is Fate.CHANGED] == list(range(32, 44))
    assert (
        bytes(cells[at].value or 0 for at in range(32, 44)) == torch.arange(9, 12, dtype=torch.int32).numpy().tobytes()
    )
    expected = bytes.fromhex(window.expected)
    assert bytes(cells[at].expected or 0 for at in range(32, 44)) == expected[32 - window.offset : 44 - window.offset]
    assert {cells[at].ground for at in range(32)} == {Ground.OWN}
    assert {cell.ground for at, cell in cells.items() if not 0 <= at < 32} == {Ground.GUARD}
    edges = {(edge.offset, edge.text) for edge in live.edges}
    assert {(0, "w.table[0] begins"), (32, "w.table[0] ends"), (16, "w.tail[0] begins")} <= edges
    [values] = [row.values for row in live.rows if row.offset == 16]
    assert values.split() == ["5", "6", "7", "8"]


def test_drawn_where_it_is() -> None:
    with sg.debug() as debugger:
        kept = _run(debugger, past=3)
        map = ByteMap.of(debugger)
        del kept
    figure = byte_map(map)
    require_readable(figure)
    changed = boxes(figure, "changed")
    assert len(changed) == 12
    assert len({top for _, top, _, _ in changed}) == 1, "all in the row from byte 32 on"
    lefts = sorted(left for left, _, _, _ in changed)
    steps = {round(two - one, 6) for one, two in pairwise(lefts)}
    assert len(steps) == 1, "side by side"
    assert len(boxes(figure, "bytes:own")) == 32
    cells = [cell for row in map.rows for cell in row.cells]
    assert len(boxes(figure, "bytes:guard")) == sum(c.ground is Ground.GUARD and c.fate is Fate.APART for c in cells)
    [line] = figure.findobj(lambda one: one.get_gid() == "edges")
    xs = {round(segment[0][0], 6) for segment in line.get_segments()}
    assert round(lefts[0], 6) in xs, "where the buffer ends, changed bytes begin"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a", "b"], "a[0] ends; b[0] ends; w.table[0] ends; w.tail[0] ends"),
        (["a", "x" * 40], "a[0] ends; w.table[0] ends; 2 more"),
        (["x" * 40, "y" * 40], "w.table[0] ends; 3 more"),
    ],
)
def test_ends_that_have_no_room_in_their_row_are_counted(names: list[str], said: str) -> None:
    with sg.debug() as debugger:
        kept = _run(debugger, past=3)
        for name in names:
            debugger.name(name, [kept[0]])
        map = ByteMap.of(debugger)
        del kept
    assert len([edge for edge in map.edges if edge.offset == 32]) == 2 + len(names), "of every name"
    assert said in texts(byte_map(map))


def test_the_fixed_twin_has_no_mark() -> None:
    with sg.debug() as debugger:
        kept = _run(debugger, past=0)
        with pytest.raises(UsageError, match="no finding is about bytes of a buffer that is known; name a buffer"):
            ByteMap.of(debugger)
        map = ByteMap.of(debugger, buffer="w.table[0]")
        del kept
    figure = byte_map(map)
    assert len(boxes(figure, "bytes:own")) == 32
    assert not gids(figure, "changed")
    assert any("no changed bytes" in text for text in texts(figure))


def test_bytes_that_a_replay_changed_and_bytes_that_it_left() -> None:
    with sg.debug() as debugger:
        with debugger.guard():
            indptr = torch.arange(6, dtype=torch.int32)
        debugger.protect(indptr)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            indptr[1:].mul_(2)
        graph.replay()
        assert [finding.code for finding in debugger.findings] == ["SG102"]
        cells = _cells(ByteMap.of(debugger))
    changed = [at for at, cell in cells.items() if cell.fate is Fate.CHANGED]
    assert changed == [4, 8, 12, 16, 20]
    assert {at for at, cell in cells.items() if cell.fate is Fate.AS_WAS} == set(range(5, 20)) - set(changed)
    assert [(cells[at].expected, cells[at].value) for at in changed] == [(n, 2 * n) for n in range(1, 6)]


def test_elements_that_a_finding_names_are_marked_whole() -> None:
    """SG108 is about stale elements: of an int32 that should be one more, three bytes are equal."""
    with sg.debug(backend="host") as debugger:
        kept = a10_fresh_input.program(HostDevice(), debugger, False, 0)
        (found,) = debugger.findings
        cells = _cells(ByteMap.of(debugger, finding=found.id))
        del kept
    assert found.bytes is not None
    changed = {at for at, cell in cells.items() if cell.changed}
    assert changed == set(range(found.bytes.first, found.bytes.last + 1))
    assert any(cell.value == cell.expected for at, cell in cells.items() if at in changed)


def test_what_is_asked_for(tmp_path: Path) -> None:
    with sg.debug() as debugger:
        kept = _run(debugger, past=1)
        with pytest.raises(UsageError, match="no finding #7"):
            ByteMap.of(debugger, finding=7)
        with pytest.raises(UnknownBufferError, match=r"no buffer is called 'w\.tabel'"):
            ByteMap.of(debugger, buffer="w.tabel")
        with read_dump(debugger.dump(tmp_path / "run.dump", redact=True)) as dump:
            hidden = ByteMap.of(dump)
        del kept
    assert all(cell.value is None for cell in _cells(hidden).values())
    figure = byte_map(hidden)
    require_readable(figure)
    assert gids(figure, "changed"), "which bytes is no value"


def test_a_large_fault_is_folded_in_its_middle() -> None:
    with sg.debug() as debugger:
        kept = _run(debugger, past=500)
        map = ByteMap.of(debugger)
        facts = debugger.findings[0].bytes
        del kept
    assert facts is not None
    assert facts.count > 1900, "a byte may be as the guard was"
    assert sum(cell.fate is Fate.CHANGED for row in map.rows for cell in row.cells) == facts.count
    figure = byte_map(map, limit=12)
    require_readable(figure)
    rows = folded(map.rows, 12)
    hidden = sum(row.changed for row in rows if isinstance(row, ByteFold))
    assert hidden
    assert hidden + len(boxes(figure, "changed")) == facts.count
    offsets = [row.offset for row in rows if not isinstance(row, ByteFold)]
    assert {32, 32 + 1984} <= set(offsets), "its first and its last row"
    with pytest.raises(UsageError, match="limit must be from 1 to 200, not 0"):
        byte_map(map, limit=0)


class _Rows:
    """A table of which one row's entries run into the next, or fit."""

    def __init__(self, debugger: sg.Debugger, length: int) -> None:
        with debugger.guard():
            self.table = torch.zeros(3, 4, dtype=torch.int32)
        debugger.name("w", self)
        self.graph = sg.HostGraph()
        with sg.host_graph(self.graph):
            self.output = self.table * 2
        pack_rows[(3,)](self.table, length, 4, BLOCK=16)
        self.graph.replay()


@triton.jit
def pack_rows(out, length, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    tl.store(out + row * stride + at, 100 * (row + 1) + at, mask=at < tl.where(row == 0, length, 4))


def test_a_lost_entry_of_a_row_shows_both_values() -> None:
    with sg.debug() as debugger:
        kept = _Rows(debugger, 5)
        (finding,) = debugger.findings
        map = ByteMap.of(debugger)
        assert kept.table[1, 0].item() == 200
    assert finding.window is not None
    assert finding.window.offset == 16
    lost, left = (int(each).to_bytes(4, "little") for each in (104, 200))
    assert (finding.window.expected, finding.window.found) == (lost.hex(), left.hex())
    cells = _cells(map)
    assert bytes(cells[at].value or 0 for at in range(16, 20)) == left
    assert bytes(cells[at].expected or 0 for at in range(16, 20)) == lost
    assert "changed (below: what was there)" in texts(byte_map(map))
    assert any("was 68 00 00 00" in line.plain for line in finding_lines(finding))


def test_rows_that_fit_have_no_finding() -> None:
    with sg.debug() as debugger:
        _Rows(debugger, 4)
        assert not debugger.findings


def test_the_legend_promises_only_known_values() -> None:
    with sg.debug() as debugger:
        _kept = _Rows(debugger, 5)
        map = ByteMap.of(debugger)
    rows = tuple(replace(row, cells=tuple(replace(cell, expected=None) for cell in row.cells)) for row in map.rows)
    said = texts(byte_map(replace(map, rows=rows)))
    assert "changed (what was there is not known)" in said
    assert "changed (below: what was there)" not in said
