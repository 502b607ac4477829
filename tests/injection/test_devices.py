"""Which GPU is watched: that of the first operator on one, not the one that is current when CUDA is initialised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.graphs.dispatch import tensors
from shadowgraph.wrap.folder.injection_config import InjectionConfig
from shadowgraph.wrap.inject.attach import start_before_captures
from shadowgraph.wrap.inject.process import ProcessMonitor, device_index

HERE = torch.zeros(2)


class Elsewhere:
    """A tensor on another device, as far as one without a GPU can have it."""

    def __init__(self, index: int) -> None:
        self._index = index

    def get_device(self) -> int:
        return self._index


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors that are not in the host's memory count as such of a GPU."""
    monkeypatch.setattr(tensors, "tensors_in", lambda given: [*given[0], *given[1].values()])
    monkeypatch.setattr(tensors, "is_plain", lambda tensor, _: isinstance(tensor, Elsewhere))


@pytest.mark.parametrize(
    ("args", "kwargs", "index"),
    [
        ((HERE, 1), {}, None),
        ((HERE, [HERE]), None, None),
        (((2,),), {"device": torch.device("cpu")}, None),
        (((2,),), {"device": torch.device("cuda:1")}, 1),
        ((HERE, torch.device("cuda:2"), torch.float16), {}, 2),
        ((HERE,), {"dtype": torch.int32, "device": torch.device("cuda", 3)}, 3),
    ],
)
def test_it_is_told_by_an_operators_arguments(args: Any, kwargs: Any, index: int | None) -> None:
    assert device_index(args, kwargs) == index


@pytest.mark.usefixtures("far")
def test_it_is_that_of_the_first_tensor_on_a_gpu() -> None:
    assert device_index((HERE, 4, Elsewhere(1), Elsewhere(2)), {}) == 1
    assert device_index((HERE,), {"out": Elsewhere(3)}) == 3


def test_a_device_without_a_number_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    assert device_index((), {"device": torch.device("cuda")}) == 2


def test_a_rank_that_chooses_its_device_late_is_watched_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As sglang's: CUDA is initialised while device 0 is current, operators on the host run, then it is device 1."""
    current, began = [0], []

    @contextmanager
    def device(index: int) -> Iterator[None]:
        before, current[0] = current[0], index
        yield
        current[0] = before

    capturing = [False]
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    process = ProcessMonitor(InjectionConfig(folder=str(tmp_path)), "cuda", lambda *_: None)
    monkeypatch.setattr(process, "start", lambda: began.append(current[0]))
    process.target((), {"device": torch.device("cuda:1")})
    assert began == [], "CUDA is not there yet"
    process.cuda_began()
    process.target((HERE,), {})
    assert began == []
    process.target((), {"device": torch.device("cuda:7")})
    assert began == [], "that is the program's error, and torch's to tell"
    capturing[0] = True
    process.target((), {"device": torch.device("cuda:1")})
    assert began == [], "a capture must not be disturbed"
    capturing[0] = False
    process.target((), {"device": torch.device("cuda:1")})
    assert began == [1]
    assert current == [0], "the program's own choice stays"


def test_a_tensor_that_refuses_to_say_where_it_is_is_the_programs_own_affair(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("ask somebody else")

    monkeypatch.setattr(tensors, "is_plain", refuse)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    process = ProcessMonitor(InjectionConfig(folder=str(tmp_path)), "cuda", lambda *_: None)
    process.cuda_began()
    before = internal_errors.total
    assert process.target((HERE,), {}) is None
    assert internal_errors.total == before + 1
    internal_errors.clear()


class FakeGraph:
    """As much of a CUDA graph as a capture begins with."""

    begun = 0

    def capture_begin(self, pool: object = None) -> None:
        FakeGraph.begun += 1


def test_the_first_capture_starts_it_where_no_operator_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeGraph, "capture_begin", FakeGraph.capture_begin)  # to be put back
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    original = FakeGraph.capture_begin
    seen: list[object] = []

    def start() -> None:
        seen.append("start")

        def watched(graph: FakeGraph, pool: object = None) -> None:
            seen.append(pool)
            original(graph, pool)

        FakeGraph.capture_begin = watched  # type: ignore[method-assign]

    start_before_captures(start)
    before = FakeGraph.begun
    FakeGraph().capture_begin("first")
    FakeGraph().capture_begin("second")
    assert seen == ["start", "first", "second"], "the debugger sees the first one too"
    assert FakeGraph.begun == before + 2


def test_a_debugger_that_watches_already_is_not_started_by_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeGraph, "capture_begin", FakeGraph.capture_begin)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    started: list[bool] = []
    start_before_captures(lambda: started.append(True))
    below, before = FakeGraph.capture_begin, FakeGraph.begun
    monkeypatch.setattr(FakeGraph, "capture_begin", lambda graph, pool=None: below(graph, pool))
    FakeGraph().capture_begin()
    assert (started, FakeGraph.begun) == ([], before + 1)


def test_without_a_gpu_the_first_operator_is_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, began = ProcessMonitor(InjectionConfig(folder=str(tmp_path)), "host", lambda *_: None), []
    monkeypatch.setattr(process, "start", lambda: began.append(True))
    process.target((HERE,), {})
    assert began == [True]
