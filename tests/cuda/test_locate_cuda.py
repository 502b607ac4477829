"""The culprit of real CUDA graphs: found in the replay after the damage, with its kernel, line and arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers_cuda import BLOCK, capture, captured, fill, guarded, name_of, only, overflow, warm_kernels

import shadowgraph as sg
from shadowgraph.model.findings import Status

pytestmark = pytest.mark.gpu

LAYOUTS = ["isolate", "faithful"]


@pytest.fixture(autouse=True)
def warm() -> None:
    warm_kernels()


@pytest.fixture(params=LAYOUTS)
def watching(request: Any) -> Iterator[Any]:
    with sg.debug(backend="cuda", layout=request.param, infer=False) as debugger:
        yield debugger
        assert debugger.facts().faults == {}


def steps(graph: torch.cuda.CUDAGraph, prepare: Callable[[], None] = lambda: None, count: int = 5) -> None:
    """As a server does: it waits for each step's results before it prepares the next."""
    for _ in range(count):
        prepare()
        graph.replay()
        torch.cuda.synchronize()


def line_of(body: Callable[..., Any], text: str) -> int:
    """The line of a function that holds a text."""
    lines, first = inspect.getsourcelines(body)
    (place,) = [place for place, line in enumerate(lines) if text in line]
    return first + place


def test_the_guilty_node_of_129(watching: Any) -> None:
    buffers = [guarded(watching, 1024) for _ in range(64)]
    watching.name("buffers", buffers)

    def body() -> None:
        for buffer in buffers:
            buffer.add_(1)
        put_past(buffers[7])
        for buffer in buffers:
            buffer.mul_(2)

    def put_past(buffer: torch.Tensor) -> None:
        fill(buffer, 10) if buffer.numel() + 10 <= BLOCK else overflow(buffer, 10)

    graph, _ = capture(body)
    graph.replay()
    first = only(watching.check())
    assert (first.revision, first.culprit.status) == (1, Status.CANDIDATE)
    graph.replay()
    found = only(watching.check())
    culprit = found.culprit
    assert (found.id, found.code, found.replay, found.past_end) == (first.id, "SG101", 1, 40)
    assert found.revision > first.revision
    assert (culprit.status, culprit.name, culprit.node, culprit.seen_in) == (Status.CONFIRMED, "put", 64, 2)
    assert culprit.stack[0].function in ("overflow", "fill")
    assert [frame.function for frame in culprit.stack][1:3] == ["put_past", "body"]
    (argument,) = culprit.arguments
    assert culprit.led_by == argument
    assert (argument.name, argument.buffer, argument.at) == ("target", "buffers[7]", 0)
    assert culprit.grid == (1, 1, 1)


def test_two_culprits_in_one_replay(watching: Any) -> None:
    tables = [guarded(watching, 256) for _ in range(4)]

    def body() -> None:
        for table in tables:
            table.add_(1)
        overflow(tables[1], 1)
        overflow(tables[3], 2)
        overflow(tables[1], 3)

    graph, _ = capture(body)
    steps(graph)
    found = {f.buffer.address: f for f in watching.check()}
    first, second = found[tables[1].data_ptr()], found[tables[3].data_ptr()]
    assert (first.culprit.status, first.culprit.node) == (Status.CONFIRMED, 4)
    assert [(c.status, c.node) for c in first.candidates] == [(Status.CONFIRMED, 6)]
    assert (second.culprit.status, second.culprit.node) == (Status.CONFIRMED, 5)
    assert first.culprit.line == second.culprit.line, "both through the same helper"
    assert first.culprit.stack[1].line == line_of(body, "overflow(tables[1], 1)")
    assert second.culprit.stack[1].line == line_of(body, "overflow(tables[3], 2)")


def test_damage_that_does_not_come_again_is_said_to(watching: Any) -> None:
    from kernels_cuda import put_late

    table, counter = guarded(watching, 64), torch.zeros(1, dtype=torch.int32, device="cuda")
    graph, _ = capture(lambda: put_late[(1,)](table, counter, 64, 1, 6, BLOCK=BLOCK))
    steps(graph)
    found = only(watching.check())
    assert (found.replay, found.occurrences, found.culprit.status) == (1, 1, Status.NOT_REPRODUCED)
    assert found.culprit.seen_in in (2, 3), "the first replay that began when it was known"


