"""What is in a dump is what was there: report, ledger, names, graphs, journal, bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dump_makers import Server, dump_of_a_server, guarded, overflow

import shadowgraph as sg
from shadowgraph.commands.main import main
from shadowgraph.common import internal_errors as faults
from shadowgraph.demos import founding
from shadowgraph.demos.case import Case
from shadowgraph.demos.device import HostDevice
from shadowgraph.demos.runner import ACCEPTANCE, CARVE
from shadowgraph.demos.sglang.host import SGLANG_VERSION, sglang_version
from shadowgraph.dumps.reader import read_dump
from shadowgraph.dumps.schema import Why
from shadowgraph.localize.flight_recorder import LAUNCHES
from shadowgraph.render.text.text import Report

needs_sglang = [
    pytest.mark.sglang,
    pytest.mark.skipif(sglang_version() != SGLANG_VERSION, reason=f"needs sglang {SGLANG_VERSION}"),
]
CASES = [
    *(pytest.param(case, id=case.id) for case in ACCEPTANCE if not case.control),
    *(pytest.param(case, id=case.id, marks=needs_sglang) for case in founding.CASES if not case.control),
]


@pytest.mark.parametrize("case", CASES)
def test_the_report_of_a_dump_is_the_live_report(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with sg.debug(backend="host", **dict(case.options)) as debugger:
        kept = case.program(HostDevice(), debugger, False, CARVE if case.carved else 0)
        live = debugger.report(quiet=True)
        path = debugger.dump(tmp_path / "run.safetensors")
    del kept
    assert live.facts.findings
    with read_dump(path) as dump:
        assert dump.facts() == live.facts
        assert str(Report(dump.facts())) == str(live)
    assert main(["report", str(path)]) == 0
    assert str(live) in capsys.readouterr().out
    assert main(["report", str(path), "--json", "--error-exitcode", "42"]) == 42
    document = json.loads(capsys.readouterr().out)
    about = document.pop("dump")
    assert document == json.loads(live.to_json())
    assert about["reason"] == "on demand"
    assert about["pid"] == os.getpid()


def test_a_run_without_findings_exits_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with sg.debug() as debugger:
        path = debugger.dump(tmp_path / "run.safetensors", reason="at exit")
    assert main(["report", str(path), "--error-exitcode", "42"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"dump of process {os.getpid()}, ")
    assert ", at exit; shadowgraph " in lines[0]
    assert lines.count("shadowgraph: no findings") == 1
    assert "coverage: no graph captured under the debugger wrote anything yet; 0 records dropped" in lines
    assert lines[-1].startswith("dump: ")


def test_bytes_are_those_of_memory(tmp_path: Path) -> None:
    with sg.debug() as debugger:
        server = Server(debugger)
        server.step(past=1)
        path = debugger.dump(tmp_path)
        table, indptr = server.page_table, server.indptr
        weights = server.weights.numpy().tobytes()
    with read_dump(path) as dump:
        buffers = {buffer.start: buffer for buffer in dump.buffers}
        held = {(row.buffer, row.why, row.offset): dump.payload(row) for row in dump.manifest.payloads}
    serial = buffers[table.data_ptr()].serial
    assert held[serial, Why.WHOLE, 0] == table.numpy().tobytes()
    around = held[serial, Why.FINDING, 32 - 256]
    assert around[256 - 32 : 256] == table.numpy().tobytes(), "guards before it, then the buffer"
    assert held[buffers[indptr.data_ptr()].serial, Why.WHOLE, 0] == np.arange(1, 10, dtype=np.int32).tobytes()
    assert held[buffers[indptr.data_ptr()].serial, Why.SHADOW, 0] == np.arange(9, dtype=np.int32).tobytes()
    large = buffers[server.weights.data_ptr()].serial
    assert held[large, Why.WINDOW, 0] == weights[:4096]
    assert held[large, Why.WINDOW, len(weights) - 4096] == weights[-4096:]
    assert (large, Why.WHOLE, 0) not in held


def test_any_reader_of_safetensors_opens_it(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    path = dump_of_a_server(tmp_path / "run.safetensors")
    tensors = safetensors.load_file(path)
    manifest = json.loads(tensors["manifest"].tobytes())
    assert manifest["facts"]["findings"][0]["code"] == "SG101"
    rows = {row[0]: row for row in manifest["payloads"]}
    assert set(tensors) == {"manifest", *rows}
    assert all(tensors[name].nbytes == row[2] for name, row in rows.items())


def test_ledger_names_graphs_and_journal(tmp_path: Path) -> None:
    with sg.debug() as debugger:
        server = Server(debugger)
        dropped = guarded(debugger, 5)
        serial = next(b.serial for b in debugger.buffers if b.start == dropped.data_ptr())
        del dropped
        server.step()
        server.step(past=1)
        path = debugger.dump(tmp_path / "run.safetensors")
        live = {buffer.serial: buffer for buffer in debugger.buffers}
        groups = [{owner.path for owner in group} for group in debugger.names.groups()]
        (graph,) = debugger.graphs
        with read_dump(path) as dump:
            assert {b.serial: (b.start, b.nbytes, b.shape, b.dtype, b.stack, b.role) for b in dump.buffers} == {
                b.serial: (b.start, b.nbytes, b.shape, b.dtype, b.stack, b.role) for b in live.values()
            }
            freed = next(buffer for buffer in dump.freed if buffer.serial == serial)
            assert freed.freed_at is not None
            assert [node.launch for node in dump.graphs[0].nodes] == [node.launch for node in graph.nodes]
            assert (dump.graphs[0].name, dump.graphs[0].replays) == (graph.name, 2)
            manifest = dump.manifest
            owners = manifest.owners
            assert [{owners[i].path for i in group} for group in manifest.alias_groups] == groups
            assert {"server.page_table", "server.first_rows"} in groups
            pointer = manifest.graphs[0].nodes[0].pointers[0]
            holder = dump.names.holder(pointer.view)
            assert holder is not None
            assert (live[holder.serial].start, pointer.view.start) == (server.page_table.data_ptr(),) * 2
            assert [(row.graph, row.replay) for row in manifest.replays] == [(graph.serial, 1), (graph.serial, 2)]
            assert manifest.replays[0].order < manifest.replays[1].order
            assert {guard.buffer for guard in manifest.guards} >= {b.serial for b in live.values() if b.guarded}
            ran = [(launch.name, row.node) for launch, row in zip(dump.launches, manifest.launches, strict=True)]
            assert ran[-3:] == [("fill", None), ("aten.mul.Tensor", 0), ("aten.add_.Tensor", 1)]
            assert dump.launches[-3].stack[0].function == "overflow"


def test_the_journal_is_bounded_and_holds_no_tensors() -> None:
    import weakref

    with sg.debug() as debugger:
        table = guarded(debugger, 4)
        for _ in range(LAUNCHES + 10):
            table.add_(1)
        journal = debugger._work.flight_recorder
        assert len(journal.launches) == LAUNCHES
        gone = weakref.ref(table.untyped_storage())
        del table
        assert gone() is None


def test_options_versions_and_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["serve.py", "--api-key", "hunter2", "--hf-token=hunter3", "--port", "30000", "--key"]
    monkeypatch.setattr(sys, "argv", words)
    with sg.debug(near_guard=512) as debugger:
        path = debugger.dump(tmp_path / "run.safetensors")
    assert b"hunter" not in path.read_bytes()
    with read_dump(path) as dump:
        assert dump.manifest.argv == ("serve.py", "--api-key", "...", "--hf-token=...", "--port", "30000", "--key")
        assert dump.manifest.settings["near_guard"] == 512
        assert dump.manifest.settings["backend"] == "host"
        assert dump.manifest.versions["torch"] == torch.__version__
        assert "triton" in dump.manifest.packages or "triton" not in sys.modules


def test_texts_that_are_no_unicode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["serve.py", "model-\udcff"])
    monkeypatch.setattr(faults.logger, "disabled", True)  # what is logged must be text that a test run can pass on
    with sg.debug() as debugger:
        table = guarded(debugger, 4)
        debugger.name("bad\udcfe", table)
        overflow(table)
        path = debugger.dump(tmp_path / "run.safetensors", reason="x\udcfd")
    with read_dump(path) as dump:
        assert dump.manifest.argv[1] == "model-\\udcff"
        assert dump.facts().findings[0].buffer.name == "bad\\udcfe"


def test_foreign_memory_that_is_gone_is_listed(tmp_path: Path) -> None:
    with sg.debug() as debugger:
        foreign = torch.arange(64, dtype=torch.int32)
        debugger.protect(foreign)
        (known,) = [b for b in debugger.buffers if b.start == foreign.data_ptr()]
        path = debugger.dump(tmp_path / "one.safetensors")
        with read_dump(path) as dump:
            (row,) = [row for row in dump.manifest.payloads if row.buffer == known.serial]
            assert dump.payload(row) == foreign.numpy().tobytes()
        foreign.resize_(1 << 20)
        path = debugger.dump(tmp_path / "two.safetensors")
        with read_dump(path) as dump:
            assert known.serial not in {row.buffer for row in dump.manifest.payloads}
            assert known.serial not in {buffer.serial for buffer in dump.buffers}


def test_many_buffers_stay_small_and_load_fast(tmp_path: Path) -> None:
    from shadowgraph.model.buffers import Buffer, Ledger, Role
    from shadowgraph.model.stacks import Frame

    with sg.debug() as debugger:
        work = debugger._work
        ledger = Ledger()
        stacks = [tuple(Frame(f"/srv/app/{i}.py", n, "make") for n in range(12)) for i in range(50)]
        for i in range(100_000):
            ledger.add(Buffer(ledger.next_serial(), 4096 * (i + 1), 0, Role.FOREIGN, "int32", (0,), 4, stacks[i % 50]))
        work.context.ledger, kept = ledger, work.context.ledger
        try:
            path = debugger.dump(tmp_path / "run.safetensors", check=False)
        finally:
            work.context.ledger = kept
    assert path.stat().st_size < 100 * 100_000
    with read_dump(path) as dump:
        assert len(dump.buffers) == 100_000
        assert len({id(buffer.stack) for buffer in dump.buffers}) == 50
        assert dump.buffers[77].stack == stacks[27]


def test_reading_needs_neither_torch_nor_anything_optional(tmp_path: Path) -> None:
    """The package's own front needs torch; what reads a dump does not."""
    path = dump_of_a_server(tmp_path / "run.safetensors")
    code = (
        "import sys, types\n"
        "for name in ('torch', 'triton', 'cupy', 'cuda', 'sglang', 'safetensors'): sys.modules[name] = None\n"
        "front = types.ModuleType('shadowgraph')\n"
        f"front.__path__ = [{os.path.dirname(sg.__file__)!r}]\n"
        "front.__version__ = 'x'\n"
        "sys.modules['shadowgraph'] = front\n"
        "from shadowgraph.commands.main import main\n"
        f"sys.exit(main(['report', {str(path)!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "SUMMARY: shadowgraph: SG101 out-of-bounds write: fill wrote 4 bytes past the end" in done.stdout


def test_document_of_a_dump_is_plain(tmp_path: Path) -> None:
    with read_dump(dump_of_a_server(tmp_path / "run.safetensors")) as dump:
        document: Any = dump.document()
    assert json.loads(json.dumps(document)) == document
    assert document["dump"]["payloads"] > 3
