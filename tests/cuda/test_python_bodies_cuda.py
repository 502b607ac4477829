"""Operators whose body is in Python, as attention of vLLM is: a graph is known to read what the body reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers_cuda import capture, fill, guarded, only, warm_kernels
from support.compiled_observer import cache_with_the_library

import shadowgraph as sg
from shadowgraph.debugger import model_of
from shadowgraph.graphs.observer.observer import observer

pytestmark = [pytest.mark.gpu, pytest.mark.parametrize("way", ["each", "learnt"])]

OPERATORS = torch.library.Library("shadowgraph_bodies_cuda", "DEF")
OPERATORS.define("attend(Tensor query, Tensor(a!) output, int extra) -> ()")


class Context:
    """Of the step, as ``get_forward_context`` gives it: no argument of the operator."""

    table: torch.Tensor


context = Context()


@torch.library.impl(OPERATORS, "attend", "CUDA")
def attend(query: torch.Tensor, output: torch.Tensor, extra: int) -> None:
    torch.index_select(query, 0, context.table, out=output)
    if extra >= 0:
        fill(output, extra)


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    home = cache_with_the_library(tmp_path_factory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home))
        warm_kernels()
        yield


def debugging(way: str) -> Any:
    return sg.debug(backend="cuda", layout="faithful", operators="observer", capture_lines=way)


class Runner:
    """Captures the operator twice, by one line, so that the second capture is one that is learnt."""

    def __init__(self, debugger: Any, extra: int = -1) -> None:
        assert observer.wait(600), observer.sentence()
        self.query, self.output = guarded(debugger, 64), guarded(debugger, 32)
        self.query.copy_(torch.arange(64, device="cuda"))
        context.table = torch.arange(32, device="cuda") * 2
        debugger.name("context", context)
        self.graphs = [self.captured(extra) for _ in range(2)]

    def captured(self, extra: int) -> Any:
        return capture(lambda: torch.ops.shadowgraph_bodies_cuda.attend(self.query, self.output, extra))[0]

    def names(self) -> list[list[str]]:
        models = [model_of(graph) for graph in self.graphs]
        assert all(model is not None for model in models)
        return [[node.launch.name for node in model.nodes] for model in models if model is not None]

    def owners(self) -> list[list[Any]]:
        """The launch of each of the device's nodes."""
        models = [model_of(graph) for graph in self.graphs]
        return [[node.launch for node in model.device_nodes] for model in models if model is not None]


def test_its_parts_are_the_graphs_and_own_all_nodes(way: str) -> None:
    with debugging(way) as debugger:
        runner = Runner(debugger)
        for graph in runner.graphs:
            graph.replay()
        torch.cuda.synchronize()
        assert runner.output.tolist() == list(range(0, 64, 2))
        assert runner.names() == [["aten.index_select.out"]] * 2
        assert all(owners and None not in owners for owners in runner.owners())
        report = debugger.report(quiet=True).facts
    assert (report.findings, report.faults) == ((), {})


def test_a_buffer_that_only_the_body_reads_and_that_is_freed(way: str) -> None:
    with debugging(way) as debugger:
        runner = Runner(debugger)
        runner.graphs[1].replay()
        assert debugger.check() == ()
        context.table = torch.zeros(32, dtype=torch.int64, device="cuda")
        runner.graphs[1].replay()
        found = only(debugger.check())
    assert (found.code, found.phase, found.culprit.name) == ("SG104", "replay", "aten.index_select.out")
    assert found.buffer.name.endswith("table")


def test_its_fixed_twin_keeps_it(way: str) -> None:
    with debugging(way) as debugger:
        runner = Runner(debugger)
        runner.graphs[1].replay()
        context.table.copy_(torch.arange(32, device="cuda"))
        runner.graphs[1].replay()
        assert debugger.check() == ()
    assert runner.output.tolist() == list(range(32))


@pytest.mark.parametrize("extra", [0, 2])
def test_a_kernel_that_the_body_launches(way: str, extra: int) -> None:
    with debugging(way) as debugger:
        runner = Runner(debugger, extra)
        runner.graphs[1].replay()
        findings = debugger.check()
    assert [(found.code, found.culprit.name) for found in findings] == ([("SG101", "put")] if extra else [])
