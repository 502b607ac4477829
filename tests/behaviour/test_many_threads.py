"""Checks in one thread while others allocate and free: nothing of the program's is written, nobody waits for ever."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import shadowgraph as sg
from shadowgraph.checks.out_of_bounds.check import OutOfBounds
from shadowgraph.model.findings import Finding

ROUNDS = 60


@pytest.fixture(autouse=True)
def eager_switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def meanwhile(work: Any) -> tuple[threading.Thread, threading.Event]:
    done = threading.Event()

    def run() -> None:
        try:
            for _ in range(ROUNDS):
                work()
        finally:
            done.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, done


def test_blocks_that_change_hands_under_a_check_are_not_written() -> None:
    """Tenants of one block have guards at different places; a check that knew the old ones must not arm them anew."""
    changed: list[int] = []
    with sg.debug(backend="host") as debugger:
        with debugger.guard():
            kept = [torch.zeros(64) for _ in range(50)]

        def work() -> None:
            for size in (10, 100, 128, 57):
                with debugger.guard():
                    tensor = torch.full((size,), 7, dtype=torch.int32)
                changed.append(int(tensor.ne(7).sum()))
                del tensor

        thread, done = meanwhile(work)
        checks = 0
        while not done.is_set():
            debugger.check()
            checks += 1
        thread.join()
        assert debugger.check() == ()
        assert checks > 0
    assert len(changed) == 4 * ROUNDS
    assert not any(changed)
    assert not any(tensor.any() for tensor in kept)


def test_who_hears_of_a_finding_may_ask_for_the_report_while_others_allocate() -> None:
    """As a wrapped process does for its first dump, and a capture that left its buffers to be entered."""
    heard: list[Finding] = []
    with sg.debug(backend="host") as debugger:

        def hear(finding: Finding) -> None:
            debugger.facts()
            heard.append(finding)

        debugger.adapter.subscribe_findings(hear)

        def work() -> None:
            with debugger.guard():
                tensor = torch.zeros(100, dtype=torch.int32)
            ctypes.c_int32.from_address(tensor.data_ptr() + 400).value = 7
            del tensor  # the next tenant of the block makes its guards be looked at a last time

        thread, done = meanwhile(work)
        while not done.is_set():
            debugger._allocator.guards.waiting.append(lambda: None)
            debugger.monitor.flush("now")
        thread.join(timeout=60)
        assert not thread.is_alive()
        debugger.check()
    assert sum(finding.occurrences for finding in debugger.findings) == ROUNDS, "and none of them is lost"
    assert heard


def test_a_fault_in_one_finding_loses_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with sg.debug(backend="host") as debugger:
        with debugger.guard():
            tables = [torch.zeros(100, dtype=torch.int32) for _ in range(5)]
        for table in tables:
            ctypes.c_int32.from_address(table.data_ptr() + 400).value = 7
        broken = debugger.monitor.checks[OutOfBounds].broken_guard
        seen: list[int] = []

        def failing(evidence: Any, checkpoint: Any) -> None:
            seen.append(1)
            if len(seen) == 1:
                raise KeyError("ours")
            broken(evidence, checkpoint)

        monkeypatch.setattr(debugger.monitor.checks[OutOfBounds], "broken_guard", failing)
        assert len(debugger.check()) == 4
        assert sum(debugger.facts().faults.values()) == 1


def test_in_sync_mode_the_first_is_raised_and_all_are_kept() -> None:
    with sg.debug(backend="host", sync=True) as debugger:
        with debugger.guard():
            tables = [torch.zeros(100, dtype=torch.int32) for _ in range(5)]
        for table in tables:
            ctypes.c_int32.from_address(table.data_ptr() + 400).value = 7
        with pytest.raises(sg.FindingsError):
            debugger.check()
        assert len(debugger.findings) == 5


@pytest.mark.slow
def test_freed_eager_buffers_leave_no_memory_behind() -> None:
    """Of as many sizes as a server sees lengths, each freed at once."""
    with sg.debug(backend="host", guard_eager="auto") as debugger:
        arena = debugger._allocator.arena
        before, guards = arena.used, debugger._policy.used
        for length in range(1, 2500):
            torch.zeros(length * 512)
        assert arena.used - before < 256 << 20, "they had 6 GB in all"
        assert debugger._policy.used - guards < 128 << 20
        assert len(debugger.monitor.guards()) < 1200
        kept = torch.zeros(1000)
        assert debugger._allocator.ledger.owner(kept.data_ptr(), kept.data_ptr() + 4000).guarded  # type: ignore[union-attr]


def test_without_guard_memory_the_program_has_its_own_allocator() -> None:
    with sg.debug(backend="host", guard_eager="auto", guard_memory=0) as debugger:
        tensor = torch.zeros(1000)
        assert tensor.untyped_storage().resizable()
        assert debugger.facts().guards_dropped > 0


def test_what_locals_gave_the_program_stays() -> None:
    with sg.debug(backend="host", guard_eager="auto") as debugger:
        table = torch.zeros(100, dtype=torch.int32)
        held = locals()
        ctypes.c_int32.from_address(table.data_ptr() + 400).value = 7
        (found,) = debugger.check()
        assert found.buffer.name == "table"
    assert held["table"] is table


def test_a_mapped_file_stays_mapped(tmp_path: Any) -> None:
    path = tmp_path / "values"
    path.write_bytes(bytes(16))
    with sg.debug(backend="host", guard_eager="auto"):
        torch.from_file(str(path), shared=True, size=4, dtype=torch.int32).fill_(7)
    assert path.read_bytes() == (7).to_bytes(4, sys.byteorder) * 4
