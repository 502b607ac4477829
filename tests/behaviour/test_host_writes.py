"""SG111 from the operator to the report, on a played device: copies that are queued run when the test says so."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from programs import guarded, only

import shadowgraph as sg
from shadowgraph.checks.host_write.pending import Piece
from shadowgraph.engines.base import Result
from shadowgraph.render.text.text import Report
from shadowgraph.tracking import pending_sources


class Runner:
    """A runner that keeps its inputs on both sides."""

    def __init__(self, debugger: sg.Debugger) -> None:
        self.pinned = torch.zeros(16, dtype=torch.int32)
        self.lens = guarded(debugger, 16)
        debugger.name("runner", self)
        self.graph = sg.HostGraph()
        with sg.host_graph(self.graph):
            self.out = self.lens * 2

    def prepare(self, value: int) -> None:
        self.pinned.fill_(value)
        self.lens.copy_(self.pinned, non_blocking=True)


class Device:
    """Makes copies from memory that counts as pinned once more when it runs, and only then reads behind them."""

    def __init__(self, debugger: sg.Debugger, patch: pytest.MonkeyPatch) -> None:
        self.pinned: list[torch.Tensor] = []
        self.engine: Any = debugger.monitor.context.engine
        self.queue: list[Callable[[], None]] = []
        self.queued = 0
        self._fetch = self.engine.fetch
        mode = debugger.eager_mode
        assert mode is not None
        mode.uses_host = True
        patch.setattr(self.engine, "fetch", self.fetch)
        patch.setattr(torch.Tensor, "is_pinned", lambda tensor: any(tensor is each for each in self.pinned))

    def fetch(self, tag: object, parts: Any) -> Any:
        if not isinstance(parts[0][0], Piece):
            return self._fetch(tag, parts)
        pending, done = parts[0][0].pending, []
        source, target = pending.source, pending.target

        def run() -> None:
            ctypes.memmove(target.start, source.start, min(source.nbytes, target.nbytes))
            self.engine._results.append(Result(tag, (), tuple((key, self.engine.read(where)) for key, where in parts)))
            done.append(True)

        self.queue.append(run)
        self.queued += 1
        return type("Queued", (), {"passed": lambda _: bool(done)})()

    def run(self) -> None:
        queue, self.queue = self.queue, []
        for each in queue:
            each()


@pytest.fixture
def debugger() -> Iterator[sg.Debugger]:
    with sg.debug(backend="host") as made:
        yield made
    assert pending_sources.spans == ()


@pytest.fixture
def device(debugger: sg.Debugger, monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(debugger, monkeypatch)


@pytest.fixture
def runner(debugger: sg.Debugger, device: Device) -> Runner:
    made = Runner(debugger)
    device.pinned.append(made.pinned)
    return made


def faultless(debugger: sg.Debugger) -> bool:
    return debugger.facts().faults == {}


def test_an_operator_rewrites_the_pinned_memory_at_once(debugger: sg.Debugger, device: Device, runner: Runner) -> None:
    for step in range(2):
        runner.prepare(step)
        device.run()
        runner.graph.replay()
    runner.prepare(5)
    runner.pinned.fill_(6)
    device.run()
    runner.graph.replay()
    assert runner.out.unique().tolist() == [12], "invalid: the device copied in time"
    assert device.queued == 3
    found = only(debugger.check())
    assert (found.code, found.severity, found.confidence) == ("SG111", "error", "high")
    assert (found.phase, found.graph, found.replay) == ("prepare", runner.graph.model.name, 3)
    assert (found.buffer.name, found.buffer.nbytes) == ("runner.pinned", 64)
    assert (found.bytes.first, found.bytes.last, found.bytes.count) == (0, 60, 16)
    assert (found.culprit.name, found.culprit.status) == ("aten.fill_.Scalar", "confirmed")
    assert found.culprit.stack[0].function == "test_an_operator_rewrites_the_pinned_memory_at_once"
    assert (found.detail.target.name, found.detail.copy) == ("runner.lens", "aten.copy_.default")
    assert found.detail.copied_at[0].function == "prepare"
    assert (found.reader.name, found.reader.node) == ("aten.mul.Tensor", 0)
    assert (found.window.expected[:8], found.window.found[:8]) == ("05000000", "06000000")
    assert found.message == (
        "SG111 host write in flight: aten.fill_.Scalar rewrote runner.pinned (int32[16]) before the copy to "
        f"runner.lens had run, while preparing replay 3 of {runner.graph.model.name}"
    )
    said = str(Report(debugger.facts()))
    assert "aten.copy_.default at" in said
    assert json.loads(Report(debugger.facts()).to_json())["findings"][0]["detail"]["nbytes"] == 64
    assert faultless(debugger)


def test_numpy_rewrites_a_part_of_it(debugger: sg.Debugger, device: Device, runner: Runner) -> None:
    runner.prepare(5)
    runner.pinned.numpy()[4:6] = 6
    device.run()
    runner.graph.replay()
    found = only(debugger.check())
    assert (found.bytes.first, found.bytes.count, found.culprit.status) == (16, 2, "unknown")
    assert (found.confidence, found.detail.written_by_torch) == ("medium", False)
    assert "host code rewrote runner.pinned" in found.message
    assert faultless(debugger)


@pytest.mark.parametrize("name", ["to", "foreach", "slice", "converted"])
def test_other_ways_to_copy(debugger: sg.Debugger, device: Device, runner: Runner, name: str) -> None:
    pinned = runner.pinned.to(torch.int64) if name == "converted" else runner.pinned
    part = pinned[:8]
    device.pinned += [part, pinned]
    other = torch.zeros(16, dtype=torch.int32)
    if name == "to":
        made = pinned.to("cpu", non_blocking=True, copy=True)
        assert made.numel() == 16
    elif name == "foreach":
        torch._foreach_copy_([runner.lens, other], [pinned, pinned], non_blocking=True)
    elif name == "slice":
        runner.lens[:8].copy_(part, non_blocking=True)
    else:
        runner.lens.copy_(pinned, non_blocking=True)
    assert device.queued == (2 if name == "foreach" else 1)
    pinned[3] = 7
    if name != "converted":  # the played device copies bytes
        device.run()
    else:
        device.queue.clear()
        pending_sources.publish(())
        return
    found = debugger.check()
    assert [(each.code, each.bytes.first, each.bytes.count, each.culprit.name) for each in found] == [
        ("SG111", 12, 1, "aten.copy_.default")
    ]
    assert found[0].occurrences == device.queued
    assert found[0].buffer.nbytes == (32 if name == "slice" else 64)


def test_fixed_twin_waits(debugger: sg.Debugger, device: Device, runner: Runner) -> None:
    for step in range(6):
        runner.prepare(step)
        device.run()  # event.synchronize()
        runner.pinned.fill_(100)
        runner.pinned.numpy()[:] = 50
        runner.graph.replay()
        assert runner.out.unique().tolist() == [2 * step]
    assert device.queued == 6
    assert debugger.check() == ()
    assert faultless(debugger)


def test_two_buffers_in_turns(debugger: sg.Debugger, device: Device, runner: Runner) -> None:
    other = torch.zeros(16, dtype=torch.int32)
    device.pinned.append(other)
    for step in range(8):
        device.run()
        pinned = (runner.pinned, other)[step % 2]
        pinned.fill_(step)
        runner.lens.copy_(pinned, non_blocking=True)
    device.run()
    runner.graph.replay()
    assert device.queued == 8
    assert debugger.check() == ()


def test_copies_that_wait_or_come_from_pageable_memory(debugger: sg.Debugger, device: Device, runner: Runner) -> None:
    runner.lens.copy_(runner.pinned)
    pageable = torch.zeros(16, dtype=torch.int32)
    runner.lens.copy_(pageable, non_blocking=True)
    runner.lens.t().copy_(runner.pinned[::1].flip(0), non_blocking=True)
    pageable.fill_(3)
    assert device.queued == 0
    assert debugger.check() == ()


@pytest.mark.parametrize("made", [False, True], ids=["copy_", "to"])
def test_memory_that_a_copy_from_the_device_has_written(
    debugger: sg.Debugger, device: Device, runner: Runner, made: bool
) -> None:
    """Out to pinned memory and in again, in order with one stream: the host sees the bytes late."""
    ones, pinned = torch.ones(16, dtype=torch.int32), runner.pinned
    if made:
        pinned = ones.to("cpu", non_blocking=True, copy=True)
        device.pinned.append(pinned)
    else:
        pinned.copy_(ones, non_blocking=True)
    runner.lens.copy_(pinned, non_blocking=True)
    pinned.numpy()[:] = 9  # plays the copy from the device
    device.run()
    assert debugger.check() == ()
    assert device.queued == 1


def test_pinned_allocations_are_entered(debugger: sg.Debugger, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    from shadowgraph.graphs.dispatch import eager

    monkeypatch.setattr(eager.host_copies, "pins", lambda schema, kwargs: schema.name.startswith("aten.zeros"))
    made = torch.zeros(5)
    buffer = debugger.monitor.context.ledger.host.owner(made.data_ptr(), made.data_ptr() + 20)
    assert buffer is not None
    assert (buffer.shape, buffer.stack[0].function) == ((5,), "test_pinned_allocations_are_entered")
    assert buffer.serial not in {each.serial for each in debugger.buffers}
    del made
    debugger.check()
    assert not buffer.alive
