"""How verbs find a buffer: by the last part of its name, of any form, before or after the dump or as an option."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from commands.verb_makers import Capture, document, printed, refused

import shadowgraph as sg
from shadowgraph.commands.main import main
from shadowgraph.commands.opening import note
from shadowgraph.views.alias_map import AliasMap

VERBS = ["hexdump", "timeline", "aliases", "nodes", "map"]
each_verb = pytest.mark.parametrize("verb", VERBS)


class Attention:
    def __init__(self) -> None:
        self.metadata = {"kv_indptr": torch.zeros(5, dtype=torch.int32), "page table": torch.zeros(6)}
        self.tables = [torch.zeros(7), torch.zeros(8)]
        self.drafts = {"pages": torch.zeros(9)}
        self.verify = {"pages": torch.zeros(10)}
        self.scale = torch.zeros(11)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with sg.debug() as debugger:
        with debugger.guard():
            attn = Attention()
        debugger.name("attn", attn)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            out = attn.metadata["kv_indptr"] + 1
        graph.replay()
        assert AliasMap.of(debugger, buffer="kv_indptr").panels is not None
        made = debugger.dump(tmp_path_factory.mktemp("words") / "run.dump")
    del out
    return made


def shape(capsys: Capture, word: str, dump: Path) -> list[int]:
    (buffer,) = document(capsys, "hexdump", str(dump), word)["buffers"]
    found: list[int] = buffer["shape"]
    return found


@pytest.mark.parametrize(
    ("word", "elements"),
    [
        ("kv_indptr", 5),
        ('["kv_indptr"]', 5),
        ('metadata["kv_indptr"]', 5),
        ("attn.metadata[kv_indptr]", 5),
        ("page table", 6),
        ("[1]", 8),
        ("tables[0]", 7),
        ("scale", 11),
        ("verify[pages]", 10),
    ],
)
def test_a_unique_last_part(word: str, elements: int, dump: Path, capsys: Capture) -> None:
    assert shape(capsys, word, dump) == [elements]


@each_verb
def test_an_ambiguous_one_lists_the_candidates(verb: str, dump: Path, capsys: Capture) -> None:
    said = refused(capsys, 2, verb, str(dump), "pages")
    assert said.endswith("""'pages' is the end of several names: attn.drafts["pages"], attn.verify["pages"]\n""")


@each_verb
def test_an_unknown_one_names_what_is_near(verb: str, dump: Path, capsys: Capture) -> None:
    said = refused(capsys, 9, verb, str(dump), "kv_indprt")
    assert """no buffer is called 'kv_indprt'; the nearest names are: attn.metadata["kv_indptr"]""" in said


@each_verb
def test_the_places_of_the_buffer(
    verb: str, dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(dump, "run.dump")
    told = printed(capsys, verb, "run.dump", "kv_indptr")
    for words in (
        [verb, "kv_indptr", "run.dump"],
        [verb, "run.dump", "--buffer", "kv_indptr"],
        [verb, "--buffer=kv_indptr", "run.dump"],
    ):
        assert printed(capsys, *words) == told
    made = document(capsys, verb, "run.dump", "kv_indptr")
    capsys.readouterr()
    assert main([verb, "run.dump", "--json", "kv_indptr"]) == 0
    assert json.loads(capsys.readouterr().out) == made
    Path("kv_indptr").write_text("a file called like a buffer")
    assert printed(capsys, verb, "run.dump", "kv_indptr") == told


@each_verb
def test_two_buffers_and_no_dump(verb: str, dump: Path, capsys: Capture) -> None:
    said = refused(capsys, 2, verb, str(dump), "scale", "--buffer", "kv_indptr")
    assert f"two buffers, 'scale' and 'kv_indptr'; use: shadowgraph {verb} DUMP BUFFER" in said
    said = refused(capsys, 3, verb, "none.dump", "kv_indptr")
    assert f"cannot read none.dump, nor kv_indptr: No such file; use: shadowgraph {verb} DUMP BUFFER" in said
    assert "unrecognized arguments: more" in refused(capsys, 2, verb, str(dump), "scale", "more")


def test_a_verb_that_needs_a_buffer(dump: Path, capsys: Capture) -> None:
    said = refused(capsys, 2, "hexdump", str(dump))
    assert "hexdump takes a dump and a buffer of it; use: shadowgraph hexdump DUMP BUFFER" in said


def test_one_process_of_nodes(dump: Path, capsys: Capture) -> None:
    (graph,) = document(capsys, "nodes", str(dump))["graphs"]
    assert document(capsys, "nodes", str(dump), "--pid", str(graph["pid"]))["graphs"] == [graph]
    assert f"no dump of process 1 in {dump}; there are dumps of: {graph['pid']}" in refused(
        capsys, 2, "nodes", str(dump), "--pid", "1"
    )


def test_a_kernel_that_no_graph_has(dump: Path, capsys: Capture) -> None:
    assert main(["nodes", str(dump), "--kernel", "aten.ad.Tensor"]) == 0
    shown = capsys.readouterr()
    assert "0 of 1 node in" in shown.out
    note = "shadowgraph: note: no kernel or operator has 'aten.ad.Tensor' in its name (did you mean aten.add.Tensor?)\n"
    assert shown.err == note
    assert main(["nodes", str(dump), "--kernel", "ADD"]) == 0
    assert capsys.readouterr().err == ""


def test_a_note_moves_no_cursor(capsys: Capture) -> None:
    note("did you mean fill\x1b[2J?")
    assert capsys.readouterr().err == "shadowgraph: note: did you mean fill\ufffd[2J?\n"
