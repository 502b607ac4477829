"""Allocations stay in a memory pool that the program has made active. The allocator's functions are stood in for."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

import shadowgraph as sg
from shadowgraph.graphs.dispatch import active_pools
from shadowgraph.graphs.dispatch.eager import guard_allocations
from shadowgraph.graphs.dispatch.stepping_aside import POOLED

THREAD, STREAM, ALL, END = (
    "_cuda_beginAllocateCurrentThreadToPool",
    "_cuda_beginAllocateCurrentStreamToPool",
    "_cuda_beginAllocateToPool",
    "_cuda_endAllocateToPool",
)


class Allocator:
    """Routes of the stand-in for torch's allocator."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, tuple[int, int]]] = []

    def function(self, name: str) -> Callable[[int, tuple[int, int]], None]:
        return lambda device, pool: self.calls.append((name, device, pool))


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module that has imported the allocator's functions by name, as adapters of symmetric memory do."""
    allocator, importer = Allocator(), ModuleType("importer")
    importer.calls = allocator.calls  # type: ignore[attr-defined]
    for name in (THREAD, STREAM, ALL, END):
        function = allocator.function(name)
        for module in (torch._C, torch.cuda.memory, importer):
            monkeypatch.setattr(module, name, function, raising=False)
    monkeypatch.setitem(sys.modules, "importer", importer)
    active_pools.install()
    yield importer
    active_pools.uninstall()
    assert not active_pools.routed()
    assert "lambda" in torch._C.__dict__[THREAD].__qualname__, "the stand-in is there again"


@pytest.fixture(params=["guard", "all"])
def debugger(request: pytest.FixtureRequest) -> Iterator[sg.Debugger]:
    with sg.debug(backend="host", guard_eager="off" if request.param == "guard" else "all") as made:
        if request.param == "all":
            yield made
        else:
            with guard_allocations():
                yield made


def guarded(tensor: torch.Tensor) -> bool:
    return not tensor.untyped_storage().resizable()


@pytest.mark.parametrize("through", ["importer", "torch"])
@pytest.mark.parametrize("begin", [THREAD, STREAM, ALL])
def test_nothing_is_moved_out_of_an_active_pool(
    begin: str, through: str, routes: ModuleType, debugger: sg.Debugger
) -> None:
    names: Any = routes if through == "importer" else torch._C
    assert guarded(torch.zeros(8))
    getattr(names, begin)(0, (0, 7))
    assert not guarded(torch.zeros(8))
    assert not guarded(torch.ones(8))
    getattr(names, END)(0, (0, 7))
    assert guarded(torch.zeros(8))
    assert routes.calls == [(begin, 0, (0, 7)), (END, 0, (0, 7))], "torch's allocator was told once"
    facts = debugger.facts()
    assert facts.stepped_aside == {POOLED: 2}
    assert f"stepped aside: 2 {POOLED}" in str(debugger.report(quiet=True))


def test_use_mem_pool_itself(monkeypatch: pytest.MonkeyPatch, routes: ModuleType, debugger: sg.Debugger) -> None:
    class Pool:
        id = (0, 3)

    monkeypatch.setattr(torch.cuda.memory, "_cuda_releasePool", lambda device, pool: None)
    with torch.cuda.use_mem_pool(Pool(), 0):  # type: ignore[arg-type]
        assert not guarded(torch.zeros(8))
    assert guarded(torch.zeros(8))


def test_pools_in_each_other(routes: ModuleType, debugger: sg.Debugger) -> None:
    torch._C._cuda_beginAllocateCurrentThreadToPool(0, (0, 1))
    torch._C._cuda_beginAllocateCurrentThreadToPool(0, (0, 2))
    torch._C._cuda_endAllocateToPool(0, (0, 2))
    assert not guarded(torch.zeros(8))
    torch._C._cuda_endAllocateToPool(0, (0, 1))
    assert guarded(torch.zeros(8))


def test_another_threads_pool(routes: ModuleType, debugger: sg.Debugger) -> None:
    thread = threading.Thread(target=lambda: torch._C._cuda_beginAllocateCurrentThreadToPool(0, (0, 1)))
    thread.start()
    thread.join()
    assert guarded(torch.zeros(8)), "the pool is that thread's"
    torch._C._cuda_beginAllocateToPool(0, (0, 2))
    seen: list[bool] = []
    other = threading.Thread(target=lambda: seen.append(active_pools.routed()))
    other.start()
    other.join()
    assert seen == [True], "what is routed for all threads is routed for that one"


def test_a_route_begun_inside_a_capture(
    monkeypatch: pytest.MonkeyPatch, routes: ModuleType, debugger: sg.Debugger
) -> None:
    for name in ("is_initialized", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, name, lambda: True)
    torch._C._cuda_beginAllocateCurrentThreadToPool(0, (0, 1))  # torch ends it in C++, with the capture
    assert not active_pools.routed()


def test_a_refused_route_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: int, pool: tuple[int, int]) -> None:
        raise RuntimeError("already recording")

    monkeypatch.setattr(torch._C, THREAD, refuse)
    active_pools.install()
    try:
        with pytest.raises(RuntimeError, match="already"):
            torch._C._cuda_beginAllocateCurrentThreadToPool(0, (0, 1))
        assert not active_pools.routed()
    finally:
        active_pools.uninstall()


def test_a_torch_without_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (THREAD, STREAM, ALL, END):
        monkeypatch.delattr(torch._C, name, raising=False)
    active_pools.install()
    active_pools.uninstall()
    assert not active_pools.routed()
