"""What a memory map says against the debugger run that it came from."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from map_makers import BASE, buffer, damage, gids

import shadowgraph as sg
from shadowgraph.common.errors import UsageError
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.guards import Side
from shadowgraph.render.html.map_bars import bar_map
from shadowgraph.render.plots.browsing import chart_of
from shadowgraph.render.plots.memory_map import memory_map
from shadowgraph.views.memory_map import MapAlias, MapBuffer, MapDamage, MemoryMap


@triton.jit
def _fill(pointer, first, count, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(pointer + first + lanes, lanes, mask=lanes < count)


@triton.jit
def _fill_rows(pointer, width, count, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(pointer + tl.program_id(0) * width + lanes, lanes, mask=lanes < count)


class _Owner:
    """Something with tensors in it."""


@dataclass
class _Run:
    debugger: sg.Debugger
    map: MemoryMap
    live: tuple[Buffer, ...]
    owners: list[Any]

    def buffer(self, name: str) -> MapBuffer:
        [found] = [one for one in self.map.buffers if name in (one.name, *one.names)]
        return found

    def damages(self, name: str) -> list[MapDamage]:
        index = self.map.buffers.index(self.buffer(name))
        return [one for one in self.map.damages if one.buffer == index]


def _program(dbg: sg.Debugger) -> list[Any]:
    attn, wrapper = _Owner(), _Owner()
    with dbg.guard():
        attn.idx = torch.zeros(64, dtype=torch.int32)
        attn.table = torch.zeros(4, 16, dtype=torch.int32)
        attn.indptr = torch.arange(33, dtype=torch.int32)
        attn.before = torch.zeros(40, dtype=torch.int64)
        halves = torch.zeros(128)
        gone = torch.zeros(16, dtype=torch.int32)
    wrapper.prefix_of_indptr, wrapper.all_of_indptr = attn.indptr[:9], attn.indptr
    wrapper.left, wrapper.right = halves[:64], halves[64:]
    dbg.name("attn", attn)
    dbg.name("wrapper", wrapper)
    dbg.protect(attn.indptr)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        attn.output = attn.idx[:32] * 2
        attn.indptr[:9].cumsum_(0)
    with dbg.prepare(graph):
        _fill[(1,)](attn.idx, 0, 70, BLOCK=128)
    graph.replay()
    _fill[(1,)](attn.before, -2, 10, BLOCK=16)
    _fill_rows[(2,)](attn.table, 16, 18, BLOCK=32)
    _fill[(1,)](gone, 0, 17, BLOCK=32)
    dbg.check()
    del gone
    return [attn, wrapper, graph]


@pytest.fixture(scope="module")
def run() -> _Run:
    with sg.debug(backend="host") as dbg:
        owners = _program(dbg)
    return _Run(dbg, MemoryMap.of(dbg), dbg.buffers, owners)


def test_every_live_buffer_is_there_in_order_of_address(run: _Run) -> None:
    live = {(b.start, b.nbytes, b.head_guard, b.tail_guard, b.dtype) for b in run.live}
    drawn = {(b.start, b.nbytes, b.head_guard, b.tail_guard, b.dtype) for b in run.map.buffers if b.alive}
    assert drawn == live
    assert [b.start for b in run.map.buffers] == sorted(b.start for b in run.map.buffers)


def test_a_buffer_keeps_its_facts(run: _Run) -> None:
    idx = run.buffer("attn.idx")
    assert (idx.start, idx.nbytes) == (run.owners[0].idx.data_ptr(), 256)
    assert (idx.dtype, idx.shape, idx.role, idx.graph, idx.alive) == ("int32", (64,), "static", None, True)
    assert run.buffer("attn.output").role == "pool"
    assert run.buffer("attn.output").graph == run.debugger.graphs[-1].name


def test_damage_is_where_the_findings_say(run: _Run) -> None:
    assert len(run.map.damages) == len(run.debugger.findings) > 4
    for finding, drawn in zip(run.debugger.findings, run.map.damages, strict=True):
        facts = finding.bytes
        assert facts is not None
        assert drawn.finding == finding.id
        assert (drawn.first, drawn.last) == (finding.buffer.address + facts.first, finding.buffer.address + facts.last)
        assert run.map.buffers[drawn.buffer].start == finding.buffer.address
        assert drawn.count == facts.count
        assert len(drawn.pieces) == len(facts.ranges)


def test_a_write_past_the_end(run: _Run) -> None:
    [found] = run.damages("attn.idx")
    stop = run.buffer("attn.idx").stop
    assert (found.code, found.first, found.last) == ("SG101", stop, stop + 23)
    assert found.culprit == "_fill"
    assert found.when == "while preparing replay 1 of graph#" + run.debugger.graphs[-1].name.split("#")[1]
    assert found.exact


def test_a_write_before_the_start(run: _Run) -> None:
    [found] = run.damages("attn.before")
    start = run.buffer("attn.before").start
    assert (found.first, found.last) == (start - 16, start - 1)


def test_entries_lost_between_rows_are_not_said_to_fill_the_row(run: _Run) -> None:
    finding = next(f for f in run.debugger.findings if f.bytes and f.bytes.side is Side.ROW)
    [found] = run.damages("attn.table")
    assert found.finding == finding.id
    assert found.exact == (found.last + 1 - found.first == found.count)


def test_changed_entries_are_single_pieces(run: _Run) -> None:
    [found] = run.damages("attn.indptr")
    assert found.code == "SG102"
    assert len(found.pieces) == found.count == 7
    assert found.exact


def test_a_freed_buffer_with_damage_stays(run: _Run) -> None:
    [index] = [index for index, one in enumerate(run.map.buffers) if not one.alive]
    [found] = [one for one in run.map.damages if one.buffer == index]
    assert run.map.buffers[index].shape == (16,)
    assert (found.first, found.last) == (run.map.buffers[index].stop, run.map.buffers[index].stop + 3)


def test_owners_of_parts_carry_their_slice(run: _Run) -> None:
    indptr = run.buffer("attn.indptr")
    assert indptr.name == "attn.indptr"
    assert set(indptr.aliases) == {
        MapAlias("wrapper.prefix_of_indptr", "[0:9]", indptr.start, indptr.start + 36),
        MapAlias("wrapper.all_of_indptr", "", indptr.start, indptr.stop),
    }


def test_owners_of_two_halves_are_both_parts(run: _Run) -> None:
    halves = run.buffer("wrapper.left")
    middle = halves.start + 256
    assert set(halves.aliases) == {
        MapAlias("wrapper.left", "[0:64]", halves.start, middle),
        MapAlias("wrapper.right", "[64:128]", middle, halves.stop),
    }


def test_every_finding_of_the_run_is_drawn(run: _Run) -> None:
    figure = memory_map(run.map)
    assert sorted(gids(figure, "damage:")) == sorted(f"damage:{finding.id}" for finding in run.debugger.findings)


def test_a_name_outlives_its_owner_in_a_damaged_buffer() -> None:
    with sg.debug(backend="host") as dbg:
        owner = _Owner()
        with dbg.guard():
            kept = owner.short_lived = torch.zeros(8, dtype=torch.int32)
        dbg.name("lost", owner)
        _fill[(1,)](kept, 0, 9, BLOCK=16)
        [finding] = dbg.check()
        made = MemoryMap.of(dbg)
        dbg.name("lost", _Owner())
        later = MemoryMap.of(dbg)
    for one in (made, later):
        assert one.buffers[one.damages[0].buffer].names == finding.buffer.names == ("lost.short_lived",)


def test_buffers_out_of_order_are_refused() -> None:
    with pytest.raises(UsageError, match="order of address"):
        MemoryMap((buffer(BASE + 4096), buffer(BASE)))


def test_damage_without_its_buffer_is_refused() -> None:
    with pytest.raises(UsageError, match="finding #3 is on buffer 1 of 1"):
        MemoryMap((buffer(),), (damage(3, 1, BASE, BASE),))


def test_the_data_needs_no_matplotlib_and_the_drawing_no_pyplot() -> None:
    program = (
        "import sys, shadowgraph.render.plots.memory_map as m\n"
        "assert 'matplotlib' not in sys.modules\n"
        "m.memory_map(m.MemoryMap())\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("free", [True, False], ids=["freed", "held"])
def test_a_finding_on_a_whole_buffer_is_one_sentence(free: bool) -> None:
    with sg.debug() as debugger:
        owner = {"noise": torch.randn(64)}
        debugger.name("sampler", owner)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            kept = owner["noise"] + 1
        if free:
            del owner["noise"]
        with pytest.raises(sg.FreedInputError) if free else nullcontext():
            graph.replay()
        memory = MemoryMap.of(debugger)
    assert kept is not None
    marks = chart_of(memory).marks
    when = f"in replay 1 of {graph.model.name}"
    used = 'sampler["noise"], read by aten.add.Tensor (node 0)'
    assert list(marks["told"]) == ([f"#1 SG104 {used} {when}"] if free else [])
    assert list(marks["caption"]) == ([f"#1 {used}"] if free else [])
    said = [mark.text for row in bar_map(memory, lambda damage: "").rows for mark in row.marks]
    assert said == ([f"the whole buffer, read by aten.add.Tensor (node 0) {when}"] if free else [])
