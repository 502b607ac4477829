"""Dumps of a device that cannot be read, in full or in part, and dumps without values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dump_makers import Server, dump_of_a_server, guarded, overflow

import shadowgraph as sg
from shadowgraph.commands.main import main
from shadowgraph.dumps.reader import read_dump
from shadowgraph.dumps.redaction import hidden
from shadowgraph.dumps.schema import Why
from shadowgraph.engines.numpy_engine import NumpyEngine
from shadowgraph.model.ranges import ByteRange
from shadowgraph.render.text.text import Report

DEAD = "CUDA error: an illegal memory access was encountered"


def dead(*_: object, **__: object) -> Any:
    raise RuntimeError(f"{DEAD}\nCUDA kernel errors might be reported later")


def kill(monkeypatch: pytest.MonkeyPatch) -> None:
    for method in ("read", "read_many", "check", "fetch", "write_canaries"):
        monkeypatch.setattr(NumpyEngine, method, dead)


@pytest.mark.parametrize("check", [True, False], ids=["noticed by a check", "noticed by the dump"])
def test_a_dead_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], check: bool
) -> None:
    with sg.debug() as debugger:
        server = Server(debugger)
        server.step(past=1)
        server.step()
        server.page_table.fill_(5)
        with monkeypatch.context() as patch:
            kill(patch)
            path = debugger.dump(tmp_path / "run.safetensors", check=check, reason="exception")
            live = debugger.report(quiet=True)
    assert live.facts.lost == DEAD
    assert live.facts.last_values
    with read_dump(path) as dump:
        assert dump.facts() == live.facts
        assert str(Report(dump.facts())) == str(live)
        assert {row.why for row in dump.manifest.payloads} == {Why.SHADOW}, "nothing was read from the device"
        values = {name: np.frombuffer(data, dtype=dtype) for name, dtype, data in dump.facts().last_values}
        assert values["server.indptr"].tolist() == list(range(1, 10)), "as it was when the second replay began"
        lost = {row.name: row.reason for row in dump.manifest.unread}
        assert {"server.page_table", "server.indptr", "server.weights"} <= set(lost)
        assert all(DEAD in reason for reason in lost.values())
        assert dump.launches[-1].name == "aten.fill_.Scalar"
        assert dump.buffers
        assert dump.graphs[0].nodes
    assert main(["report", str(path)]) == 0
    out = capsys.readouterr().out
    assert "ran before: aten aten.fill_.Scalar at " in out
    assert "self is server.page_table (int32[4, 2]) at 0x" in out
    assert "dump: could not be read (" in out  # names the first few, of all that lives in this process


def test_only_known_losses_are_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One range that cannot be read costs the others nothing, and does not end the checking."""
    with sg.debug() as debugger:
        tables = [guarded(debugger, 4) for _ in range(3)]
        debugger.name("tables", tables)
        real = NumpyEngine.read

        def fragile(self: NumpyEngine, where: ByteRange) -> bytes:
            if where.start == tables[1].data_ptr():
                raise RuntimeError("CUDA error: invalid argument")
            return real(self, where)

        with monkeypatch.context() as patch:
            patch.setattr(NumpyEngine, "read", fragile)
            patch.setattr(NumpyEngine, "read_many", lambda self, ranges: [memoryview(self.read(r)) for r in ranges])
            path = debugger.dump(tmp_path / "run.safetensors")
        with read_dump(path) as dump:
            assert dump.manifest.facts.lost is None
            assert [(row.name, row.reason) for row in dump.manifest.unread] == [
                ("tables[1]", "RuntimeError: CUDA error: invalid argument")
            ]
            held = {row.start for row in dump.manifest.payloads if row.why is Why.WHOLE}
            assert held & {table.data_ptr() for table in tables} == {tables[0].data_ptr(), tables[2].data_ptr()}
        overflow(tables[0])
        assert len(debugger.check()) == 1


def test_a_dead_device_is_asked_a_few_times_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def ask(self: NumpyEngine, where: object) -> Any:
        asked.append(where)
        return dead()

    with sg.debug() as debugger:
        tables = [guarded(debugger, 4) for _ in range(50)]
        with monkeypatch.context() as patch:
            patch.setattr(NumpyEngine, "read", ask)
            patch.setattr(NumpyEngine, "read_many", ask)
            path = debugger.dump(tmp_path / "run.safetensors", check=False)
            assert 0 < len(asked) <= 4
            debugger.dump(path)
            assert len(asked) <= 4, "known to be lost: not asked at all"
    with read_dump(path) as dump:
        assert {row.start for row in dump.manifest.unread} >= {table.data_ptr() for table in tables}


