"""What rests in the steady state besides eager operators, and that it is there again afterwards."""

from __future__ import annotations

import gc
import linecache
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from playing import played
from programs import guarded, only, poke
from steady_state import PERIOD, QUIET, Reads, heard, is_watched, reader, sampled, touch, until_steady

import shadowgraph as sg
from shadowgraph.checks.rebound.bindings import Planned
from shadowgraph.checks.rebound.check import ReboundInputs
from shadowgraph.graphs.dispatch import host_reads
from shadowgraph.monitor.sampling import observation
from shadowgraph.tracking import writes


@pytest.fixture
def debugger(monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    with sampled(monkeypatch) as made:
        yield made


@pytest.fixture
def reads() -> Iterator[Reads]:
    with heard() as listener:
        yield listener


def test_reads_in_a_nap_are_not_told(debugger: sg.Debugger, reads: Reads) -> None:
    table = guarded(debugger, 8)
    graph = until_steady(debugger, table)
    before = reads.count
    assert table.tolist() == [0] * 8
    assert reads.count == before
    for _ in range(PERIOD):
        graph.replay()
    assert is_watched()
    table.tolist()
    assert reads.count == before + 1


def test_reads_in_a_nap_are_told_where_a_rule_is_declared(debugger: sg.Debugger, reads: Reads) -> None:
    table = guarded(debugger, 8)
    graph = until_steady(debugger, table)
    debugger.invariant(table, sg.index_range(0, 9))
    before = reads.count
    table.tolist()
    assert reads.count == before + 1, "the declaration ends the steady state"
    while not debugger.monitor.observation.unobserved:
        graph.replay()
    table.tolist()
    assert reads.count == before + 2


def test_a_debugger_that_stops_in_a_nap_leaves_reads_to_the_next(monkeypatch: pytest.MonkeyPatch, reads: Reads) -> None:
    monkeypatch.setattr(observation, "QUIET", 2)
    with played(monkeypatch, watch_eager="sampled") as first:
        until_steady(first, guarded(first, 8))
    with played(monkeypatch) as second:
        table = guarded(second, 8)
        before = reads.count
        table.tolist()
        assert reads.count == before + 1


def test_a_capture_of_another_thread_as_a_nap_begins_leaves_reads_on(
    debugger: sg.Debugger, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = guarded(debugger, 8)
    graph, work, rest = reader(table), debugger.monitor, host_reads.rest
    roused = []

    def meanwhile(on: bool) -> None:
        if on and not roused:
            roused.append(threading.Thread(target=work.observation.observe_all))
            roused[0].start()
            roused[0].join()
        rest(on)

    monkeypatch.setattr(host_reads, "rest", meanwhile)
    for _ in range(QUIET):
        graph.replay()
    assert roused, "invalid: no steady period began"
    assert not work.observation.unobserved
    before = reads.count
    table.tolist()
    assert reads.count == before + 1


def test_a_replay_that_ends_after_its_debugger_leaves_reads_to_the_next(
    monkeypatch: pytest.MonkeyPatch, reads: Reads
) -> None:
    monkeypatch.setattr(observation, "QUIET", 3)
    with played(monkeypatch, watch_eager="sampled") as first:
        table = guarded(first, 8)
        graph = reader(table)
        graph.replay()
        graph.replay()
    first.monitor.observation.replay_ended(graph.model.serial)
    assert first.monitor.observation.unobserved, "invalid: no steady period began"
    with played(monkeypatch) as second:
        other = guarded(second, 8)
        before = reads.count
        other.tolist()
        assert reads.count == before + 1


def test_a_debugger_that_starts_again_is_awake(debugger: sg.Debugger) -> None:
    until_steady(debugger, guarded(debugger, 8))
    debugger.stop()
    debugger.start()
    assert not debugger.monitor.observation.unobserved
    assert is_watched()


def test_what_a_launch_wrote_is_not_worked_out_unless_somebody_asks(
    debugger: sg.Debugger, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = guarded(debugger, 8)
    graph, asked, write_of = until_steady(debugger, table), [], writes.write_of

    def noted(*args: Any, **kwargs: Any) -> writes.Write:
        asked.append(args)
        return write_of(*args, **kwargs)

    monkeypatch.setattr(writes, "write_of", noted)
    for _ in range(3):
        touch(table)
        assert len(debugger.monitor.context.writes) == 1
        graph.replay()
    assert asked == []


@pytest.mark.parametrize("watched", [False, True])
def test_after_a_resume_in_a_nap_nobody_who_was_seen_is_accused(debugger: sg.Debugger, watched: bool) -> None:
    table = guarded(debugger, 8)
    debugger.invariant(table, sg.index_range(0, 9))
    if watched:
        debugger.watch(table)
    graph = until_steady(debugger, table)
    other = threading.Event(), threading.Event()

    def rests() -> None:  # so that not all is seen again at once
        with sg.debugger.eager.EagerMode(debugger._allocator, debugger.monitor.context.ledger.holds):
            sg.debugger.eager.follow(True)
            other[0].set()
            other[1].wait(30)
            sg.debugger.eager.follow(False)

    thread = threading.Thread(target=rests)
    thread.start()
    assert other[0].wait(30), "invalid: the other thread has ended"
    try:
        debugger.pause()
        debugger.resume()
        assert debugger.monitor.observation.incomplete, "invalid: all is seen"
        touch(table)  # keeps the rule
        poke(table, 0, 4, 99)  # which nobody sees
        graph.replay()
        found = only(debugger.check())
    finally:
        other[1].set()
        thread.join()
    assert (found.code, found.culprit.name) == ("SG109", None)


class Owner:
    """Of a buffer that a graph was captured with."""

    buffer: torch.Tensor


def test_a_plan_from_before_a_nap_says_nothing_after_it(debugger: sg.Debugger) -> None:
    """Into other memory, for an eager run say; those of the steady period, which are not noted, were right."""
    table, scratch, elsewhere = (guarded(debugger, 8) for _ in range(3))
    owner = Owner()
    owner.buffer = table
    graph, work = reader(table), debugger.monitor
    graph.replay()  # once more than the other one's first replay leaves it before the steady state
    other, rebound = reader(elsewhere), work.checks[ReboundInputs]
    assert rebound.bind(graph.model, owner, "buffer", table)

    def plan(into: torch.Tensor) -> None:
        if not work.observation.incomplete:
            rebound.plan(owner, Planned(next(work.context.clock), planned_into={"buffer": into.data_ptr()}))

    for _ in range(QUIET - 1):
        plan(table)
        graph.replay()
    plan(scratch)
    other.replay()
    assert work.observation.unobserved
    for _ in range(PERIOD):
        plan(table)
        graph.replay()
    assert not work.observation.incomplete
    graph.replay()
    debugger.check()
    assert (debugger.findings, debugger.notes) == ((), ())


class Odd(torch.Tensor):
    """Refuses to say where it is."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "is_cuda" in str(getattr(func, "__self__", "")):
            raise NotImplementedError("is_cuda")
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("of_host_memory", [True, False])
def test_what_a_subclass_raises_when_we_look_is_not_the_programs(reads: Reads, of_host_memory: bool) -> None:
    odd = torch.arange(3).as_subclass(Odd)
    with pytest.raises(NotImplementedError):
        assert odd.is_cuda, "invalid: it says so"
    host_reads.install(of_host_memory)
    try:
        assert odd.tolist() == [0, 1, 2]
    finally:
        host_reads.uninstall(of_host_memory)


def test_a_kernel_that_was_launched_keeps_nothing_of_its_program() -> None:
    pytest.importorskip("triton")
    from triton.runtime.jit import JITFunction

    from shadowgraph.graphs.triton import cuda as triton_cuda

    source = "def kernel(x, n):\n    pass\n"
    linecache.cache["<a program>"] = len(source), None, source.splitlines(True), "<a program>"

    class Large:
        pass

    space: dict[str, Any] = {"large": Large(), "__name__": "a_program"}
    exec(compile(source, "<a program>", "exec"), space)
    large, kernel = weakref.ref(space["large"]), JITFunction(space["kernel"])
    assert triton_cuda._describe(kernel, (1, 2), {}, (1,)).name == "kernel"
    del space, kernel
    gc.collect()
    assert large() is None
