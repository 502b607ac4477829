"""Dumps with findings of several kinds, for the verbs that look at them, and how the verbs are run."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import shadowgraph as sg
from shadowgraph.commands.main import main
from shadowgraph.common.version import VERSION
from shadowgraph.wrap.folder.injection_config import InjectionConfig
from shadowgraph.wrap.folder.run_folder import RunFolder

Capture = pytest.CaptureFixture[str]


def document(capsys: Capture, *words: str) -> dict[str, Any]:
    """What a verb prints with ``--json``."""
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    made: dict[str, Any] = json.loads(shown.out)
    assert made["schema"] == f"shadowgraph.{words[0]}/1"
    return made


def printed(capsys: Capture, *words: str) -> str:
    """What it prints as text."""
    capsys.readouterr()
    assert main(list(words)) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out


def refused(capsys: Capture, code: int, *words: str) -> str:
    """The one line that says why it printed nothing."""
    capsys.readouterr()
    assert main(list(words)) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("shadowgraph: error: ")
    assert shown.err.count("\n") == 1
    return shown.err


class Worker:
    """A page table that is overrun (SG101), an index pointer that its graph rewrites (SG102), and an input of which the
    graph outlives the tensor (SG104)."""

    def __init__(self, debugger: sg.Debugger) -> None:
        with debugger.guard():
            self.table = torch.zeros(4, 2, dtype=torch.int32)
            self.indptr = torch.arange(9, dtype=torch.int32)
            self.scale = torch.ones(8)
            self.large = torch.ones(300, 100)
        self.rows = self.table[1:3]
        debugger.name("worker", self)
        debugger.protect(self.indptr)
        self.graph = sg.HostGraph()
        with sg.host_graph(self.graph):
            self.doubled = self.table * 2
            self.indptr[1:].mul_(2)
            self.scaled = self.scale + 1

    def step(self, past: int = 0) -> None:
        from shadowgraph.demos.kernels import fill

        fill[(1,)](self.table, 0, self.table.numel() + past, 1, BLOCK=256)
        self.graph.replay()

    def lose(self, debugger: sg.Debugger) -> None:
        """Bind the input's name to another tensor."""
        with debugger.guard():
            self.scale = torch.zeros(8)
        gc.collect()


def worker_dump(path: Path, **options: Any) -> Path:
    """A dump with an SG101 on `table`, an SG102 on `indptr` and an SG104 on what was `scale`."""
    with sg.debug() as debugger:
        worker = Worker(debugger)
        worker.step()
        worker.step(past=3)
        worker.lose(debugger)
        worker.step()
        assert {finding.code for finding in debugger.findings} == {"SG101", "SG102", "SG104"}
        written = debugger.dump(path, **options)
        del worker
    return written


def suppressing_dump(path: Path, rules: Path) -> Path:
    """A dump with the same SG102, of a run whose rules hide the SG101."""
    with sg.debug(suppressions=rules) as debugger:
        worker = Worker(debugger)
        worker.step()
        worker.step(past=3)
        assert [finding.code for finding in debugger.check()] == ["SG102"]
        written = debugger.dump(path)
        del worker
    return written


def empty_dump(path: Path) -> Path:
    """A dump of a run that did nothing, not even free what tests before it left behind."""
    from dumps.dump_makers import with_manifest

    with sg.debug() as debugger:
        written = debugger.dump(path)
    written.write_bytes(with_manifest(written.read_bytes(), lambda manifest: manifest.update(buffers=[], freed=[])))
    return written


def run_folder(path: Path, **dumps: bytes) -> Path:
    """A run folder with these dumps, named as files are without their suffix (`_` for `-`)."""
    made = RunFolder(path)
    made.begin(["python", "serve.py"], InjectionConfig(made.path), VERSION)
    for name, data in dumps.items():
        (path / f"{name.replace('_', '-')}.dump").write_bytes(data)
    return path


def of_process(data: bytes, pid: int, time: float, change: Callable[[dict[str, Any]], None] | None = None) -> bytes:
    """A dump as another process would have left it at some time."""
    from dumps.dump_makers import with_manifest

    def changed(manifest: dict[str, Any]) -> None:
        manifest.update(pid=pid, time=time)
        if change is not None:
            change(manifest)

    return with_manifest(data, changed)
