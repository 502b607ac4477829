"""`shadowgraph timeline`: every fact that names a buffer, once, in the order in which it happened."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from commands.verb_makers import Capture, document, printed, refused
from dumps.dump_makers import Server, with_manifest
from support.node_makers import Model, cuda_nodes

import shadowgraph as sg
from shadowgraph.dumps.reader import read_dump


def events(capsys: Capture, *words: object) -> list[dict[str, Any]]:
    """Of the one buffer."""
    (told,) = document(capsys, "timeline", *map(str, words))["timelines"]
    made: list[dict[str, Any]] = told["events"]
    return made


def test_a_page_table_that_is_overrun(worker: Path, capsys: Capture) -> None:
    told = events(capsys, "worker.table", worker)
    times = [event["time"] for event in told]
    known = [time for time in times if time is not None]
    assert known == sorted(known)
    assert times[:2] == [None, None]
    assert [event["what"] for event in told] == [
        *("allocated", "captured"),
        *("launched", "replayed", "launched"),
        *("launched", "found", "replayed", "launched"),
        *("launched", "replayed", "launched"),
    ]
    allocated, captured, filled, first, read = told[:5]
    assert allocated["stack"][0]["file"].endswith("verb_makers.py")
    assert (captured["graph"], captured["access"], captured["node"]) == (first["graph"], "read", 0)
    assert captured["text"] == "given to node 0 aten.mul.Tensor"
    assert (filled["text"], filled["access"], filled["argument"]) == ("fill", "unknown", "target")
    assert (filled["first"], filled["last"]) == (0, 31)
    assert (first["replay"], first["text"]) == (1, f"replay 1 of {first['graph']} began")
    assert (read["text"], read["access"], read["node"]) == ("aten.mul.Tensor", "read", 0)
    found = told[6]
    assert (found["code"], found["phase"], found["replay"], found["first"], found["last"]) == (
        *("SG101", "prepare", 2),
        *(32, 43),
    )
    assert found["text"].startswith("SG101 out-of-bounds write: fill wrote 12 bytes past the end of worker.table ")


def test_an_index_pointer_that_its_graph_rewrites(worker: Path, capsys: Capture) -> None:
    told = events(capsys, "worker.indptr", worker)
    assert [event["access"] for event in told if event["what"] == "captured"] == ["read_write"]
    assert [event["code"] for event in told if event["what"] == "found"] == ["SG102"]
    replays = [event for event in told if event["what"] == "replayed"]
    assert [event["replay"] for event in replays] == [1, 2, 3]
    launched = [event for event in told if event["what"] == "launched"]
    assert {(event["text"], event["first"], event["last"]) for event in launched} == {("aten.mul_.Tensor", 4, 35)}
    assert "set_" not in " ".join(event["text"] for event in told)


def test_a_buffer_that_was_freed(worker: Path, capsys: Capture) -> None:
    """Its free stands before the finding that says so, between its last replay and that of the finding."""
    (found,) = (f for f in read_dump(worker).manifest.facts.findings if f.code == "SG104")
    both = document(capsys, "timeline", "worker.scale", str(worker))["timelines"]
    gone = next(each for each in both if each["serial"] == found.buffer.serial)
    assert gone["alive"] is False
    kinds = [(event["what"], event["code"], event["replay"]) for event in gone["events"]]
    freed = kinds.index(("freed", None, None))
    assert ("replayed", None, 2) in kinds[:freed]
    assert kinds[freed + 1 :][0] == ("found", "SG104", 3)
    assert gone["events"][freed]["text"].startswith("after allocation ")
    text = printed(capsys, "timeline", "worker.scale", str(worker))
    assert re.search(
        r"^  -             freed     after allocation \d+; the dump has no time of it$", text, re.MULTILINE
    )
    assert ", freed\n" in text


def test_who_has_the_bytes_now(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    """A finding on a freed buffer is an event of its victim too."""
    with read_dump(worker) as dump:
        indptr = next(b.serial for b in dump.buffers if b.shape == (9,))

    def change(manifest: dict[str, Any]) -> None:
        for finding in manifest["facts"]["findings"]:
            if finding["code"] == "SG104":
                finding["detail"]["victims"] = [
                    {"name": "worker.indptr", "address": 1, "nbytes": 36, "dtype": "int32", "shape": [9],
                     "serial": indptr, "allocated": []}
                ]  # fmt: skip

    path = tmp_path / "run.dump"
    path.write_bytes(with_manifest(worker.read_bytes(), change))
    told = [event for event in events(capsys, "indptr", path) if event["what"] == "found"]
    assert [event["code"] for event in told] == ["SG102", "SG104"]
    assert told[1]["text"].startswith("has bytes of worker.scale: SG104 ")
    assert told[1]["first"] is None


def test_a_later_revision_comes_with_the_replay_that_showed_it(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    def change(manifest: dict[str, Any]) -> None:
        for finding in manifest["facts"]["findings"]:
            if finding["code"] == "SG102":
                finding["revision"] = 2
                finding["culprit"].update(seen_in=3, status="confirmed", name="mul_kernel", node=5)

    path = tmp_path / "run.dump"
    path.write_bytes(with_manifest(worker.read_bytes(), change))
    told = events(capsys, "indptr", path)
    (revised,) = (event for event in told if event["what"] == "revised")
    assert revised["text"].endswith(", revision 2: confirmed mul_kernel (node 5)")
    assert (revised["replay"], revised["node"]) == (3, 5)
    third = next(event for event in told if event["what"] == "replayed" and event["replay"] == 3)
    assert revised["time"] == third["time"]
    places = [told.index(event) for event in (next(e for e in told if e["what"] == "found"), third, revised)]
    assert places == sorted(places)


def test_nodes_as_on_cuda(cuda_like: Path, capsys: Capture) -> None:
    """What only device nodes point at: nobody saw a launch that was given it."""
    told = events(capsys, "model.weights", cuda_like)
    (captured,) = (event for event in told if event["what"] == "captured")
    assert captured["text"] == "given to device node 3, device node 4.1"
    assert captured["access"] == "unknown"
    assert [event["replay"] for event in told if event["what"] == "replayed"] == [1]


def test_pool_memory_is_allocated_by_a_capture(worker: Path, capsys: Capture) -> None:
    allocated = events(capsys, "worker.doubled", worker)[0]
    assert allocated["text"] == f"while {allocated['graph']} was captured"
    assert allocated["graph"].startswith("graph#")


def test_a_change_that_nobody_was_seen_to_do(tmp_path: Path, capsys: Capture) -> None:
    with sg.debug() as debugger:
        server = Server(debugger)
        debugger.watch(server.page_table)
        server.step()
        path = debugger.dump(tmp_path / "run.dump")
        del server

    def change(manifest: dict[str, Any]) -> None:
        (watch,) = manifest["facts"]["watches"]
        graph = manifest["graphs"][0]["name"]
        watch[1] = [
            {"phase": "replay", "graph": graph, "replay": 1, "writer": writer, "node": None, "stack": [],
             "first": 4, "last": 7}
            for writer in (None, "known")
        ]  # fmt: skip

    path.write_bytes(with_manifest(path.read_bytes(), change))
    (changed,) = (event for event in events(capsys, "page_table", path) if event["what"] == "changed")
    assert changed["text"].endswith(": an unseen writer changed bytes 4 to 7 of it")


def test_the_last_events_and_how_many_were_before(tmp_path: Path, capsys: Capture) -> None:
    with sg.debug() as debugger:
        server = Server(debugger)
        for _ in range(30):
            server.graph.replay()
        path = debugger.dump(tmp_path / "run.dump")
        del server

    def timed(*words: str) -> tuple[int, int]:
        (told,) = document(capsys, "timeline", "page_table", str(path), *words)["timelines"]
        return sum(event["time"] is not None for event in told["events"]), told["earlier"]

    total = timed("--last", "0")[0]
    assert timed("--last", "0")[1] == 0
    assert total >= 60
    assert timed() == (40, total - 40)
    assert timed("--last", "3") == (3, total - 3)
    text = printed(capsys, "timeline", "page_table", str(path), "--last", "3")
    assert f"  ... {total - 3} earlier events left out; --last shows more\n" in text
    assert text.splitlines()[-1].split()[1] == "launched"
    assert "replay 30 of " in text
    assert "--last must not be below 0" in refused(capsys, 2, "timeline", "page_table", str(path), "--last", "-1")


def test_text(worker: Path, capsys: Capture) -> None:
    lines = printed(capsys, "timeline", "worker.table", str(worker)).splitlines()
    assert re.fullmatch(
        r"worker\.table  int32\[4, 2\]  32 bytes at 0x[0-9a-f]+, static, allocation \d+ of .*", lines[0]
    )
    assert re.fullmatch(r"  -             allocated at \S+verb_makers\.py:\d+ in __init__", lines[1])
    clock = r"\d\d:\d\d:\d\d\.\d{3}"
    for wanted in (
        r"  -             captured  graph#\d+ reads: given to node 0 aten\.mul\.Tensor at \S+:\d+",
        rf"  \.\.\. the dump remembers launches and replays since {clock}",
        rf"  {clock}  launched  fill was given \(target\) bytes 0 to 31 at \S+:\d+",
        rf"  {clock}  launched  aten\.mul\.Tensor \(graph#\d+ node 0\) reads \(self\) bytes 0 to 31 at \S+:\d+",
        rf"  {clock}  found     SG101 out-of-bounds write: .* \(#\d+\) at \S+:\d+",
    ):
        assert any(re.fullmatch(wanted, line) for line in lines), wanted


def test_what_was_never_used(tmp_path: Path, capsys: Capture) -> None:
    with sg.debug() as debugger:
        with debugger.guard():
            idle = torch.empty(4)
        debugger.name("server.idle", [idle])
        path = debugger.dump(tmp_path / "run.dump")

    def change(manifest: dict[str, Any]) -> None:
        manifest.update(launches=[], replays=[])

    path.write_bytes(with_manifest(path.read_bytes(), change))
    (event,) = events(capsys, "idle[0]", path)
    assert event["what"] == "allocated"
    assert "  the dump remembers no launch and no replay\n" in printed(capsys, "timeline", "idle[0]", str(path))


def test_redacted(redacted: Path, worker: Path, capsys: Capture) -> None:
    told = [event["what"] for event in events(capsys, "worker.table", redacted)]
    assert told == [event["what"] for event in events(capsys, "worker.table", worker)]


def test_a_host_graph_and_its_device_nodes_are_one_capture(tmp_path: Path, capsys: Capture) -> None:
    with sg.debug() as debugger:
        model = Model(debugger)
        nodes = cuda_nodes(model)
        debugger.graphs[0].build_device_later(lambda: nodes)
        path = debugger.dump(tmp_path / "run.dump")
    captured = [event for event in events(capsys, "model.table", path) if event["what"] == "captured"]
    assert [event["text"] for event in captured] == ["given to node 0 aten.mul.Tensor"]
