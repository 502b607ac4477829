"""Check nodes of pieces that are disabled and enabled, with a driver that is played."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.graphs.cuda import check_nodes
from shadowgraph.graphs.cuda.check_nodes import CheckNodes
from shadowgraph.graphs.cuda.driver import DriverError
from shadowgraph.model.graphs import Graph
from shadowgraph.tracking import passing, steps

HEAD, TAIL, EXECUTABLE, COUNT, STREAM = 11, 12, 77, 4096, 5


class PlayedDriver:
    """Notes what is called; refuses what it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.refused: set[tuple[int, bool]] = set()
        self.captured: int | None = None  # graph that the stream captures into

    def capturing(self, stream: int) -> int | None:
        assert stream == STREAM
        return self.captured

    def enable(self, executable: int, node: int, on: bool) -> None:
        if (node, on) in self.refused:
            raise DriverError("cuGraphNodeSetEnabled: CUDA_ERROR_INVALID_VALUE (1)")
        self.calls.append(("enable", executable, node, on))

    def set_words(self, address: int, words: tuple[int, int], stream: int) -> None:
        self.calls.append(("set", address, *words, stream))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedDriver]:
    played = PlayedDriver()
    monkeypatch.setattr(check_nodes, "driver", lambda: played)
    monkeypatch.setattr(check_nodes, "relaxed_capture", nullcontext)
    graph_class = SimpleNamespace(raw_cuda_graph_exec=lambda graph: EXECUTABLE)
    monkeypatch.setattr(torch._C, "_CUDAGraph", graph_class, raising=False)
    forget()
    yield played
    passing.let(0)
    forget()


def forget() -> None:
    """Nothing was learnt from graphs of other tests."""
    steps.start_over()
    steps._pieces.clear()
    steps._starts.clear()


def made(live: bool = True) -> CheckNodes:
    watches: Any = SimpleNamespace(live=1, stream=lambda: STREAM, current=nullcontext)
    watches.count_of = lambda serial: COUNT if live else None
    return CheckNodes(watches, SimpleNamespace())  # type: ignore[arg-type]


def learnt(count: int = 6) -> list[Graph]:
    """Pieces whose order is known, none of which was switched yet."""
    graphs = [Graph(serial, f"graph#{serial}") for serial in range(1, count + 1)]
    for graph in graphs:
        graph.checks_itself, graph.check_nodes = True, (HEAD, TAIL)
    for graph in (*graphs, *graphs):
        graph.replays += 1
        assert not steps.begins(graph)
    passing.let(1 << 60)
    graphs[0].replays += 1
    steps.begins(graphs[0])
    graphs[1].replays += 1
    assert steps.begins(graphs[1])
    return graphs


def test_both_nodes_are_disabled(driver: PlayedDriver) -> None:
    _, piece, *_ = learnt()
    made().switch(None, piece, False, piece.replays)
    assert driver.calls == [("enable", EXECUTABLE, HEAD, False), ("enable", EXECUTABLE, TAIL, False)]
    assert not steps.checks(piece)


def test_a_count_goes_on_from_the_hosts_before_both_are_enabled(driver: PlayedDriver) -> None:
    _, piece, *_ = learnt()
    made().switch(None, piece, False, piece.replays)
    driver.calls.clear()
    piece.replays = (3 << 32) + 8
    made().switch(None, piece, True, piece.replays)
    assert driver.calls == [
        ("set", COUNT, 7, 3, STREAM),
        ("enable", EXECUTABLE, HEAD, True),
        ("enable", EXECUTABLE, TAIL, True),
    ]
    assert steps.checks(piece)


@pytest.mark.parametrize("refused", [HEAD, TAIL])
def test_a_piece_whose_nodes_cannot_be_disabled_keeps_both(driver: PlayedDriver, refused: int) -> None:
    _, piece, *_ = learnt()
    driver.refused.add((refused, False))
    made().switch(None, piece, False, piece.replays)
    state: dict[int, bool] = {}
    for _, _, node, on in driver.calls:
        state[node] = on
    assert False not in state.values()
    assert steps.checks(piece)
    assert piece.checks_itself
    assert "1 graph in no step: cuGraphNodeSetEnabled" in str(steps.sentence())


def test_what_cannot_be_enabled_again_is_checked_by_launches(driver: PlayedDriver) -> None:
    _, piece, *_ = learnt()
    made().switch(None, piece, False, piece.replays)
    driver.refused.add((TAIL, True))
    made().switch(None, piece, True, piece.replays)
    assert not piece.checks_itself
    assert not steps.checks(piece)


def test_a_graph_that_the_program_may_change_is_left_alone(driver: PlayedDriver) -> None:
    _, piece, *_ = learnt()
    made().switch(None, piece, False, piece.replays, "the program holds its executable form")
    assert driver.calls == []
    assert steps.checks(piece)
    assert "the program holds its executable form" in str(steps.sentence())


def test_torch_without_the_executable_graph(driver: PlayedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    _, piece, *_ = learnt()
    monkeypatch.setattr(torch._C, "_CUDAGraph", SimpleNamespace())
    made().switch(None, piece, False, piece.replays)
    assert steps.checks(piece)
    assert "raw_cuda_graph_exec" in str(steps.sentence())


def test_nothing_is_switched_on_a_stream_that_captures(driver: PlayedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    _, piece, *_ = learnt()
    monkeypatch.setattr(driver, "captured", 99)
    made().switch(None, piece, False, piece.replays)
    assert driver.calls == []
    assert steps.checks(piece)
    assert steps.sentence() is None


def test_a_replay_that_no_step_covers_does_not_pass_until_its_nodes_are_enabled(
    driver: PlayedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = learnt()
    piece, nodes = pieces[1], made()
    nodes.switch(None, piece, False, piece.replays)
    assert steps.settled(piece), "its step is checked"
    steps.dropped(pieces[4])
    assert not steps.settled(piece)
    monkeypatch.setattr(driver, "captured", 99)
    nodes.switch(None, piece, True, piece.replays)
    assert not steps.settled(piece)
    monkeypatch.setattr(driver, "captured", None)
    nodes.switch(None, piece, True, piece.replays)
    assert steps.settled(piece)


def test_an_error_in_the_tables_does_not_reach_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr(steps, "_alone", fail)
    before = internal_errors.total
    assert not steps.begins(Graph(4711, "graph#4711"))
    assert internal_errors.total == before + 1


def test_a_replay_does_not_wait_for_a_thread_that_reads_the_graph(driver: PlayedDriver) -> None:
    _, piece, *_ = learnt()
    held, over = threading.Event(), threading.Event()

    def read() -> None:
        with piece.reading:
            held.set()
            over.wait(30)

    reader = threading.Thread(target=read)
    reader.start()
    assert held.wait(30)
    made().switch(None, piece, False, piece.replays)
    assert driver.calls == []
    assert steps.checks(piece)
    over.set()
    reader.join()
    made().switch(None, piece, False, piece.replays)
    assert not steps.checks(piece)
    assert piece.reading.acquire(blocking=False)


def test_the_next_debugger_counts_on_where_the_device_has_not_counted_all(
    driver: PlayedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, piece, *_ = learnt()
    made().switch(None, piece, False, piece.replays)
    piece.check_nodes, piece.replays = (), 500
    checks = made()
    checks._counts = {piece.serial: (2, 2)}
    assert checks.adopt(None, piece)
    assert piece.replays == 500
