"""What a report says of an index that compiled code asserted, live, from a dump, and redacted."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

pytest.importorskip("triton")
import inductor_kernels as kernels
from test_asserted_index import SCAN, SLOTS, launched
from triton.runtime.jit import JITFunction

import shadowgraph as sg
from shadowgraph.checks.base import Checkpoint
from shadowgraph.commands.main import main
from shadowgraph.dumps.reader import read_dump
from shadowgraph.engines.numpy_engine import NumpyEngine
from shadowgraph.graphs.triton import cuda as triton_cuda
from shadowgraph.localize.index_asserts import explain
from shadowgraph.model.launches import Access, Launch, LaunchKind, Pointer
from shadowgraph.model.views import TensorView
from shadowgraph.render.text.failure_text import asserted_line
from shadowgraph.render.text.text import Report

SAID = (
    "asserts 0 <= tmp24 < ks2 (2): would be 0 to 2, out of range at x = 0, 1; "
    "an index into out_ptr1, which holds a copy of metadata.page_table"
)


class Step:
    """A compiled step: the table goes into a scratch, the slots' pages are scattered into that."""

    def __init__(self, debugger: sg.Debugger) -> None:
        with debugger.guard():
            self.page_table = torch.zeros(2, 2, dtype=torch.int32)
        debugger.name("metadata", self)
        self.scratch = torch.zeros(2, 2, dtype=torch.int32)
        self.slots = torch.tensor(SLOTS)
        self._debugger = debugger

    def run(self, launch: Launch) -> None:
        work = self._debugger.monitor
        work.crash_recorder.note(launch, (), Checkpoint("launch_begins"))
        work.launch_ran(launch, None)

    def copy(self) -> None:
        tensors = {"in_ptr0": self.page_table, "out_ptr0": self.scratch}
        self.run(launched(kernels.triton_poi_fused_copy_0, tensors, xnumel=4))

    def scatter(self) -> None:
        tensors = {"in_ptr0": self.slots, "out_ptr1": self.scratch}
        self.run(launched(kernels.triton_red_fused_cumsum_scatter_1, tensors, **SCAN))


def dead(*_: object, **__: object) -> Any:
    raise RuntimeError("CUDA error: device-side assert triggered")


def test_live_and_from_a_dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worked: list[Launch] = []
    real = explain.asserted_index
    monkeypatch.setattr(
        "shadowgraph.monitor.crash_recorder.asserted_index",
        lambda launch, copies: (worked.append(launch), real(launch, copies))[1],
    )
    with sg.debug(backend="host") as debugger:
        step = Step(debugger)
        step.copy()
        step.scatter()
        assert not worked, "before the device is lost nothing is worked out"
        with monkeypatch.context() as patch:
            for method in ("read", "read_many", "check", "fetch", "write_canaries"):
                patch.setattr(NumpyEngine, method, dead)
            path = debugger.dump(tmp_path / "run.safetensors", reason="exception")
            redacted = debugger.dump(tmp_path / "redacted.safetensors", redact=True)
            live = debugger.report(quiet=True)
    assert live.facts.lost
    assert len(worked) == 2, "once for each launch"
    latest, before = live.facts.last_launches
    assert before.asserted is None
    assert latest.asserted is not None
    assert asserted_line(latest.asserted) == SAID
    assert SAID in " ".join(str(live).split())
    with read_dump(path) as dump:
        assert dump.facts().last_launches == live.facts.last_launches
        assert str(Report(dump.facts())) == str(live)
    with read_dump(redacted) as dump:
        assert [launch.asserted for launch in dump.facts().last_launches] == [None, None]
    assert main(["report", str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["last_launches"][0]["asserted"]
    assert (said["least"], said["most"], said["high"], said["owner"]) == (0, 2, 2, "metadata.page_table")


@pytest.mark.parametrize("between", ["another writer", "nobody", "a stranger first"])
def test_a_copy_is_one_until_somebody_else_writes_there(between: str) -> None:
    with sg.debug(backend="host") as debugger:
        step = Step(debugger)
        if between != "a stranger first":
            step.copy()
        if between == "another writer":
            pointer = Pointer("self", TensorView.of(step.scratch[1:]), Access.READ_WRITE)
            step.run(Launch(LaunchKind.ATEN, "aten.add_.Tensor", (pointer,)))
        step.scatter()
        if between == "a stranger first":
            step.copy()
        (found,) = [each.asserted for each in debugger.monitor.crash_recorder.launches() if each.asserted is not None]
    assert (found.owner, found.copied) == (("metadata.page_table", True) if between == "nobody" else ("", False))


def test_a_buffer_that_is_indexed_itself_is_named_itself() -> None:
    with sg.debug(backend="host") as debugger:
        step = Step(debugger)
        step.scratch = step.page_table
        step.scatter()
        (launch,) = debugger.monitor.crash_recorder.launches()
    assert launch.asserted is not None
    assert asserted_line(launch.asserted).endswith("an index into out_ptr1, which is metadata.page_table")


def test_a_launch_keeps_its_numbers_and_no_tensor() -> None:
    function = JITFunction(kernels.triton_red_fused_cumsum_scatter_1.fn)
    slots = torch.tensor(SLOTS)
    gone = weakref.ref(slots)
    launch = triton_cuda._describe_compiled(SimpleNamespace(fn=function), (slots, slots, 5, 2, 2, 2, 5))
    assert launch.compiled is not None
    assert (launch.compiled.function, dict(launch.compiled.numbers)) == (function, SCAN)
    assert msgspec.structs.replace(launch, compiled=None) == Launch(
        launch.kind, launch.name, launch.pointers, launch.stack
    )
    del slots
    gc.collect()
    assert gone() is None
