"""Fences on a device: memory of the driver that ends where nothing is mapped. What crosses one loses its context, so
that runs in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from helpers_cuda import capture, fill, only, overflow, underflow, warm_kernels

import shadowgraph as sg
from shadowgraph.common.errors import FenceError
from shadowgraph.common.finalizer_safe_lock import run_deferred
from shadowgraph.dumps.reader import read_dump
from shadowgraph.tracking.fences import NO_ROOM
from shadowgraph.wrap.folder.reader import Run, read_run

pytestmark = pytest.mark.gpu
HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "programs" / "fenced.py"
RUNNER = "in:__main__:Runner.__init__"
PLACE = f"in:{__name__}:made"


def made(count: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.zeros(count, dtype=dtype, device="cuda")


@dataclass
class Wrapped:
    code: int
    out: str
    err: str
    folder: Path

    @property
    def run(self) -> Run:
        return read_run(self.folder)


def environment() -> dict[str, str]:
    paths = [str(HERE), str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def fenced(folder: Path, how: str, over: int, *options: str, where: str = RUNNER) -> Wrapped:
    run = folder / "run"
    words = [sys.executable, "-m", "shadowgraph", "wrap", "--run-dir", str(run), "--fence", where, *options, "--"]
    done = subprocess.run(
        [*words, sys.executable, str(PROGRAM), how, str(over)], cwd=folder, capture_output=True, text=True,
        timeout=300, env=environment(),
    )  # fmt: skip
    return Wrapped(done.returncode, done.stdout, done.stderr, run)


@pytest.mark.parametrize("how", ["prepare", "replay", "read"])
def test_an_access_past_the_end_loses_the_context_there(how: str, tmp_path: Path) -> None:
    alone = [sys.executable, str(PROGRAM), how, "16"]
    plain = subprocess.run(alone, capture_output=True, text=True, timeout=300, env=environment())
    assert plain.returncode == 0, f"invalid: the program dies without a fence: {plain.stderr}"
    done = fenced(tmp_path, how, 16)
    assert done.code != 0, done.err
    assert done.code != FenceError.exit_code, done.err
    facts = done.run.merged()
    assert {fence.name: fence.slack for fence in facts.fences}.get("runner.kv_indices") == 0, done.err
    assert "illegal memory access" in done.err
    assert facts.lost is not None, done.err
    (early,) = [path for path in done.run.dumps if path.name.endswith("-fence.dump")]
    with read_dump(early) as dump:
        assert dump.facts().lost is None
    cores = sorted(path.name for path in done.folder.glob("gpu-core-*"))
    said = done.run.manifest.get("gpu_cores")
    assert said, "invalid: the driver wrote no core dump"
    assert len(said) == len(cores)
    for line in said:  # with cuda-gdb, the kernel and its line; a store may be reported when its kernel has ended
        kernel = "double" if how == "read" else "fill"
        assert "open it with cuda-gdb" in line or kernel in line or (how != "read" and "had ended" in line), line


@pytest.mark.parametrize("how", ["prepare", "replay", "read"])
def test_a_program_that_stays_inside_runs_as_without(how: str, tmp_path: Path) -> None:
    alone = [sys.executable, str(PROGRAM), how, "0"]
    plain = subprocess.run(alone, capture_output=True, text=True, timeout=300, env=environment())
    assert plain.returncode == 0, f"invalid: {plain.stderr}"
    done = fenced(tmp_path, how, 0)
    assert (done.code, done.out) == (0, plain.stdout), done.err
    facts = done.run.merged()
    assert (facts.findings, facts.faults, facts.lost) == ((), {}, None)
    assert {fence.nbytes for fence in facts.fences} == {256, 32}
    assert not list(done.folder.glob("gpu-core-*"))


def test_findings_elsewhere_are_reported_as_ever(tmp_path: Path) -> None:
    line = next(n for n, text in enumerate(PROGRAM.read_text().splitlines(), 1) if "self.kv_indices =" in text)
    done = fenced(tmp_path, "elsewhere", 2, "--error-exitcode", "9", where=f"{PROGRAM}:{line}")
    assert done.code == 9, done.err
    (found,) = done.run.merged().findings
    assert (found.code, found.buffer.name, found.past_end) == ("SG101", "runner.page_table", 8)


def test_it_is_a_static_buffer_as_any() -> None:
    warm_kernels()
    with sg.debug(backend="cuda", fence=PLACE) as debugger:
        rows = made(64)
        (buffer,) = [each for each in debugger.buffers if each.start == rows.data_ptr()]
        assert (buffer.fence, buffer.tail_guard, buffer.exact) == (0, 0, True)
        assert rows.data_ptr() % 16 == 0
        assert not debugger.monitor.allocator.may_be_unmapped((buffer.range,))
        graph, _kept = capture(lambda: rows.add_(1))
        fill(rows)
        graph.replay()
        assert rows.tolist() == list(range(1, 65))
        assert debugger.check() == ()
        assert debugger.coverage().exact == debugger.coverage().written
        underflow(rows, 2)
        graph.replay()
        found = only(debugger.check())
        assert (found.code, found.bytes.first, found.bytes.last) == ("SG101", -8, -1)
    assert not debugger.facts().faults


def test_bytes_up_to_the_fence_keep_a_guard() -> None:
    warm_kernels()
    with sg.debug(backend="cuda", fence=PLACE) as debugger:
        rows = made(5)
        (buffer,) = [each for each in debugger.buffers if each.start == rows.data_ptr()]
        assert (buffer.fence, buffer.tail_guard) == (12, 12)
        overflow(rows, 2)
        found = only(debugger.check())
        assert (found.code, found.past_end, found.buffer.nbytes) == ("SG101", 8, 20)
    assert not debugger.facts().faults


def test_freed_memory_is_used_again() -> None:
    with sg.debug(backend="cuda", fence=PLACE) as debugger:
        spans = debugger.monitor.allocator.fences
        assert spans is not None
        rows = made(1000)
        rows.fill_(1)
        mapped = spans.mapped
        for _ in range(20):
            del rows
            run_deferred()
            rows = made(1000)
            assert int(rows.sum()) == 0
            rows.fill_(1)
        assert spans.mapped <= mapped + 2 * spans.pages.granule
    assert not debugger.facts().faults


def test_no_room_is_told_and_a_guard_stands_instead() -> None:
    with sg.debug(backend="cuda", fence=PLACE, guard_memory=1 << 20) as debugger:
        rows = made(77)  # a size of no other test here, whose memory would be used again
        assert [each.fence for each in debugger.buffers if each.start == rows.data_ptr()] == [-1]
    assert debugger.facts().stepped_aside == {f"fences not laid: {NO_ROOM}": 1}
