"""`shadowgraph map`: the map of a dump is that of the live run; lines, documents and pictures of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands.verb_makers import Capture, Worker, document, of_process, printed, refused, run_folder
from dumps.dump_makers import Server, with_manifest

import shadowgraph as sg
from shadowgraph.dumps.naming import BufferNames
from shadowgraph.dumps.reader import read_dump
from shadowgraph.views.dumped_map import dumped_map
from shadowgraph.views.memory_map import MemoryMap


def buffers(capsys: Capture, *words: object) -> dict[str, dict[str, Any]]:
    """Buffers of the one map, by name."""
    (made,) = document(capsys, "map", *map(str, words))["maps"]
    return {buffer["name"]: buffer for buffer in made["map"]["buffers"]}


def line_of(text: str, name: str) -> str:
    (line,) = (line for line in text.splitlines() if f"  {name}  " in line)
    return line


def test_it_is_the_map_of_the_live_run(tmp_path: Path) -> None:
    """Names, addresses, guards, other owners, damage: all of it, also of what was freed."""
    with sg.debug() as debugger:
        worker = Worker(debugger)
        worker.step()
        worker.step(past=3)
        worker.lose(debugger)
        worker.step()
        path = debugger.dump(tmp_path / "run.dump")
        live = MemoryMap.of(debugger)
        with read_dump(path) as dump:
            kept = dumped_map(dump, BufferNames(dump))
        del worker
    assert kept == live
    assert len(kept.damages) == 3
    assert any(not buffer.alive for buffer in kept.buffers)
    assert any(buffer.aliases for buffer in kept.buffers)


def test_text(worker: Path, capsys: Capture) -> None:
    text = printed(capsys, "map", str(worker))
    assert re.match(r"memory of process \d+: \d+ buffers, [\d.]+ KiB, \d+ guarded; 3 findings\n", text)
    table = line_of(text, "worker.table")
    assert re.fullmatch(r"  0x[0-9a-f]{12}  ====\[#{24}\]!=======  worker\.table  int32\[4, 2\]  32 B, static", table)
    assert re.search(r"\n +#\d SG101: \+12 B by fill while preparing replay 2 of graph#\d+\n", text)
    assert re.search(r"\n +also worker\.rows: worker\.table\[1:3\]\n", text)
    bar = re.search(r"\[(.{24})\]", line_of(text, "worker.indptr"))
    assert bar is not None
    assert bar[1].startswith("##!") and bar[1].count("!") >= 4, "inside, from the second element on"  # noqa: PT018
    assert re.search(r"\[-{24}\] .*worker\.scale.*, freed\n", text)
    assert re.search(r"worker\.doubled  int32\[4, 2\]  32 B, pool of graph#\d+\n", text)
    starts = [int(found, 16) for found in re.findall(r"^  (0x[0-9a-f]{12}) ", text, flags=re.MULTILINE)]
    assert starts == sorted(starts)


def test_damage_before_the_start_is_drawn_in_the_head(tmp_path: Path, capsys: Capture) -> None:
    def change(manifest: dict[str, Any]) -> None:
        (finding,) = manifest["facts"]["findings"]
        finding["bytes"].update(first=-4, last=-1, ranges=[[-4, -1]], side="before")

    with sg.debug() as debugger:
        server = Server(debugger)
        server.step(past=1)
        path = debugger.dump(tmp_path / "run.dump")
        del server
    path.write_bytes(with_manifest(path.read_bytes(), change))
    text = printed(capsys, "map", str(path))
    assert f"  ===![{'#' * 24}]========  server.page_table  " in text
    assert re.search(r"#1 SG101: -4 B by fill", text)


def test_of_a_graph(cuda_like: Path, worker: Path, capsys: Capture) -> None:
    with read_dump(worker) as dump:
        name = dump.manifest.graphs[0].name
    named = {found for found in buffers(capsys, worker, "--graph", name) if found.startswith("worker.")}
    assert named == {"worker.table", "worker.indptr", "worker.scale", "worker.doubled", "worker.scaled"}
    assert "worker.large" in buffers(capsys, worker)
    with read_dump(cuda_like) as dump:
        number = str(dump.manifest.graphs[0].serial)
    assert set(buffers(capsys, cuda_like, "--graph", number)) == {
        *("model.table", "model.indptr", "model.output"),
        "model.weights",  # only device nodes point into it
    }
    assert "no graph is called 'grafh'; the nearest names are: graph#" in refused(
        capsys, 2, "map", str(worker), "--graph", "grafh"
    )


def test_of_a_buffer_and_its_neighbours(tmp_path: Path, capsys: Capture) -> None:
    import torch

    with sg.debug() as debugger:
        with debugger.guard():
            kept = [torch.zeros(16) for _ in range(30)]
        debugger.name("kept", kept)
        path = debugger.dump(tmp_path / "run.dump")
        order = sorted(range(30), key=lambda index: kept[index].data_ptr())
    near = [f"kept[{index}]" for index in order[6:15]]
    found = list(buffers(capsys, path, "--buffer", f"kept[{order[10]}]"))
    assert [name for name in found if name.startswith("kept")] == near
    assert "no buffer is called 'kept[99]'" in refused(capsys, 9, "map", str(path), "--buffer", "kept[99]")


def test_many_buffers_are_folded(tmp_path: Path, capsys: Capture) -> None:
    import torch

    with sg.debug() as debugger:
        server = Server(debugger)
        with debugger.guard():
            kept = [torch.zeros(16) for _ in range(60)]
        server.step(past=1)
        path = debugger.dump(tmp_path / "run.dump")
        del kept, server
    text = printed(capsys, "map", str(path), "--limit", "5")
    assert len(re.findall(r"^  0x\w+  [ =!]{4}\[", text, flags=re.MULTILINE)) in (5, 6)
    folded = [int(number) for number in re.findall(r"\.\.\. (\d+) buffers, ", text)]
    total = re.search(r": (\d+) buffers", text)
    assert total is not None
    assert sum(folded) == int(total[1]) - len(re.findall(r"^  0x\w+  [ =!]{4}\[", text, flags=re.MULTILINE))
    assert "#1 SG101" in text, "damaged ones keep their line"
    assert "--limit must be from 1 to 200, not 0" in refused(capsys, 2, "map", str(path), "--limit", "0")


@pytest.mark.parametrize(("suffix", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_pictures(suffix: str, begins: bytes, worker: Path, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"map.{suffix}"
    assert printed(capsys, "map", str(worker), "-o", str(path)) == f"wrote {path}\n"
    content = path.read_bytes()
    assert content.startswith(begins)
    if suffix == "svg":
        assert b'id="damage:1"' in content
        assert b"Memory map of process" in content


def test_what_cannot_be_drawn_is_one_line(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    assert "must end in .png, .svg or .pdf" in refused(capsys, 2, "map", str(worker), "-o", str(tmp_path / "map.tiff"))
    path = str(tmp_path / "map.png")
    assert "take one of them" in refused(capsys, 2, "map", str(worker), "-o", path, "--json")
    pytest.importorskip("matplotlib")
    assert "cannot write" in refused(capsys, 3, "map", str(worker), "-o", str(tmp_path / "none" / "map.png"))
    folder = run_folder(
        tmp_path / "run",
        dump_7_1_exit=of_process(worker.read_bytes(), 7, 1.0),
        dump_8_1_exit=of_process(worker.read_bytes(), 8, 1.0),
    )
    said = refused(capsys, 2, "map", str(folder), "-o", path)
    assert "a picture is of one process, and there are dumps of 7, 8; name one with --pid" in said
    assert printed(capsys, "map", str(folder), "-o", path, "--pid", "8") == f"wrote {path}\n"


def test_without_matplotlib_it_is_one_line(worker: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('matplotlib', 'torch'): sys.modules[name] = None\n"
        "import types\n"
        "front = types.ModuleType('shadowgraph')\n"
        f"front.__path__ = [{os.path.dirname(sg.__file__)!r}]\n"
        "front.__version__ = 'x'\n"
        "sys.modules['shadowgraph'] = front\n"
        "from shadowgraph.commands.main import main\n"
        f"sys.exit(main(['map', {str(worker)!r}, '-o', {str(tmp_path / 'map.png')!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.startswith("shadowgraph: error: plots need matplotlib (")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_redacted(redacted: Path, worker: Path, capsys: Capture) -> None:
    assert set(buffers(capsys, redacted)) >= {"worker.table", "worker.indptr", "worker.large"}
    assert "SG101: +12 B" in printed(capsys, "map", str(redacted))
