"""SG115 on the host backend with pretended streams: what is reported, and what is not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

import pytest
import torch
from support.pretended_streams import MAIN, OTHER, SIDE, Streams, pretended

import shadowgraph as sg
from shadowgraph.checks.unordered_access.facts import Missing, UnorderedDetail
from shadowgraph.debugger import model_of
from shadowgraph.model.findings import Finding

ROWS = 64


class Program:
    """A graph that adds one to its input, which is refreshed before each replay."""

    def __init__(self, debugger: sg.Debugger) -> None:
        with debugger.guard():
            self.values = torch.zeros(ROWS)
        self.fresh = torch.arange(float(ROWS))
        debugger.name("program", self)
        self.graph = self.captured(lambda: self.values + 1)

    def captured(self, body: Callable[[], torch.Tensor]) -> sg.HostGraph:
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            self.result = body()
        return graph

    def refresh(self) -> None:
        self.values.copy_(self.fresh)


@pytest.fixture
def streams() -> Iterator[Streams]:
    with sg.debug(backend="host") as debugger, pretended() as made:
        made.debugger = debugger  # type: ignore[attr-defined]
        yield made


@pytest.fixture
def program(streams: Streams) -> Program:
    return Program(streams.debugger)  # type: ignore[attr-defined]


def findings(streams: Streams) -> tuple[Finding, ...]:
    debugger: sg.Debugger = streams.debugger  # type: ignore[attr-defined]
    return debugger.findings


def only(streams: Streams) -> tuple[Finding, UnorderedDetail]:
    (found,) = findings(streams)
    assert isinstance(found.detail, UnorderedDetail), found.message
    return found, found.detail


def line_of(function: Callable[..., object], text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(at for at, line in enumerate(lines) if text in line)


def test_a_copy_on_the_wrong_stream(streams: Streams, program: Program) -> None:
    for _ in range(3):
        streams.synchronize()
        with streams.on(SIDE):
            program.refresh()
        program.graph.replay()
    found, detail = only(streams)
    assert found.message == (
        "SG115 unordered access: aten.copy_.default writes program.values (float32[64]) on stream 0x51de, and nothing "
        f"orders that before the replay of {found.graph}, on the default stream, that reads it, while preparing replay "
        f"1 of {found.graph}"
    )
    assert (detail.missing, detail.write_stream, detail.replay_stream) == (Missing.REPLAY_AFTER_WRITE, SIDE, MAIN)
    assert found.bytes is not None
    assert (found.bytes.first, found.bytes.last, found.bytes.count) == (0, ROWS * 4 - 1, ROWS * 4)
    assert (found.phase, found.replay, found.confidence, found.occurrences) == ("prepare", 1, "high", 3)
    assert (found.culprit.name, found.culprit.line) == ("aten.copy_.default", line_of(Program.refresh, "copy_"))
    assert found.reader is not None
    assert found.reader.name == "aten.add.Tensor"


@pytest.mark.parametrize("how", ["wait_stream", "event", "synchronize", "stream.synchronize", "over a third stream"])
def test_its_fixed_twins(streams: Streams, program: Program, how: str) -> None:
    for _ in range(3):
        streams.synchronize()
        with streams.on(SIDE):
            program.refresh()
            event = streams.record(SIDE)
        if how == "wait_stream":
            streams.wait_stream(MAIN, SIDE)
        elif how == "event":
            streams.wait_event(MAIN, event)
        elif how == "over a third stream":
            streams.wait_event(OTHER, event)
            streams.wait_stream(MAIN, OTHER)
        else:
            streams.synchronize(SIDE if how == "stream.synchronize" else None)
        program.graph.replay()
    assert findings(streams) == ()


def test_an_event_from_before_the_write_orders_nothing(streams: Streams, program: Program) -> None:
    with streams.on(SIDE):
        event = streams.record(SIDE)
        program.refresh()
    streams.wait_event(MAIN, event)
    program.graph.replay()
    assert only(streams)[1].missing is Missing.REPLAY_AFTER_WRITE


def test_a_wait_the_wrong_way_round_orders_nothing(streams: Streams, program: Program) -> None:
    with streams.on(SIDE):
        program.refresh()
    streams.wait_stream(SIDE, MAIN)
    program.graph.replay()
    assert only(streams)[1].missing is Missing.REPLAY_AFTER_WRITE


def test_a_rewrite_behind_a_replay(streams: Streams, program: Program) -> None:
    for _ in range(3):
        with streams.on(SIDE):
            program.refresh()
        streams.wait_stream(MAIN, SIDE)
        program.graph.replay()
    found, detail = only(streams)
    assert found.message == (
        "SG115 unordered access: aten.copy_.default writes program.values (float32[64]) on stream 0x51de while replay "
        f"1 of {found.graph}, on the default stream, may still read it, while preparing replay 2 of {found.graph}"
    )
    assert (detail.missing, detail.reading, found.replay, found.occurrences) == (Missing.WRITE_AFTER_REPLAY, 1, 2, 2)


def test_the_fixed_twin_of_the_rewrite(streams: Streams, program: Program) -> None:
    for _ in range(3):
        streams.wait_stream(SIDE, MAIN)
        with streams.on(SIDE):
            program.refresh()
        streams.wait_stream(MAIN, SIDE)
        program.graph.replay()
    assert findings(streams) == ()


def test_both_orders_missing_are_one_finding(streams: Streams, program: Program) -> None:
    for _ in range(3):
        with streams.on(SIDE):
            program.refresh()
        program.graph.replay()
    found, detail = only(streams)
    assert (detail.missing, detail.reading, found.replay) == (Missing.BOTH, 1, 1)
    text = str(streams.debugger.report())  # type: ignore[attr-defined]
    assert "no wait of the default stream, or of the host, for stream 0x51de since the write" in text
    assert "no wait of stream 0x51de, or of the host, for the default stream between replay 1 and the write" in text


def test_double_buffers(streams: Streams, program: Program) -> None:
    """While one graph replays, the other one's input is refreshed on the side stream."""
    with streams.debugger.guard():  # type: ignore[attr-defined]
        second = torch.zeros(ROWS)
    graphs = [program.graph, program.captured(lambda: second * 2)]
    inputs, done = [program.values, second], [streams.record(MAIN), streams.record(MAIN)]
    for step in range(6):
        slot = step % 2
        streams.wait_event(SIDE, done[slot])
        with streams.on(SIDE):
            inputs[slot].copy_(program.fresh)
            ready = streams.record(SIDE)
        streams.wait_event(MAIN, ready)
        graphs[slot].replay()
        done[slot] = streams.record(MAIN)
    assert findings(streams) == ()


