"""A device, played on the host: checks answer late, nobody sees a kernel's stores, launches are told before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from msgspec.structs import replace

import shadowgraph as sg
from shadowgraph.engines.base import Result
from shadowgraph.engines.numpy_engine import NumpyEngine
from shadowgraph.graphs.events import events
from shadowgraph.graphs.triton import host as triton_host
from shadowgraph.graphs.triton.interpreter_hooks import Running
from shadowgraph.monitor import backends
from shadowgraph.monitor.monitor import Monitor


class LateEngine(NumpyEngine):
    """What was asked for arrives one poll later, unless somebody waits."""

    def __init__(self, origin: int) -> None:
        super().__init__(origin, keeps=True)
        self.asynchronous = True
        self._on_the_way = 0

    def poll(self, wait: bool = False, here: bool = False) -> list[Result]:
        arrived = len(self._results) if wait or self.lost is not None else self._on_the_way
        results, self._results = self._results[:arrived], self._results[arrived:]
        self._on_the_way = len(self._results)
        return results


def _told(executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """An eager launch as a device has it: no stores are known."""
    launch = triton_host.describe(executor, args, kwargs, None)
    launch = replace(launch, stack=launch.stack[1:])  # without this function
    with torch._C._DisableTorchDispatch():
        given = triton_host._aliased(args), triton_host._aliased(kwargs)
    events.launch_begins(launch, ())
    triton_host._run(executor, *given, Running())
    events.launch_ran(launch, None)


@contextmanager
def played(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[sg.Debugger]:
    """A debugger over graphs of the host that knows no more of them than it would of a device's."""
    monkeypatch.setattr(backends, "NumpyEngine", LateEngine)
    monkeypatch.setattr(Monitor, "node_ran", lambda *_: None)
    monkeypatch.setattr(triton_host, "_run_noted", _told)
    with sg.debug(**options) as debugger:
        assert debugger.eager_mode is not None
        debugger.eager_mode._announces = True
        assert debugger.monitor.context.engine.asynchronous
        yield debugger
