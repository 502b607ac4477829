"""Bad input: a dying context, foreign allocators, no memory. One clear line each, and the program as without us.

What kills a context or needs another environment runs in a child process, as one of the functions called `child_...`;
it tells its results as one line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers_cuda import capture, fill, guarded, only, overflow, warm_kernels
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import shadowgraph as sg
from shadowgraph.demos.device import Unwatched

pytestmark = pytest.mark.gpu

HERE = Path(__file__).resolve().parent
RESULT = "RESULT "
LOST = "the device is lost"  # how a report says that the context died
FATAL = {"assert": 1 << 20, "illegal": -(1 << 40)}  # an index, and an offset in elements, that no kernel survives


class OwnError(Exception):
    """What a program raises after it has seen a CUDA error."""


def tell(**facts: Any) -> None:
    print(RESULT + json.dumps(facts), flush=True)


def run_child(name: str, *arguments: object, **environment: str) -> tuple[dict[str, Any], Any]:
    """Run a child function; what it told, and its completed process."""
    paths = [str(HERE), str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}
    code = f"import test_cuda_faults as faults; faults.child_{name}(*{arguments!r})"
    done = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, timeout=300)
    told = [line for line in done.stdout.splitlines() if line.startswith(RESULT)]
    assert len(told) == 1, f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return json.loads(told[0].removeprefix(RESULT)), done


def lines_with(text: str, *parts: str) -> list[str]:
    return [line for line in text.splitlines() if all(part in line for part in parts)]


# -- a context that dies -----------------------------------------------------------------------------------------------


def child_dies(kind: str, watched: bool, early: bool) -> None:
    """The second replay kills the context. An overflow comes before; with `early` a check sees it in good time."""
    from kernels_cuda import stray

    warm_kernels()
    seen = ""
    watching: Any = sg.debug(backend="cuda") if watched else nullcontext(Unwatched())
    try:
        with watching as debugger:
            table, where = guarded(debugger, 64), guarded(debugger, 1, dtype=torch.int64)
            debugger.name("batch", {"table": table, "where": where})
            body = (lambda: table[where] + 1) if kind == "assert" else (lambda: stray[(1,)](table, where))
            body()
            graph, _kept = capture(body)
            graph.replay()
            if watched:  # without guards it would hit whatever lies there
                overflow(table)
            if watched and early:
                debugger.check()
            where.fill_(FATAL[kind])
            graph.replay()
            try:
                torch.cuda.synchronize()
            except RuntimeError as error:
                seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                raise OwnError("the program's own") from error
    except BaseException as error:
        tell(error=f"{type(error).__name__}: {error}", seen=seen, **(what_is_left(debugger) if watched else {}))
        raise


def what_is_left(debugger: Any) -> dict[str, Any]:
    """What a debugger can still say, through its public surface."""
    report = debugger.report(quiet=True)
    return {
        "report": str(report),
        "json": report.to_json(),
        "findings": [[f.code, f.buffer.name, f.past_end] for f in debugger.findings],
        "buffers": [debugger.names.name_of(buffer)[0] for buffer in debugger.buffers],
        "graphs": [[graph.replays, len(graph.nodes)] for graph in debugger.graphs],
        "faults": debugger.facts().faults,
    }


@cache
def died(kind: str, watched: bool, early: bool) -> tuple[dict[str, Any], Any]:
    return run_child("dies", kind, watched, early)


@pytest.mark.parametrize("kind", FATAL)
def test_a_dying_context_is_the_programs_own_error_and_one_line_of_ours(kind: str) -> None:
    plain, alone = died(kind, False, True)
    told, done = died(kind, True, True)
    assert told["error"] == plain["error"] == "OwnError: the program's own"
    assert told["seen"] == plain["seen"]
    assert ("device-side assert" if kind == "assert" else "illegal memory access") in told["seen"]
    assert done.returncode == alone.returncode == 1
    assert "OwnError: the program's own" in done.stderr
    assert len(lines_with(told["report"], "shadowgraph", LOST)) == 1
    assert told["faults"] == {}, "a dead device is no fault of ours"
    assert not lines_with(done.stderr, "shadowgraph fault")


@pytest.mark.parametrize("kind", FATAL)
def test_what_was_on_the_host_survives_the_context(kind: str) -> None:
    told, _ = died(kind, True, True)
    assert told["findings"] == [["SG101", 'batch["table"]', 4]], "found before"
    assert lines_with(told["report"], "SUMMARY", 'batch["table"]')
    assert {'batch["table"]', 'batch["where"]'} <= set(told["buffers"]), "names and ledger"
    assert [replays for replays, _ in told["graphs"]] == [2]
    assert told["graphs"][0][1] >= 1, "the launches"
    assert json.loads(told["json"])["findings"][0]["code"] == "SG101"


@pytest.mark.parametrize("kind", FATAL)
def test_evidence_that_reached_the_host_in_time_is_not_lost(kind: str) -> None:
    """The check before the fatal replay ran; its result lies in pinned memory."""
    told, _ = died(kind, True, False)
    assert told["findings"] == [["SG101", 'batch["table"]', 4]]
    assert len(lines_with(told["report"], "shadowgraph", LOST)) == 1


# -- a capture that the program gets wrong -----------------------------------------------------------------------------


def child_bad_capture(watched: bool) -> None:
    """A host read inside a capture, which CUDA refuses; torch's allocator is not the same afterwards."""
    from shadowgraph.graphs.cuda import capture as cuda_capture

    warm_kernels()
    source = torch.ones(64, dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    watching: Any = sg.debug(backend="cuda") if watched else nullcontext(Unwatched())
    with watching as debugger:
        error = ""
        try:
            with torch.cuda.graph(graph):
                (source + 1).sum().item()
        except RuntimeError as refused:
            error = f"{type(refused).__name__}: {str(refused).splitlines()[0]}"
        torch.cuda.set_stream(torch.cuda.default_stream())  # torch leaves the capture's stream current
        left = {
            "modes": [type(mode).__name__ for mode in _get_current_dispatch_mode_stack()],
            "history": torch._C._cuda_isHistoryEnabled(),
            "capturing": cuda_capture.current() is not None,
        }
        found = []
        if watched:
            table = guarded(debugger, 64)
            overflow(table)
            found = [finding.past_end for finding in debugger.check()]
        tell(error=error, found=found, left=left, faults=debugger.facts().faults if watched else {})


def test_an_operation_that_a_capture_refuses() -> None:
    plain, _ = run_child("bad_capture", False)
    told, _ = run_child("bad_capture", True)
    assert "captur" in plain["error"]
    assert told["error"] == plain["error"]
    assert told["left"] == {"modes": ["EagerMode"], "history": False, "capturing": False}
    assert (told["found"], told["faults"]) == ([4], {}), "and checking goes on"


# -- memory that is not ours -------------------------------------------------------------------------------------------


def scratch_overflow(source: torch.Tensor) -> torch.Tensor:
    """Writes 4 bytes past a tensor of the capture, where torch's own rounding makes it harmless."""
    scratch = source + 1
    fill(scratch, 1)
    return scratch.sum()


def child_expandable() -> None:
    warm_kernels()
    with sg.debug(backend="cuda") as debugger:
        table = guarded(debugger, 64)
        graph, total = capture(lambda: scratch_overflow(table))
        graph.replay()
        overflow(table)
        graph.replay()
        findings = [[f.buffer.role, f.past_end] for f in debugger.check()]
        tell(
            total=int(total), findings=findings, report=str(debugger.report(quiet=True)), faults=debugger.facts().faults
        )


def test_expandable_segments() -> None:
    """Torch refuses a custom allocator beside them: such pools are left alone and said to be unguarded."""
    told, done = run_child("expandable", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    assert (done.returncode, told["total"], told["faults"]) == (0, sum(range(64)), {})
    assert ["static", 4] in told["findings"], "declared buffers are guarded all the same"
    assert ["pool", 4] in told["findings"] or lines_with(told["report"], "expandable"), told["report"]


def child_own_pool() -> None:
    pool = torch.cuda.MemPool()
    with sg.debug(backend="cuda") as debugger:
        with torch.cuda.use_mem_pool(pool):
            eager = torch.full((64,), 2, dtype=torch.int32, device="cuda")
        graph, out = capture(partial(torch.add, eager, 1), pool=pool.id)
        graph.replay()
        inside = {block["address"] for segment in torch.cuda.memory_snapshot(pool.id) for block in segment["blocks"]}
        tell(
            inside=[eager.data_ptr() in inside, out.data_ptr() in inside],
            handle=tuple(graph.pool()) == tuple(pool.id),
            values=out.tolist(),
            percent=debugger.coverage().percent,
            report=str(debugger.report(quiet=True)),
            faults=debugger.facts().faults,
        )
        del graph, out, eager  # the pool goes last


def test_a_mempool_of_the_programs_own_is_left_alone() -> None:
    told, done = run_child("own_pool")
    assert (done.returncode, told["values"], told["faults"]) == (0, [3] * 64, {})
    assert (told["inside"], told["handle"]) == ([True, True], True)
    assert told["percent"] == 0, "what the graph writes has no guards"
    assert lines_with(told["report"], "MemPool"), "and the report says whose memory it is"


# -- memory that runs out ----------------------------------------------------------------------------------------------


def test_the_guard_budget_is_used_up_by_static_buffers() -> None:
    with sg.debug(backend="cuda", layout="faithful", guard_memory=10_000, near_guard=256) as debugger:
        tables = [guarded(debugger, 1000) for _ in range(14)]
        overflow(tables[0])
        assert only(debugger.check()).past_end == 4, "the first still have guards"
        report = debugger.report(quiet=True)
    assert report.facts.guards_shrunk > 0
    assert report.facts.guards_dropped > 0
    assert len(lines_with(str(report), "guards:", "left out")) == 1
    assert not any(table.any() for table in tables)


def test_the_guard_budget_is_used_up_by_pools() -> None:
    source = torch.arange(64, dtype=torch.int32, device="cuda")
    with sg.debug(backend="cuda", guard_memory=1 << 20) as debugger:
        made = [capture(lambda: source * 2) for _ in range(3)]
        for graph, out in made:
            graph.replay()
            assert out.tolist() == [2 * i for i in range(64)]
        report = debugger.report(quiet=True)
    assert report.facts.left_alone["guard memory is used up"] >= 1
    assert len(lines_with(str(report), "guards:", "left out")) == 1
    assert (report.facts.findings, report.facts.faults) == ((), {})


def test_a_driver_error_inside_the_allocation_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    runtime, nbytes = cupy.cuda.runtime, 74 << 20  # larger than a slab, and asked for by nobody else
    refused: list[int] = []
    original = runtime.malloc

    def malloc(size: int) -> int:
        if size >= nbytes and not refused:
            refused.append(size)
            raise runtime.CUDARuntimeError(2)  # out of memory
        return int(original(size))

    source = torch.ones(nbytes // 4, device="cuda")
    with sg.debug(backend="cuda") as debugger:
        monkeypatch.setattr(runtime, "malloc", malloc)
        graph, out = capture(lambda: source * 2)
        monkeypatch.undo()
        graph.replay()
        assert bool((out == 2).all()), "plain memory did as well"
        report = debugger.report(quiet=True)
    assert refused, "the callback was refused once; if not, this shows nothing"
    assert report.facts.findings == ()
    assert report.facts.left_alone["cudaMalloc refused a guarded segment"] >= 1, "counted"
    assert lines_with(str(report), "guards:", "left out"), str(report)


# -- the end of the process --------------------------------------------------------------------------------------------


def child_ends(layout: str, cyclic: bool) -> None:
    """The process ends with graphs, tensors of their pools and a pool of the program's own still there."""
    warm_kernels()
    debugger = sg.install(backend="cuda", layout=layout)
    source = torch.arange(64, dtype=torch.int32, device="cuda")
    pool = torch.cuda.MemPool()
    kept: Any = [capture(lambda: source * 2), capture(lambda: source * 3, pool=pool.id), pool]
    for graph, _ in kept[:2]:
        graph.replay()
    if cyclic:
        kept.append(kept)
        sg.uninstall()
        capture(lambda: source * 4)
    else:
        sys.modules[__name__].kept = kept  # type: ignore[attr-defined]
    tell(values=[out.tolist()[1] for _, out in kept[:2]], findings=len(debugger.findings))


@pytest.mark.parametrize("layout", ["isolate", "faithful"])
@pytest.mark.parametrize("cyclic", [False, True])
def test_a_process_ends_as_it_would_without_us(layout: str, cyclic: bool) -> None:
    told, done = run_child("ends", layout, cyclic)
    assert told == {"values": [2, 3], "findings": 0}
    assert done.returncode == 0, done.stderr[-2000:]
    assert "shadowgraph" not in done.stderr