def test_double_buffers_without_the_wait_for_the_slot(streams: Streams, program: Program) -> None:
    with streams.debugger.guard():  # type: ignore[attr-defined]
        second = torch.zeros(ROWS)
    graphs, inputs = [program.graph, program.captured(lambda: second * 2)], [program.values, second]
    for step in range(4):
        with streams.on(SIDE):
            inputs[step % 2].copy_(program.fresh)
            ready = streams.record(SIDE)
        streams.wait_event(MAIN, ready)
        graphs[step % 2].replay()
    names = [model_of(graph).name for graph in graphs]  # type: ignore[union-attr]
    found = [(each.graph, each.detail.missing) for each in findings(streams)]  # type: ignore[union-attr]
    assert found == [(name, Missing.WRITE_AFTER_REPLAY) for name in names]


def test_other_bytes_than_the_graph_reads(streams: Streams, program: Program) -> None:
    """A slice beside the one that the graph was captured with; and the same program with a slice that overlaps."""
    half = ROWS // 2
    program.graph = program.captured(lambda: program.values[:half] + 1)
    with streams.on(SIDE):
        program.values[half:].zero_()
    program.graph.replay()
    assert findings(streams) == ()
    with streams.on(SIDE):
        program.values[half - 2 :].zero_()
    program.graph.replay()
    found, _ = only(streams)
    assert found.bytes is not None
    assert (found.bytes.first, found.bytes.last) == ((half - 2) * 4, half * 4 - 1)


def test_rows_of_a_table_that_the_graph_gathers_from(streams: Streams, program: Program) -> None:
    """A cache: pages of other requests are written while a graph reads its own. Written in full, it is a race."""
    with streams.debugger.guard():  # type: ignore[attr-defined]
        cache, pages = torch.zeros(16, 8), torch.arange(4)
    graph = program.captured(lambda: cache.index_select(0, pages))
    with streams.on(SIDE):
        cache.index_copy_(0, torch.arange(8, 12), torch.ones(4, 8))
    graph.replay()
    assert findings(streams) == ()
    with streams.on(SIDE):
        cache.zero_()
    graph.replay()
    found, _ = only(streams)
    assert (found.confidence, found.culprit.name) == ("medium", "aten.zero_.default")


def test_bytes_that_the_graph_overwrites_first(streams: Streams, program: Program) -> None:
    def body() -> torch.Tensor:
        program.values.fill_(3)
        return program.values + 1

    graph = program.captured(body)
    with streams.on(SIDE):
        program.refresh()
    graph.replay()
    assert findings(streams) == ()


def test_what_came_before_the_observation_is_ordered(streams: Streams, program: Program) -> None:
    with streams.on(SIDE):
        program.refresh()
        event = streams.record(SIDE)
    streams.order.begin()
    program.graph.replay()
    assert findings(streams) == ()
    streams.synchronize()
    with streams.on(SIDE):
        program.refresh()
    streams.wait_event(MAIN, event)  # it may have been recorded again unseen
    program.graph.replay()
    assert findings(streams) == ()


def test_a_stream_whose_handle_was_given_away(streams: Streams, program: Program) -> None:
    streams.order.expose(OTHER)
    with streams.on(OTHER):
        program.refresh()
    program.graph.replay()
    assert findings(streams) == ()


def test_one_stream(streams: Streams, program: Program) -> None:
    for stream in (MAIN, SIDE):
        streams.synchronize()
        with streams.on(stream):
            for _ in range(3):
                program.refresh()
                program.graph.replay()
    assert findings(streams) == ()


def test_without_streams_nothing_is_kept() -> None:
    with sg.debug(backend="host") as debugger:
        program = Program(debugger)
        program.refresh()
        program.graph.replay()
        assert debugger.findings == ()


def test_another_library_on_the_way(streams: Streams, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that also drives CUDA by another library may wait unseen."""
    monkeypatch.setitem(globals(), "deviceSynchronize", _foreign())
    with streams.on(SIDE):
        program.refresh()
    program.graph.replay()
    assert findings(streams) == ()


def _foreign() -> object:
    def deviceSynchronize() -> None:
        """Stands for a function of cupy."""

    deviceSynchronize.__module__ = "cupy_backends.cuda.api.runtime"
    return deviceSynchronize