def test_no_memory_for_one_big_copy_falls_back_to_small_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: NumpyEngine, ranges: Sequence[ByteRange]) -> list[memoryview]:
        raise MemoryError

    with sg.debug() as debugger:
        tables = [guarded(debugger, 4) for _ in range(5)]
        monkeypatch.setattr(NumpyEngine, "read_many", full)
        path = debugger.dump(tmp_path / "run.safetensors")
    with read_dump(path) as dump:
        assert {row.start for row in dump.manifest.payloads} >= {table.data_ptr() for table in tables}
        assert dump.manifest.unread == ()


TOKENS = np.array([0x51AD0001, 0x51AD0002, 0x51AD0003, 0x51AD0004], dtype=np.int32)


def spellings(data: np.ndarray[Any, Any]) -> list[bytes]:
    """The tokens as bytes, as hexadecimal and as numbers."""
    found = []
    for token in data:
        raw = token.tobytes()
        found += [raw, raw.hex().encode(), str(int(token)).encode(), raw[:3], raw.hex()[:6].encode()]
    return found


@pytest.mark.parametrize("lost", [False, True], ids=["alive", "dead"])
def test_a_redacted_dump_holds_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    tokens = torch.from_numpy(TOKENS)
    big = int(TOKENS[0])
    with sg.debug() as debugger:
        ids = guarded(debugger, 4)
        debugger.name("cache", {big: {(big, 1): ids}, "input_ids": [ids]})
        ids.copy_(tokens)
        dirty = guarded(debugger, 4)  # its block goes to a float buffer, with the ids still in it
        dirty.copy_(tokens)
        start = dirty.data_ptr()
        del dirty
        with debugger.guard():
            floats = torch.empty(4, dtype=torch.float32)
        assert floats.data_ptr() == start
        debugger.invariant(ids, sg.index_range(0, 10))
        debugger.protect(ids)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            ids.add_(1)
        graph.replay()
        plain = debugger.dump(tmp_path / "plain.safetensors")
        assert len(debugger.findings) >= 2
        with monkeypatch.context() as patch:
            if lost:
                kill(patch)
            path = debugger.dump(tmp_path / "redacted.safetensors", redact=True)
            live = debugger.facts()
    data = path.read_bytes()
    for spelling in spellings(TOKENS):
        assert spelling not in data
    assert any(spelling in plain.read_bytes() for spelling in spellings(TOKENS))
    with read_dump(path) as dump:
        facts = dump.facts()
        assert dump.manifest.redacted
        assert [(f.code, f.fingerprint, f.bytes) for f in facts.findings] == [
            (f.code, f.fingerprint, f.bytes) for f in live.findings
        ]
        assert {buffer.start for buffer in dump.buffers} >= {ids.data_ptr(), start}
        assert {owner.path for owner in dump.manifest.owners} >= {"cache[...][...]"}
        left = {entry.what for entry in dump.manifest.left_out if entry.reason == "redacted"}
        assert {"contents of memory", "expected and found bytes of findings"} <= left
        assert ("mirrored values" in left) == lost


def test_a_redacted_dump_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = dump_of_a_server(tmp_path / "run.safetensors", redact=True)
    assert main(["report", str(path)]) == 0
    out = capsys.readouterr().out
    assert "dump: left out (redacted): " in out
    assert "SUMMARY: shadowgraph: SG101 out-of-bounds write: fill wrote 4 bytes past the end of server" in out


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("draft.attn_backends[1].kv_indices", "draft.attn_backends[1].kv_indices"),
        ('attn.metadata["kv_indptr"]', 'attn.metadata["kv_indptr"]'),
        ('cache["what is a graph"].value', "cache[...].value"),
        ('cache["a]b\\"c"].value', "cache[...].value"),
        ("root.children[15043].children[(3, 4)].value", "root.children[...].children[...].value"),
        ("cache[b'x]y'][torch.int32]", "cache[...][torch.int32]"),
        ("graphs[Mode.DECODE][<Key #3>]", "graphs[Mode.DECODE][<Key #3>]"),
        ("int32[3, 128] from backend.py:12", "int32[3, 128] from backend.py:12"),
    ],
)
def test_keys_that_may_be_text_are_hidden(path: str, shown: str) -> None:
    assert hidden(path) == shown