def test_a_far_write_into_another_buffer(watching: Any) -> None:
    """It jumps over every guard: only the write sets show it."""
    from kernels_cuda import put

    source, victim = guarded(watching, 1024), guarded(watching, 1024)
    watching.name("source", source)
    watching.name("victim", victim)
    away = (victim.data_ptr() - source.data_ptr()) // 4
    assert abs(away) > 1024

    def body(where: int) -> Callable[[], None]:
        def run() -> None:
            source.add_(1)
            victim.mul_(2)
            put[(1,)](source, where + 8, 4, BLOCK=BLOCK)

        return run

    for where, silent in ((0, True), (away, False)):
        graph, _ = capture(body(where))
        graph.replay()
        assert watching.check() == ()
        look = watching.locate(graph)
        assert not look.done
        for _ in range(2):  # what one look shows might be another stream's work: a node is named at the second
            assert watching.check() == ()
            victim.fill_(100)
            graph.replay()
        if silent:
            assert watching.check() == ()
        else:
            found = only(watching.check())
            assert (found.code, found.buffer.name, found.culprit.node, found.culprit.name) == (
                "SG106",
                "victim",
                2,
                "put",
            )
            assert (found.bytes.first, found.bytes.last) == (32, 44), "of each little number one byte"
            assert found.culprit.status is Status.CONFIRMED
        written = {(one.node, one.first, one.last) for one in look.write_sets.written}
        assert written == {(0, 0, 4092), (1, 0, 4092), (2, 32, 44)}


def test_a_race_of_two_branches(watching: Any) -> None:
    side = torch.cuda.Stream()

    def forked(left: torch.Tensor, right: torch.Tensor) -> Callable[[], None]:
        def body() -> None:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                right.add_(1)
            left.add_(2)
            torch.cuda.current_stream().wait_stream(side)

        return body

    table = guarded(watching, 64)
    watching.name("table", table)
    for rows, silent in ((32, True), (40, False)):
        graph, _ = capture(forked(table[:rows], table[32:]))
        graph.replay()
        watching.locate(graph)
        graph.replay()
        watching.check()
        graph.replay()  # what two nodes changed may be looked at once more
        if silent:
            assert watching.check() == ()
            continue
        found = only(watching.check())
        assert (found.code, found.buffer.name) == ("SG112", "table")
        assert (found.bytes.first, found.bytes.last) == (128, 156)
        assert {found.culprit.node, *(c.node for c in found.candidates)} == {0, 1}


def test_a_shared_pool_with_two_graphs(watching: Any) -> None:
    source = torch.arange(64, dtype=torch.int32, device="cuda")
    handle = torch.cuda.graph_pool_handle()

    def bug() -> torch.Tensor:
        scratch = source * 2
        overflow(scratch, 1)
        return scratch

    clean, kept = capture(lambda: source * 3, pool=handle)
    guilty, more = capture(bug, pool=handle)
    for _ in range(5):
        clean.replay()
        guilty.replay()
        torch.cuda.synchronize()
    found = only(watching.check())
    assert (found.graph, found.culprit.node, found.culprit.status) == (name_of(guilty), 1, Status.CONFIRMED)
    assert found.culprit.stack[1].line == line_of(bug, "overflow(scratch, 1)")
    del kept, more


def test_a_launch_of_prepare_is_confirmed_in_the_next(watching: Any) -> None:
    table, other = guarded(watching, 256), guarded(watching, 256)
    watching.name("table", table)
    graph, _ = captured(lambda: (table + 1, other + 1))

    def prepare(extra: int) -> None:
        other.fill_(1)
        fill(table, extra)
        table.add_(0)

    steps(graph, lambda: prepare(0), 1)
    steps(graph, lambda: prepare(5), 4)
    found = only(watching.check())
    assert (found.code, found.phase, found.replay, found.past_end) == ("SG101", "prepare", 2, 20)
    assert (found.culprit.status, found.culprit.name) == (Status.CONFIRMED, "put")
    assert found.culprit.stack[1].line == line_of(prepare, "fill(table, extra)")


def test_a_cumsum_into_a_protected_indptr(watching: Any) -> None:
    indptr, lens = guarded(watching, 9), guarded(watching, 8)
    lens.fill_(3)
    watching.name("indptr", indptr)
    watching.protect(indptr)

    def body() -> None:
        torch.cumsum(lens, 0, dtype=torch.int32, out=indptr[1:])

    graph, _ = captured(body)
    steps(graph, lambda: indptr.zero_(), 4)
    found = only(watching.check())
    assert (found.code, found.buffer.name, found.replay) == ("SG102", "indptr", 1)
    assert found.culprit.status is Status.CONFIRMED
    assert found.culprit.line == line_of(body, "torch.cumsum")
    assert found.culprit.led_by is not None
    assert found.culprit.led_by.buffer == "indptr"
    assert found.culprit.kernel
