"""On a device, what a program writes past a buffer's end is still there when it reads it: it breaks no more than it
would without a debugger. The guard is armed again just before the same launch, or the same graph, runs once more."""

from __future__ import annotations

import ctypes

import pytest
import torch
from playing import played
from programs import guarded, only, poke, reader_of

import shadowgraph as sg
from shadowgraph.monitor import rearming

LANES = 66
WRITTEN = (7 + 64).to_bytes(4, "little") + (7 + 65).to_bytes(4, "little")  # `fill` counts up from its value


def peek(tensor: torch.Tensor, offset: int, nbytes: int) -> bytes:
    """Bytes relative to a tensor's start, as a kernel that runs past its end reads them."""
    return bytes((ctypes.c_uint8 * nbytes).from_address(tensor.data_ptr() + offset))


def piece(seen: list[bytes], table: torch.Tensor) -> sg.HostGraph:
    """A graph that was given the table and reads 8 bytes past its end."""
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        table.add_(0)
        graph.call(lambda: seen.append(peek(table, 4 * table.numel(), 8)), writes=())
    return graph


def run_past(table: torch.Tensor, value: int) -> None:
    from shadowgraph.demos.kernels import fill

    fill[(1,)](table, 0, LANES, value, BLOCK=256)


def test_two_graphs_find_what_one_prepare_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    with played(monkeypatch) as debugger:
        table = guarded(debugger, LANES - 2)
        debugger.name("table", table)
        first, second = piece(seen, table), piece(seen, table)
        for _ in range(3):
            run_past(table, 7)
            for graph in (first, second, second):
                graph.replay()
        found = only(debugger.check())
    assert seen == [WRITTEN] * 9, "each replay read what prepare wrote"
    assert (found.code, found.past_end, found.phase, found.replay) == ("SG101", 8, "prepare", 1)
    assert found.culprit.name == "fill"
    assert found.occurrences == 3, "once for each prepare, the bytes being the same each time"


def test_a_prepare_that_stops_doing_it_is_not_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    with played(monkeypatch) as debugger:
        table = guarded(debugger, LANES - 2)
        graph = piece(seen, table)
        run_past(table, 7)
        for _ in range(3):
            graph.replay()
            table.fill_(3)
        found = only(debugger.check())
    assert found.occurrences == 1
    assert seen == [WRITTEN] * 3


def test_a_replay_that_does_it_is_counted_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch, locate="off") as debugger:
        table = guarded(debugger, 64)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            table.add_(1)
            graph.call(lambda: poke(table, 256, 4), writes=())
        held = []
        for _ in range(5):
            graph.replay()
            debugger.check()
            held.append(peek(table, 256, 4))
        found = only(debugger.findings)
    assert held == [b"\x07" * 4] * 5, "it stays until the graph replays again"
    assert (found.phase, found.occurrences) == ("replay", 5)


def test_of_two_launches_that_may_have_done_it_only_the_first_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    with played(monkeypatch, locate="off") as debugger:
        table = guarded(debugger, LANES - 2)
        graph = piece(seen, table)
        for _ in range(4):
            run_past(table, 7)
            table.add_(1)
            graph.replay()
            debugger.check()
        found = only(debugger.findings)
    assert seen == [WRITTEN] * 4, "the second did not wipe out what the first wrote"
    assert found.occurrences == 4


@pytest.mark.parametrize("locate", ["off", "auto"])
def test_what_others_wrote_before_is_looked_at_before_the_guard_is_armed(
    monkeypatch: pytest.MonkeyPatch, locate: str
) -> None:
    with played(monkeypatch, locate=locate) as debugger:
        table = guarded(debugger, LANES - 2)
        graph, _kept = reader_of(table)
        for step in range(8):
            if step == 5:
                poke(table, 4 * table.numel() + 40, 4)  # by code that nobody sees
            run_past(table, 7)
            graph.replay()
            debugger.check()
        far = [one for one in debugger.findings if one.bytes.last == 4 * table.numel() + 43]
    assert len(far) == 1, "it was there for the time between two checks only"


def test_what_is_known_between_two_launches_does_not_let_the_second_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    with played(monkeypatch, locate="off") as debugger:
        table = guarded(debugger, LANES - 2)
        graph = piece(seen, table)
        for _ in range(3):
            run_past(table, 7)
            debugger.monitor.drain()  # it becomes known when the first has run already
            table.add_(1)
            graph.replay()
        debugger.check()
    assert seen == [WRITTEN] * 3


def test_a_launch_elsewhere_does_not_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    with played(monkeypatch, locate="off") as debugger:
        table, other = guarded(debugger, LANES - 2), guarded(debugger, LANES)
        graph = piece(seen, table)
        run_past(table, 7)
        for _ in range(3):
            graph.replay()
            debugger.check()
            run_past(other, 7)
    assert seen == [WRITTEN] * 3


def test_a_guard_that_is_gone_is_not_armed_over_what_took_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch, locate="off") as debugger:
        table = guarded(debugger, LANES - 2)
        seen: list[bytes] = []
        graph = piece(seen, table)
        run_past(table, 7)
        graph.replay()
        debugger.check()
        (start,) = debugger.monitor._rearming.waiting
        address = table.data_ptr()
        graph.reset()
        del graph, table
        with debugger.guard():
            taker = torch.zeros(LANES, dtype=torch.int32)
        assert taker.data_ptr() == address, "the block must be reused"
        assert address < start < address + taker.nbytes
        from shadowgraph.demos.kernels import fill

        fill[(1,)](taker, 0, 4, 9, BLOCK=256)
        assert not debugger.monitor._rearming.waiting
        assert taker.tolist() == [9, 10, 11, 12] + [0] * (LANES - 4)


def test_after_a_pause_nothing_is_armed_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch, locate="off") as debugger:
        table = guarded(debugger, LANES - 2)
        seen: list[bytes] = []
        graph = piece(seen, table)
        run_past(table, 7)
        graph.replay()
        debugger.check()
        debugger.pause()
        debugger.resume()
        assert not debugger.monitor._rearming.waiting, "its guard was armed with all the others"


def test_those_that_wait_for_ever_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rearming, "_MOST", 2)
    with played(monkeypatch, locate="off") as debugger:
        tables = [guarded(debugger, LANES - 2) for _ in range(3)]
        graph, _kept = reader_of(tables[0])
        for table in tables:
            run_past(table, 7)
            graph.replay()
            debugger.check()
        run_past(tables[2], 7)
        graph.replay()
        debugger.check()
        told = [one.occurrences for one in debugger.findings]
    assert told == [1, 1, 2], "the latest is told of again"
