"""SG104 on the host: the loads and stores of the replay say what a kernel did with a pointer that dangles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import shadowgraph as sg
from shadowgraph.graphs.triton import host as triton_host
from shadowgraph.render.text.text import Report


@triton.jit
def use(p, q, READS: tl.constexpr, WRITES: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    value = at
    if READS:
        value = tl.load(p + at)
    if WRITES:
        tl.store(p + at, value + 1)
    tl.store(q + at, value)


class Runner:
    """Owns the buffers."""

    x: torch.Tensor | None
    victim: torch.Tensor | None = None

    def __init__(self) -> None:
        self.x, self.out = torch.zeros(128, dtype=torch.int32), torch.zeros(128, dtype=torch.int32)


def replayed(reads: bool, writes: bool, lives: bool = False, victim: int = 0) -> sg.Debugger:
    with sg.debug() as debugger:
        with debugger.guard():
            runner = Runner()
        debugger.name("r", runner)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            use[(1,)](runner.x, runner.out, READS=reads, WRITES=writes, BLOCK=128)
        graph.replay()
        if not lives:
            runner.x = None
        if victim:
            with debugger.guard():
                runner.victim = torch.zeros(victim, dtype=torch.int32)
        graph.replay()
        graph.replay()
    return debugger


@pytest.mark.parametrize(
    ("reads", "writes", "verb", "access"),
    [
        (True, False, " reads r.x", "live-in: graph#{0} only reads it; 512 bytes"),
        (False, True, " writes r.x", "external-out: graph#{0} only writes it; 512 bytes"),
        (True, True, " reads and writes r.x", "live-in: graph#{0} reads it before it writes it; 512 bytes"),
        (False, False, " was given r.x", "graph#{0} gives it to a kernel, which may read and write it; 512 bytes"),
    ],
)
def test_what_the_kernel_did(reads: bool, writes: bool, verb: str, access: str) -> None:
    debugger = replayed(reads, writes)
    (found,) = debugger.findings
    assert found.code == "SG104"
    assert verb in found.message
    number = str(found.graph).removeprefix("graph#")
    assert f"  captured   {access.format(number)}" in str(Report(debugger.facts()))
    seen = reads or writes
    assert (found.culprit.status, found.confidence) == (("confirmed", "high") if seen else ("candidate", "medium"))
    assert (found.culprit.name, found.culprit.node) == ("use", 0)
    assert triton_host.new_log().loads is None, "loads are noted in that replay alone"


@pytest.mark.parametrize("writes", [True, False])
def test_a_buffer_that_lives(writes: bool) -> None:
    assert replayed(True, writes, lives=True).findings == ()


def by_code(debugger: sg.Debugger) -> dict[str, Any]:
    return {finding.code: finding for finding in debugger.findings}


def test_writing_past_the_new_tenant_is_a_consequence() -> None:
    debugger = replayed(reads=False, writes=True, victim=64)
    found = by_code(debugger)
    assert set(found) == {"SG101", "SG104"}
    dangling, beyond = found["SG104"], found["SG101"]
    cause = beyond.caused_by
    assert (cause.finding, cause.code, cause.sure) == (dangling.id, "SG104", True)
    text = str(Report(debugger.facts()))
    assert "the same launch wrote to memory that this buffer took\n" in text
    assert f"  do         The fault lies with r.x: see finding {dangling.fingerprint}.\n" in text
    assert "\nshadowgraph: 1 finding, 1 consequence\n" in text


def test_an_overrun_of_its_own_is_no_consequence() -> None:
    from shadowgraph.demos.kernels import fill

    with sg.debug() as debugger:
        with debugger.guard():
            runner = Runner()
        debugger.name("r", runner)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            use[(1,)](runner.x, runner.out, READS=True, WRITES=False, BLOCK=128)
            fill[(1,)](runner.out, 0, 131, 1, BLOCK=256)
        runner.x = None
        with debugger.guard():
            runner.victim = torch.zeros(64, dtype=torch.int32)
        graph.replay()
    found = by_code(debugger)
    assert set(found) == {"SG101", "SG104"}
    assert found["SG101"].caused_by is None


def test_after_a_replay_that_failed_no_loads_are_noted() -> None:
    def fail() -> None:
        raise ZeroDivisionError("of the program")

    with sg.debug() as debugger:
        with debugger.guard():
            runner = Runner()
        graph, broken = sg.HostGraph(), [False]
        with sg.host_graph(graph):
            use[(1,)](runner.x, runner.out, READS=True, WRITES=False, BLOCK=128)
            graph.call(lambda: fail() if broken[0] else None)
        graph.replay()
        runner.x, broken[0] = None, True
        with pytest.raises(ZeroDivisionError):
            graph.replay()
        assert [each.code for each in debugger.findings] == ["SG104"]
        assert not triton_host._noting_loads
