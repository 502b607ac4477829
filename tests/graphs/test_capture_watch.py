"""C functions whose launches nobody else sees: which calls are looked at, and that nothing stays behind."""

from __future__ import annotations

import cProfile
import ctypes
import itertools
import math
import sys
from typing import Any

import numpy as np
import pytest
import torch

from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.graphs.cuda import capture_watch
from shadowgraph.graphs.cuda.capture_watch import (
    Called,
    CaptureTracer,
    is_operator,
    is_seen_elsewhere,
    launches_nothing,
)
from shadowgraph.graphs.cuda.node_attribution import Marks as RealMarks
from shadowgraph.graphs.cuda.node_attribution import owners_of

HERE = __file__


class Marks:
    """A capture whose nodes are counted by hand."""

    def __init__(self) -> None:
        self.open: list[Any] = []
        self.nodes = 0
        self.log: list[tuple[tuple[int, ...], Any]] = []
        self._last: tuple[int, ...] = ()

    def advanced(self) -> tuple[int, ...] | None:
        newest = (self.nodes,) if self.nodes else ()
        return newest if newest != self._last else None

    def mark(self, owner: Any, newest: tuple[int, ...]) -> None:
        self._last = newest
        self.log.append((newest, owner))


marks = Marks()


class Launcher:
    """What C code that launches looks like: a method of a type that is not Python's own."""

    def __init__(self, count: int) -> None:
        self.count = count


@pytest.mark.parametrize("function", [len, [].append, dict.get, int, "".join, math.sqrt, str])
def test_pythons_own_functions_launch_nothing(function: Any) -> None:
    assert launches_nothing(function)


@pytest.mark.parametrize(
    "function", [torch.add, torch.relu, torch.Tensor.add_, torch._C._nn.gelu, torch._C._fft.fft_fft]
)
def test_operators_are_seen_by_the_mode(function: Any) -> None:
    assert is_operator(function)
    assert not launches_nothing(function)
    assert is_seen_elsewhere(function, HERE)
    assert not is_seen_elsewhere(function, "/tmp/torchinductor_me/ab/cab.py"), "no mode looks into compiled code"


@pytest.mark.parametrize(
    "function", [torch._C._cuda_getDeviceCount if torch.version.cuda else torch._C._get_tracing_state]
)
def test_other_functions_are_looked_at(function: Any) -> None:
    assert not is_seen_elsewhere(function, HERE)


def test_our_own_code_is_not_looked_at() -> None:
    assert is_seen_elsewhere(torch._C._get_tracing_state, capture_watch.__file__)
    demos = capture_watch.__file__.replace("graphs", "demos")
    assert not is_seen_elsewhere(torch._C._get_tracing_state, demos), "programs under test that are shipped with us"


def launch() -> None:
    """A node appears while a C function runs that nobody knows."""
    marks.nodes += 1
    torch._C._get_tracing_state()


@pytest.fixture
def watch() -> Any:
    marks.__init__()  # type: ignore[misc]
    made = CaptureTracer(marks)  # type: ignore[arg-type]
    made.begin()
    yield made
    made.end()


def test_a_node_belongs_to_the_call_that_made_it(watch: CaptureTracer) -> None:
    launch()
    torch._C._get_tracing_state()
    launch()
    watch.end()
    assert [newest for newest, _ in marks.log] == [(1,), (2,)]
    assert {owner.name for _, owner in marks.log} == {"_get_tracing_state"}
    frames = torch._C._profiler.symbolize_tracebacks([marks.log[0][1].trace])[0]
    assert any(frame["name"] == "launch" and frame["filename"] == HERE for frame in frames)


def test_nothing_is_asked_while_somebody_else_marks(watch: CaptureTracer) -> None:
    marks.open.append(1)
    launch()
    watch.end()
    assert marks.log == []


