"""`shadowgraph nodes`: what it lists, what its filters keep, what it says where nothing is meant."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dumps.dump_makers import with_manifest
from support.node_makers import ADD, GEMM, UNTRACKED, Model, cuda_nodes, dump_of_nodes

import shadowgraph as sg
from shadowgraph.commands.main import main
from shadowgraph.common.version import VERSION
from shadowgraph.dumps.reader import read_dump
from shadowgraph.wrap.folder.injection_config import InjectionConfig
from shadowgraph.wrap.folder.run_folder import RunFolder

Capture = pytest.CaptureFixture[str]
TABLE, INDPTR, WEIGHTS = ["1", "3", "5"], ["0", "5"], ["3", "4.1"]


@pytest.fixture(scope="session")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump with device nodes as on CUDA."""
    return dump_of_nodes(tmp_path_factory.mktemp("nodes") / "run.safetensors")


def listed(capsys: Capture, path: Path, *words: str) -> list[dict[str, Any]]:
    """Graphs of the JSON document."""
    assert main(["nodes", str(path), "--json", *words]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "shadowgraph.nodes/1"
    graphs: list[dict[str, Any]] = document["graphs"]
    return graphs


def places(capsys: Capture, path: Path, *words: str) -> list[str]:
    return [node["place"] for graph in listed(capsys, path, *words) for node in graph["nodes"]]


def refused(capsys: Capture, code: int, *words: str) -> str:
    assert main(["nodes", *words]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("shadowgraph: error: ")
    assert shown.err.count("\n") == 1
    return shown.err


# -- what is listed ----------------------------------------------------------------------------------------------------


def test_a_capture_on_the_host(tmp_path: Path, capsys: Capture) -> None:
    with sg.debug() as debugger:
        model = Model(debugger)
        model.graph.replay()
        path = debugger.dump(tmp_path / "run.safetensors")
    assert main(["nodes", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(f" of process {os.getpid()}: 2 nodes, 1 replay")
    assert lines[1].split()[:3] == ["0", "kernel", "aten.mul.Tensor"]
    assert lines[1].endswith("  self -> model.table + 0; result -> model.output + 0")
    assert "node_makers.py:" in lines[1]
    assert lines[2].endswith("  self -> model.indptr + 0")
    assert lines[3:] == ["2 of 2 nodes in 1 graph"]


def test_every_fact_of_a_node(dump: Path, capsys: Capture) -> None:
    (graph,) = listed(capsys, dump)
    with read_dump(dump) as opened:
        addresses = {owner.path: owner.view.address for owner in opened.manifest.owners}
    assert (graph["total"], len(graph["nodes"]), graph["replays"], graph["unread"]) == (10, 10, 1, "")
    nodes = {node["place"]: node for node in graph["nodes"]}
    assert list(nodes) == ["0", "1", "2", "3", "4", "4.0", "4.1", "5", "6", "7"]
    add = nodes["1"]
    assert (add["name"], add["grid"], add["block"], add["launch"]) == (ADD, [4, 1, 1], [128, 1, 1], 0)
    assert (add["operator"], add["after"]) == ("aten.mul.Tensor", [0])
    assert add["file"].endswith("node_makers.py")
    assert add["stack"][0]["line"] == add["line"]
    assert [(a["name"], a["offset"], a["buffer"], a["at"], a["sureness"]) for a in add["arguments"]] == [
        ("self", 0, "model.table", 0, "high"),
        ("", 8, "model.output", 16, "medium"),
        ("", 24, "", 0, "low"),
    ]
    assert add["arguments"][2]["address"] == UNTRACKED
    start = addresses["model.table"] + 8
    assert nodes["3"]["reads"] == [{"start": start, "nbytes": 16, "buffer": "model.table", "at": 8}]
    assert (nodes["5"]["file"], nodes["5"]["line"], nodes["5"]["operator"]) == ("/srv/app/model.py", 33, None)
    assert nodes["4.1"]["file"] == "/srv/app/model.py", "inside of what was launched there"
    assert nodes["6"]["note"] == "its arguments cannot be read"


def test_text_has_whole_names_in_a_pipe_and_short_ones_on_a_terminal(
    dump: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["nodes", str(dump)]) == 0
    piped = capsys.readouterr().out
    assert ADD in piped
    assert "\x1b" not in piped
    assert len(piped.splitlines()) == 12, "a node a line"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")  # 80 columns, and no colours to get in the way
    assert main(["nodes", str(dump)]) == 0
    shown = capsys.readouterr().out
    assert "at::native::vectorized_elementwise_kernel<...>\n" in shown
    assert "                 self -> model.table + 0\n" in shown
    assert "                 1 word to memory that is not tracked\n" in shown


def test_the_culprit_is_marked(tmp_path: Path, capsys: Capture) -> None:
    def change(manifest: dict[str, Any]) -> None:
        (finding,) = manifest["facts"]["findings"]
        finding["culprit"].update(status="confirmed", node=5, seen_in=1)
        finding["graph"] = manifest["graphs"][0]["name"]

    path = dump_of_nodes(tmp_path / "run.safetensors", past=1)
    path.write_bytes(with_manifest(path.read_bytes(), change))
    assert main(["nodes", str(path)]) == 0
    marked = [line for line in capsys.readouterr().out.splitlines() if "<-" in line]
    assert len(marked) == 1
    assert marked[0].split()[:3] == ["5", "kernel", "fill_pages"]
    assert marked[0].endswith("  <- culprit of SG101 #1")
    nodes = listed(capsys, path)[0]["nodes"]
    assert [node["place"] for node in nodes if node["culprit_of"]] == ["5"]
    assert nodes[7]["culprit_of"] == [{"finding": 1, "code": "SG101", "status": "confirmed"}]


def test_a_graph_that_could_not_be_read(tmp_path: Path, capsys: Capture) -> None:
    with sg.debug() as debugger:
        model = Model(debugger)
        debugger.graphs[0].unread = "the graph was gone"
        path = debugger.dump(tmp_path / "run.safetensors")
        del model
    assert main(["nodes", str(path)]) == 0
    assert "\n  its device nodes are not known: the graph was gone\n" in capsys.readouterr().out


def test_nothing_was_captured(tmp_path: Path, capsys: Capture) -> None:
    with sg.debug() as debugger:
        path = debugger.dump(tmp_path / "run.safetensors")
    assert main(["nodes", str(path)]) == 0
    assert capsys.readouterr().out == "0 of 0 nodes in 0 graphs\n"
    assert "no graph is called '1'\n" in refused(capsys, 2, str(path), "--graph", "1")


# -- filters -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--buffer", "model.table"], TABLE),
        (["--buffer", "table"], TABLE),
        (["--buffer", "rows"], TABLE),
        (["--buffer", "ptr"], INDPTR),
        (["--buffer", "model.weights"], WEIGHTS),
        (["--kernel", "VECTORIZED"], ["1"]),
        (["--kernel", "aten.mul"], ["1", "2"]),
        (["--kernel", GEMM], ["4.1"]),
        (["--kernel", "no such kernel"], []),
        (["--kind", "kernel"], ["1", "2", "4.1", "5", "6"]),
        (["--kind", "child"], ["4"]),
        (["--kind", "child graph"], ["4"]),
        (["--kind", "alloc"], ["4.0"]),
        (["--kind", "mem_alloc"], ["4.0"]),
        (["--line", "model.py"], ["4", "4.0", "4.1", "5"]),
        (["--line", "app/model.py:33"], ["4", "4.0", "4.1", "5"]),
        (["--line", "model.py:34"], []),
        (["--line", "server.py:7"], ["4", "4.0", "4.1", "5"]),
        (["--buffer", "table", "--kind", "kernel"], ["1", "5"]),
        (["--buffer", "table", "--kind", "kernel", "--line", "model.py:33"], ["5"]),
        (["--buffer", "table", "--kernel", "memcpy", "--graph", "1"], ["3"]),
    ],
)
def test_filters(words: list[str], kept: list[str], dump: Path, capsys: Capture) -> None:
    serial = str(listed(capsys, dump)[0]["serial"])
    words = [serial if before == "--graph" else word for before, word in zip(["", *words], words, strict=False)]
    assert places(capsys, dump, *words) == kept


def test_an_address_stands_for_the_buffer_that_holds_it(dump: Path, capsys: Capture) -> None:
    with read_dump(dump) as opened:
        starts = {owner.path: owner.view.address for owner in opened.manifest.owners}
    assert places(capsys, dump, "--buffer", f"{starts['model.table'] + 31:#x}") == TABLE
    assert places(capsys, dump, "--buffer", str(starts["model.indptr"])) == INDPTR


def test_an_address_that_no_buffer_holds(dump: Path, tmp_path: Path, capsys: Capture) -> None:
    with read_dump(dump) as opened:
        start = next(owner.view.address for owner in opened.manifest.owners if owner.path == "model.table")

    def change(manifest: dict[str, Any]) -> None:
        manifest["buffers"] = [row for row in manifest["buffers"] if row[1] == start]
        manifest["freed"] = []

    path = tmp_path / "run.safetensors"
    path.write_bytes(with_manifest(dump.read_bytes(), change))
    for address, said in ((start + 36, "model.table ends 4 bytes before it"), (start - 8, "begins 8 bytes after it")):
        assert refused(capsys, 9, str(path), "--buffer", f"{address:#x}").endswith(f"{said}\n")


def test_a_filter_tells_how_many_it_left(dump: Path, capsys: Capture) -> None:
    assert main(["nodes", str(dump), "--buffer", "indptr"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ": 10 nodes, 2 shown, 1 replay" in lines[0]
    assert lines[-1] == "2 of 10 nodes in 1 graph"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--buffer", "model.tabel"], 9, "no buffer is called 'model.tabel'; the nearest names are: model.table"),
        (["--buffer", "indptrs"], 9, "the nearest names are: model.indptr"),
        (["--buffer", "zzz"], 9, "no buffer is called 'zzz'; the nearest names are: "),
        (["--buffer", "0x10"], 9, "no buffer holds 0x10; "),
        (["--buffer", "s"], 2, "'s' is the end of several names: model."),
        (["--graph", "grafh"], 2, "no graph is called 'grafh'; the nearest names are: graph#"),
        (["--kind", "shader"], 2, "no kind 'shader'; kinds are: kernel, memcpy, memset, host, child, "),
        (["--line", ":33"], 2, "--line needs a file before the number"),
        (["--nodes"], 2, "unrecognized arguments: --nodes"),
    ],
)
def test_what_nobody_knows_is_one_line(words: list[str], code: int, said: str, dump: Path, capsys: Capture) -> None:
    assert said in refused(capsys, code, str(dump), *words)


def test_files_that_are_no_dump(tmp_path: Path, dump: Path, capsys: Capture) -> None:
    refused(capsys, 3, str(tmp_path / "none"))
    (tmp_path / "other").write_bytes(b"\0" * 100)
    refused(capsys, 14, str(tmp_path / "other"))
    (tmp_path / "cut").write_bytes(dump.read_bytes()[:-1])
    refused(capsys, 12, str(tmp_path / "cut"))
    refused(capsys, 15, str(tmp_path))


def test_texts_give_a_terminal_no_orders(dump: Path, tmp_path: Path, capsys: Capture) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\nall is well"

    def change(manifest: dict[str, Any]) -> None:
        manifest["strings"] = [text + evil for text in manifest["strings"]]
        manifest["graphs"][0].update(name=evil, unread=evil)
        manifest["owners"][0][0] = evil

    path = tmp_path / "run.safetensors"
    path.write_bytes(with_manifest(dump.read_bytes(), change))
    codes = [
        main(["nodes", str(path), *words]) for words in ([], ["--buffer", "x"], ["--graph", "x"], ["--buffer", "0x1"])
    ]
    assert codes == [0, 9, 2, 9]
    shown = capsys.readouterr()
    assert not set(shown.out + shown.err) & {"\x1b", "\x07", "\x9b", "\u202e"}
    assert shown.err.count("\n") == 3
    assert "\nall is well" not in shown.out


def test_what_a_made_up_file_says_need_not_make_a_list(dump: Path, tmp_path: Path, capsys: Capture) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["form"] = ""
        manifest["owners"][0][1][2] = [-(1 << 40)] * len(manifest["owners"][0][1][2])

    path = tmp_path / "run.safetensors"
    path.write_bytes(with_manifest(dump.read_bytes(), change))
    assert "is damaged: no list can be made of it" in refused(capsys, 12, str(path))


# -- a run folder ------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = RunFolder(tmp_path / "run")
    made.begin(["python", "serve.py"], InjectionConfig(made.path), VERSION)
    return Path(made.path)


def test_dumps_of_a_run(folder: Path, dump: Path, tmp_path: Path, capsys: Capture) -> None:
    """Two processes, of one an earlier dump with a graph that was gone later, and one that is damaged."""

    def of(pid: int, time: float, *names: str) -> bytes:
        def change(manifest: dict[str, Any]) -> None:
            manifest.update(pid=pid, time=time)
            (graph,) = manifest["graphs"]
            manifest["graphs"] = [
                {**graph, "name": name, "serial": int(name[-1]), "replays": int(time)} for name in names
            ]

        return with_manifest(dump.read_bytes(), change)

    (folder / "dump-7-1-finding.dump").write_bytes(of(7, 10.0, "graph#1", "graph#2"))
    (folder / "dump-7-1-exit.dump").write_bytes(of(7, 20.0, "graph#2"))
    (folder / "dump-8-1-exit.dump").write_bytes(of(8, 15.0, "graph#1"))
    (folder / "dump-9-1-exit.dump").write_bytes(dump.read_bytes()[:-1])
    assert main(["nodes", str(folder), "--json", "--kind", "memset"]) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("shadowgraph: warning: left out: ")
    assert "dump-9-1-exit.dump is damaged" in shown.err
    graphs = json.loads(shown.out)["graphs"]
    assert [(g["pid"], g["name"], g["replays"], g["dump"].rsplit("-", 1)[1]) for g in graphs] == [
        (7, "graph#1", 10, "finding.dump"),
        (7, "graph#2", 20, "exit.dump"),
        (8, "graph#1", 15, "exit.dump"),
    ]
    assert [len(graph["nodes"]) for graph in graphs] == [1, 1, 1]
    assert [g["pid"] for g in listed(capsys, folder, "--graph", "graph#1")] == [7, 8]


def test_a_buffer_that_one_dump_of_several_knows(folder: Path, dump: Path, capsys: Capture) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["pid"] += 1
        manifest["owners"] = [[path.replace("model.table", "other"), view] for path, view in manifest["owners"]]

    (folder / "dump-1-1-exit.dump").write_bytes(dump.read_bytes())
    (folder / "dump-2-1-exit.dump").write_bytes(with_manifest(dump.read_bytes(), change))
    assert [len(graph["nodes"]) for graph in listed(capsys, folder, "--buffer", "model.table")] == [len(TABLE), 0]


def test_a_run_without_dumps_or_with_none_that_can_be_read(folder: Path, dump: Path, capsys: Capture) -> None:
    assert "holds no dump" in refused(capsys, 15, str(folder))
    (folder / "dump-9-1-exit.dump").write_bytes(dump.read_bytes()[:-1])
    assert "dump-9-1-exit.dump is damaged" in refused(capsys, 12, str(folder))
    shutil.copy(dump, folder / "dump-9-2-exit.dump")
    assert main(["nodes", str(folder)]) == 0


# -- where it runs -----------------------------------------------------------------------------------------------------


def test_a_reader_that_goes_away_is_no_error(dump: Path) -> None:
    code = (
        "import subprocess, sys\n"
        f"words = [sys.executable, '-m', 'shadowgraph', 'nodes', {str(dump)!r}]\n"
        "child = subprocess.Popen(words, stdout=subprocess.PIPE)\n"
        "child.stdout.close()\n"
        "sys.exit(child.wait())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_needs_neither_torch_nor_anything_optional(dump: Path) -> None:
    code = (
        "import sys, types\n"
        "for name in ('torch', 'triton', 'cupy', 'cuda', 'sglang', 'safetensors'): sys.modules[name] = None\n"
        "front = types.ModuleType('shadowgraph')\n"
        f"front.__path__ = [{os.path.dirname(sg.__file__)!r}]\n"
        "front.__version__ = 'x'\n"
        "sys.modules['shadowgraph'] = front\n"
        "from shadowgraph.commands.main import main\n"
        f"sys.exit(main(['nodes', {str(dump)!r}, '--buffer', 'table']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n3 of 10 nodes in 1 graph\n")


def test_memory_that_was_freed_is_named_by_its_line(tmp_path: Path, capsys: Capture) -> None:
    with sg.debug() as debugger:
        model = Model(debugger)
        nodes = cuda_nodes(model)
        debugger.graphs[0].build_device_later(lambda: nodes)
        del model.weights
        path = debugger.dump(tmp_path / "run.safetensors")
    (graph,) = listed(capsys, path, "--kind", "memcpy")
    (node,) = graph["nodes"]
    name = node["writes"][0]["buffer"]
    assert name.startswith("float32[64, 64] from node_makers.py:")
    assert places(capsys, path, "--buffer", name) == WEIGHTS


def test_names_that_the_terminal_cannot_write(tmp_path: Path) -> None:
    with sg.debug() as debugger:
        model = Model(debugger)
        debugger.name("模é", model)
        model.graph.replay()
        path = debugger.dump(tmp_path / "run.safetensors")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for words, shown in (((), "\\u6a21\\xe9.indptr"), (("--json",), "\\u6a21\\u00e9.indptr")):
        ran = subprocess.run(
            [sys.executable, "-m", "shadowgraph", "nodes", str(path), *words],
            env=environment,
            capture_output=True,
            check=False,
        )
        assert (ran.returncode, ran.stderr) == (0, b"")
        assert shown in ran.stdout.decode("ascii")
    assert "模é.indptr" in {
        argument["buffer"] for node in json.loads(ran.stdout)["graphs"][0]["nodes"] for argument in node["arguments"]
    }
