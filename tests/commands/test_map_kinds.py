"""`shadowgraph map --kind`: each kind as text, document and picture; what cannot be drawn is one line."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
from commands.verb_makers import Capture, empty_dump, of_process, printed, refused, run_folder
from dumps.dump_makers import with_manifest

from shadowgraph.commands.main import main

KINDS = ("memory", "aliases", "writes", "bytes", "rows")
SCHEMAS = {"memory": "map", "aliases": "aliases", "writes": "writes", "bytes": "hexdump", "rows": "rows"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_in_every_form(kind: str, worker: Path, tmp_path: Path, capsys: Capture) -> None:
    assert printed(capsys, "map", str(worker), "--kind", kind).strip()
    assert main(["map", str(worker), "--kind", kind, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == f"shadowgraph.{SCHEMAS[kind]}/1"
    pytest.importorskip("matplotlib")
    for suffix, begins in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        path = tmp_path / f"{kind}.{suffix}"
        assert printed(capsys, "map", str(worker), "--kind", kind, "-o", str(path)) == f"wrote {path}\n"
        assert path.read_bytes().startswith(begins)
    assert sorted(tmp_path.iterdir()) == [tmp_path / f"{kind}.{suffix}" for suffix in ("pdf", "png", "svg")]


def test_lines(worker: Path, capsys: Capture) -> None:
    text = printed(capsys, "map", str(worker), "--kind", "writes")
    assert "      write it by signature: node 1 aten.mul_.Tensor at verb_makers.py:" in text
    assert "  worker.indptr  int32[9]  36 B\n" in text
    assert " by aten.mul_.Tensor (node 1) in replay" in text
    assert "worker.rows  int32[2, 2]" in printed(capsys, "map", str(worker), "--kind", "aliases")
    text = printed(capsys, "map", str(worker), "--kind", "rows", "--buffer", "worker.table")
    assert "worker.table  4 rows, read by graph#" in text
    assert "wwww" in text


def test_one_finding(worker: Path, capsys: Capture) -> None:
    for kind in ("memory", "writes", "bytes", "aliases"):
        assert printed(capsys, "map", str(worker), "--kind", kind, "--finding", "1")
    assert "no finding #77; there are: #1" in refused(capsys, 2, "map", str(worker), "--finding", "77")
    said = refused(capsys, 2, "map", str(worker), "--kind", "rows", "--finding", "1")
    assert "is about no rows" in said


def test_what_does_not_fit_is_one_line(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    where = str(worker)
    assert "invalid choice: 'heap'" in refused(capsys, 2, "map", where, "--kind", "heap")
    said = refused(capsys, 2, "map", where, "--kind", "bytes", "--graph", "1")
    assert "--kind bytes goes without --graph; it takes --buffer, --finding" in said
    for kind in KINDS:
        words = ("map", where, "--kind", kind, "--buffer", "worker.tabel")
        assert "no buffer is called 'worker.tabel'; the nearest names are: worker.table" in refused(capsys, 9, *words)
    assert "no graph is called 'x'" in refused(capsys, 2, "map", where, "--kind", "writes", "--graph", "x")
    pytest.importorskip("matplotlib")
    for kind in KINDS:
        path = str(tmp_path / "none" / "map.png")
        assert "cannot write" in refused(capsys, 3, "map", where, "--kind", kind, "-o", path)
    assert list(tmp_path.iterdir()) == []


def test_a_dump_without_what_is_drawn(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    empty = str(empty_dump(tmp_path / "empty.dump"))
    said = refused(capsys, 2, "map", empty, "--kind", "writes")
    assert "no graph was captured while this was watched, so that there are no nodes" in said
    assert "no history of rows was kept" in refused(capsys, 2, "map", empty, "--kind", "rows")
    assert "no finding is about bytes" in refused(capsys, 2, "map", empty, "--kind", "bytes")
    assert "no two owners share bytes" in printed(capsys, "map", empty, "--kind", "aliases")
    older = tmp_path / "older.dump"

    def of_before(manifest: dict[str, object]) -> None:
        for name in ("stores", "write_sets", "input_rows"):
            del manifest[name]
        manifest["form"] = "0123456789ab"

    older.write_bytes(with_manifest(worker.read_bytes(), of_before))
    assert "no history of rows was kept" in refused(capsys, 2, "map", str(older), "--kind", "rows")
    assert "aten.mul_.Tensor" in printed(capsys, "map", str(older), "--kind", "writes")


def test_a_run_folder(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    dumps = {f"dump_{pid}_1_exit": of_process(worker.read_bytes(), pid, 1.0) for pid in (7, 8)}
    folder = str(run_folder(tmp_path / "run", **dumps))
    text = printed(capsys, "map", folder, "--kind", "writes")
    assert "of process 7: " in text
    assert "of process 8: " in text
    path = str(tmp_path / "map.png")
    for words in (["--kind", "rows", "-o", path], ["--memory-viz", path]):
        assert "dumps of 7, 8; name one with --pid" in refused(capsys, 2, "map", folder, *words)
    assert "processes 7, 8 have a finding #1" in refused(capsys, 2, "map", folder, "--kind", "bytes", "--finding", "1")


def test_memory_viz(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "out.pickle"
    assert printed(capsys, "map", str(worker), "--memory-viz", str(path)) == f"wrote {path}\n"
    assert pickle.loads(path.read_bytes())["segments"]
    said = refused(capsys, 2, "map", str(worker), "--memory-viz", str(path), "--kind", "rows")
    assert "it goes without the options of a map" in said
    assert "cannot write" in refused(capsys, 3, "map", str(worker), "--memory-viz", str(tmp_path / "none" / "x"))


def test_no_display_is_needed(worker: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setitem(os.environ, "MPLBACKEND", "TkAgg")
    for kind in KINDS:
        printed(capsys, "map", str(worker), "--kind", kind, "-o", str(tmp_path / f"{kind}.png"))


@pytest.mark.parametrize("kind", KINDS)
def test_without_matplotlib(
    kind: str, worker: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    said = refused(capsys, 5, "map", str(worker), "--kind", kind, "-o", str(tmp_path / "map.png"))
    assert "plots need matplotlib (" in said
    assert list(tmp_path.iterdir()) == []