def test_the_interpreter_is_left_as_it_was() -> None:
    tools = [sys.monitoring.get_tool(tool) for tool in range(6)] if sys.version_info >= (3, 12) else []
    seen: list[str] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        seen.append(event)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        made = CaptureTracer(Marks())  # type: ignore[arg-type]
        made.begin()
        len("x")
        made.end()
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(before)
    assert "c_call" in seen, "the program's own profiler goes on"
    if sys.version_info >= (3, 12):
        assert [sys.monitoring.get_tool(tool) for tool in range(6)] == tools


def test_nodes_are_divided_among_those_who_made_them() -> None:
    nodes = [11, 12, 13, 14, 15, 16, 17]
    edges = list(itertools.pairwise(nodes))
    called = Called("launch", None)
    log = [((12,), 1), ((13,), called), ((12,), 2), ((15,), 3), ((16,), None), ((99,), 4)]
    assert owners_of(nodes, edges, log) == [1, 1, called, 3, 3, None, None]
    assert owners_of([], [], log) == []


def test_a_node_of_another_stream_is_nobodys_until_it_is_joined() -> None:
    nodes = [1, 2, 3, 4, 5]  # 2 hangs beside: after 1, before 4
    edges = [(1, 2), (1, 3), (2, 4), (3, 4), (4, 5)]
    assert owners_of(nodes, edges, [((1,), "a"), ((3,), "b"), ((3, 2), None), ((4,), "c")]) == [
        "a",
        None,
        "b",
        "c",
        None,
    ]
    assert owners_of(nodes, edges, [((5,), "a")]) == ["a"] * 5


def test_a_profiler_in_c_is_left_alone() -> None:
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        made = CaptureTracer(Marks())  # type: ignore[arg-type]
        made.begin()
        len("x")
        made.end()
        assert sys.getprofile() is not None or sys.version_info >= (3, 12)
    finally:
        profiler.disable()


def test_what_a_callable_says_of_itself_harms_nobody(watch: CaptureTracer) -> None:
    before = internal_errors.counts
    numbers = np.arange(3)
    summed = numbers.sum
    marks.nodes += 1
    assert summed() == 3
    watch.end()
    assert internal_errors.counts == before


def test_launches_inside_a_launch_are_its_own() -> None:
    newest = [()]
    made = object.__new__(RealMarks)
    made.log, made.open, made._last, made._blind = [], [], (), False
    made.newest = lambda: newest[0]  # type: ignore[method-assign]
    made.begin("outer")
    newest[0] = (1,)
    made.begin("inner")
    newest[0] = (2,)
    made.end()
    newest[0] = (3,)
    made.end()
    newest[0] = (4,)
    made.begin("next")
    made.end()
    assert made.log == [((1,), "outer"), ((2,), "inner"), ((3,), "outer"), ((4,), None)]


class Driver:
    """A driver whose capture has as many nodes as somebody counted, each after the one before."""

    def __init__(self, told: Any = None) -> None:
        self.nodes = 0
        self.told = told  # called while somebody asks, as a C function of our own may be reported then

    def has(self, name: str) -> bool:
        return False

    def function(self, name: str) -> Any:
        return self._info

    def _info(self, stream: Any, status: Any, number: Any, graph: Any, nodes: Any, count: Any) -> int:
        if self.told is not None:
            self.told()
        status._obj.value, graph._obj.value, count._obj.value = 1, 7, min(1, self.nodes)
        self.array = (ctypes.c_void_p * 1)(self.nodes)
        nodes._obj.contents = ctypes.c_void_p.from_buffer(self.array)
        return 0


def test_our_own_calls_never_claim_what_a_launch_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A C function that our marks call themselves may be reported by the interpreter like any other."""
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, raising=False)
    driver = Driver()
    real = RealMarks(driver, 0)  # type: ignore[arg-type]
    watch = CaptureTracer(real)
    reported: list[bool] = []

    def report() -> None:
        reported.append(bool(real.open))
        driver.told = None  # the watch itself asks, too
        watch._on_return(None, 0, [].pop, None)
        driver.told = report

    driver.told = report
    for token in (1, 2):
        real.begin(token)
        driver.nodes += 1
        real.end()
    assert reported, "somebody was told in between"
    assert all(reported), "while it looks, a launch is open"
    assert real.log == [((1,), 1), ((2,), 2)]
