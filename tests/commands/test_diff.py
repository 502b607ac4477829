"""`shadowgraph diff`: what a fix changed, by name and fingerprint, and nothing that differs from run to run anyway."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands.verb_makers import Capture, document, of_process, printed, refused, run_folder, worker_dump
from dumps.dump_makers import with_manifest

import shadowgraph as sg
from shadowgraph.commands.main import main
from shadowgraph.demos.kernels import fill
from shadowgraph.dumps.reader import read_dump
from shadowgraph.tracking.allocator import host_allocator


class Draft:
    """An index buffer that lacks a factor, and whose graph has a node more than the fixed one."""

    def __init__(self, debugger: sg.Debugger, fixed: bool, more: bool = False) -> None:
        with debugger.guard():
            self.indices = torch.zeros((3, 8 if fixed else 4), dtype=torch.int32)
            self.lens = torch.ones(4, dtype=torch.int64 if fixed else torch.int32)
            self.kept = torch.zeros(16)
            self.extra = [torch.zeros(2) for _ in range(20 if more else 0)]
        self.last = self.indices[2]
        if fixed:
            self.also = self.lens[:2]
        else:
            self.half = self.kept[8:]
        debugger.name("draft", self)
        self.graph = sg.HostGraph()
        with sg.host_graph(self.graph):
            self.total = self.indices.sum()
            if not fixed:
                self.kept.add_(1)

    def step(self) -> None:
        fill[(1,)](self.indices, 0, 24, 1, BLOCK=256)
        self.graph.replay()


def draft_dump(path: Path, fixed: bool, more: bool = False) -> Path:
    with sg.debug() as debugger:
        draft = Draft(debugger, fixed, more)
        draft.step()
        written = debugger.dump(path)
        del draft
    return written


def same_graph_names(path: Path) -> Path:
    """As two processes would have it, whose graphs are both the first."""

    def change(manifest: dict[str, Any]) -> None:
        for graph in manifest["graphs"]:
            graph["name"] = "graph#1"

    path.write_bytes(with_manifest(path.read_bytes(), change))
    return path


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return same_graph_names(draft_dump(tmp_path_factory.mktemp("before") / "before.dump", fixed=False))


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return same_graph_names(draft_dump(tmp_path_factory.mktemp("after") / "after.dump", fixed=True))


def differences(capsys: Capture, *words: object) -> dict[str, Any]:
    made: dict[str, Any] = document(capsys, "diff", *map(str, words))["differences"]
    return made


def test_a_fix(before: Path, after: Path, capsys: Capture) -> None:
    found = differences(capsys, before, after)
    assert [(f["code"], f["before"], f["after"]) for f in found["gone"]] == [("SG101", 1, 0)]
    assert (found["new"], found["same"], found["compared"]) == ([], [], True)
    changed = {each["name"]: (each["before"], each["after"]) for each in found["buffers"]}
    assert set(changed) == {"draft.indices", "draft.lens"}
    ((one,), (other,)) = changed["draft.indices"]
    assert (one["nbytes"], one["shape"], other["nbytes"], other["shape"]) == (48, [3, 4], 96, [3, 8])
    ((one,), (other,)) = changed["draft.lens"]
    assert (one["dtype"], other["dtype"]) == ("int32", "int64")
    (view,) = found["views"]
    assert (view["name"], view["before"][0]["offset"], view["after"][0]["offset"]) == ("draft.last", 32, 64)
    aliases = {each["change"]: each["paths"] for each in found["aliases"]}
    assert aliases == {"new": ["draft.also", "draft.lens"], "gone": ["draft.half", "draft.kept"]}
    (graph,) = found["graphs"]
    assert (graph["before"], graph["after"]) == (
        [{"launches": 2, "device": None}],
        [{"launches": 1, "device": None}],
    )
    assert found["same_aliases"] == 1
    assert found["same_buffers"] >= 2


def test_text_in_one_screen(before: Path, after: Path, capsys: Capture) -> None:
    lines = printed(capsys, "diff", str(before), str(after)).splitlines()
    assert len(lines) <= 40
    assert lines[0].startswith(f"A  {before}: dump of process ")
    assert lines[1].startswith(f"B  {after}: dump of process ")
    assert lines[2] == "findings: 1 gone, 0 new, 0 the same"
    assert lines[3].startswith("  - SG101 out-of-bounds write: fill wrote 48 bytes past the end of draft.indices ")
    text = "\n".join(lines)
    assert "\n  ~ draft.indices: int32[3, 4], 48 bytes, static on cpu -> int32[3, 8], 96 bytes, static on cpu\n" in text
    assert "\n  ~ draft.last: int32[4], 16 bytes from byte 32 on, static on cpu -> " in text
    assert "\n  + draft.also, draft.lens\n" in text
    assert "\n  - draft.half, draft.kept\n" in text
    assert "\n  ~ graph#1: 2 launches -> 1 launch\n" in text
    assert lines[-2].startswith("A  guarded exactly against out-of-bounds writes: ")
    assert lines[-1].startswith("B  guarded exactly against out-of-bounds writes: ")


def test_the_same_dump(before: Path, capsys: Capture) -> None:
    found = differences(capsys, before, before)
    assert [(f["before"], f["after"]) for f in found["same"]] == [(1, 1)]
    for part in ("gone", "new", "buffers", "views", "unnamed", "aliases", "graphs"):
        assert found[part] == [], part


def test_two_runs_of_one_program_differ_in_nothing(tmp_path: Path, worker: Path, capsys: Capture) -> None:
    """Addresses, serials, times and processes are others."""
    again = same_graph_names(worker_dump(tmp_path / "again.dump"))
    once = same_graph_names(Path(shutil.copy(worker, tmp_path / "once.dump")))
    with read_dump(once) as one, read_dump(again) as other:
        still = {buffer.serial for buffer in host_allocator().ledger}  # of modules of tests
        assert {b.serial for b in one.buffers if b.serial not in still}.isdisjoint({b.serial for b in other.buffers})

    def named_alone(manifest: dict[str, Any]) -> None:
        """Without what tests before these left alive."""
        held = {view[8] for _, view in manifest["owners"]}
        manifest["buffers"] = [row for row in manifest["buffers"] if row[0] in held]

    for path in (once, again):
        path.write_bytes(with_manifest(path.read_bytes(), named_alone))
    found = differences(capsys, once, again)
    assert len(found["same"]) == 3
    for part in ("gone", "new", "buffers", "views", "unnamed", "aliases", "graphs"):
        assert found[part] == [], part


def test_exit_code(before: Path, after: Path, capsys: Capture) -> None:
    assert main(["diff", str(before), str(after), "--exit-code"]) == 0
    assert main(["diff", str(after), str(before)]) == 0
    assert main(["diff", str(after), str(before), "--exit-code"]) == 1
    assert main(["diff", str(after), str(before), "--exit-code", "--json"]) == 1
    assert "findings: 0 gone, 1 new, 0 the same" in capsys.readouterr().out


def test_notes_never_count(before: Path, after: Path, tmp_path: Path, capsys: Capture) -> None:
    def change(manifest: dict[str, Any]) -> None:
        facts = manifest["facts"]
        facts["notes"] = [{**finding, "severity": "note"} for finding in facts["findings"]]
        facts["findings"] = []

    path = tmp_path / "noted.dump"
    path.write_bytes(with_manifest(before.read_bytes(), change))
    assert main(["diff", str(after), str(path), "--exit-code"]) == 0
    assert "\n  + note: SG101 " in capsys.readouterr().out


def test_findings_are_counted_by_fingerprint(before: Path, tmp_path: Path, capsys: Capture) -> None:
    def change(manifest: dict[str, Any]) -> None:
        (finding,) = manifest["facts"]["findings"]
        manifest["facts"]["findings"] = [finding, {**finding, "id": 2}]

    path = tmp_path / "twice.dump"
    path.write_bytes(with_manifest(before.read_bytes(), change))
    (same,) = differences(capsys, before, path)["same"]
    assert (same["before"], same["after"]) == (1, 2)
    assert " (1 in A, 2 in B)\n" in printed(capsys, "diff", str(before), str(path))


def test_a_better_name_is_no_other_buffer(before: Path, tmp_path: Path, capsys: Capture) -> None:
    """In B a shorter path leads to the same buffer; the path that names it in A is still there."""

    def change(manifest: dict[str, Any]) -> None:
        (view,) = (view for path, view in manifest["owners"] if path == "draft.lens")
        manifest["owners"].append(["lens", view])

    path = tmp_path / "shorter.dump"
    path.write_bytes(with_manifest(before.read_bytes(), change))
    for words in ((before, path), (path, before)):
        found = differences(capsys, *words)
        names = [(each["name"], bool(each["before"]), bool(each["after"])) for each in found["buffers"]]
        assert [name for name, *_ in names] in ([], ["lens"])


def test_unnamed_buffers_are_counted_by_function(before: Path, tmp_path: Path, capsys: Capture) -> None:
    def nameless(keep: int) -> Callable[[dict[str, Any]], None]:
        def change(manifest: dict[str, Any]) -> None:
            manifest["owners"], manifest["alias_groups"] = [], []
            statics = [row for row in manifest["buffers"] if row[3] == "static" and row[2] in (16, 48, 64)]
            manifest["buffers"] = statics[:keep]

        return change

    few, many = tmp_path / "few.dump", tmp_path / "many.dump"
    few.write_bytes(with_manifest(before.read_bytes(), nameless(1)))
    many.write_bytes(with_manifest(before.read_bytes(), nameless(3)))
    (unnamed,) = differences(capsys, few, many)["unnamed"]
    assert (unnamed["place"], unnamed["before"], unnamed["after"]) == ("test_diff.py in __init__", 1, 3)
    text = printed(capsys, "diff", str(few), str(many))
    assert "  ~ unnamed from test_diff.py in __init__: 1 buffer of " in text


def test_long_lists_are_cut_and_all_shows_them(after: Path, tmp_path: Path, capsys: Capture) -> None:
    many = same_graph_names(draft_dump(tmp_path / "many.dump", fixed=True, more=True))
    text = printed(capsys, "diff", str(after), str(many))
    assert "  ... and 12 more names; --all shows them\n" in text
    assert len(text.splitlines()) <= 40
    whole = printed(capsys, "diff", str(after), str(many), "--all")
    assert whole.count("  + draft.extra[") == 20
    assert "... and" not in whole


def test_runs(before: Path, after: Path, tmp_path: Path, capsys: Capture) -> None:
    """Each with two processes, as ranks have it; the latest dumps count."""
    fold = {
        "dump_7_1_exit": of_process(before.read_bytes(), 7, 20.0),
        "dump_7_1_finding": of_process(after.read_bytes(), 7, 10.0),
        "dump_8_1_exit": of_process(before.read_bytes(), 8, 20.0),
    }
    first = run_folder(tmp_path / "first", **fold)
    second = run_folder(tmp_path / "second", dump_9_1_exit=of_process(after.read_bytes(), 9, 1.0))
    found = differences(capsys, first, second)
    changed = {each["name"]: (len(each["before"]), len(each["after"])) for each in found["buffers"]}
    assert changed["draft.indices"] == (2, 1)
    assert found["graphs"][0]["before"] == [{"launches": 2, "device": None}] * 2
    sides = document(capsys, "diff", str(first), str(second))
    assert (sides["before"]["pids"], sides["after"]["pids"]) == ([7, 8], [9])
    assert "run of 0 processes, 2 dumps read" in printed(capsys, "diff", str(first), str(second))


def test_runs_without_dumps_have_their_findings(after: Path, tmp_path: Path, capsys: Capture) -> None:
    import msgspec

    with read_dump(after) as dump:
        pid = dump.manifest.pid
    first = run_folder(tmp_path / "first")
    second = run_folder(tmp_path / "second")
    from support.finding_samples import FINDING

    records = [
        {"kind": "start", "format": 1, "pid": pid, "time": 1.0},
        {"kind": "finding", "book": 1, "finding": FINDING},
    ]
    lines = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
    (second / f"findings-{pid}-1.jsonl").write_bytes(lines)
    found = differences(capsys, first, second)
    assert (found["compared"], [f["code"] for f in found["new"]]) == (False, ["SG101"])
    text = printed(capsys, "diff", str(first), str(second))
    assert "buffers, aliases and graphs are not compared: that takes a dump of both\n" in text
    assert main(["diff", str(first), str(second), "--exit-code"]) == 1
    assert main(["diff", str(first), str(after)]) == 0


def test_bad_files(before: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "cut").write_bytes(before.read_bytes()[:-1])
    (tmp_path / "other").write_bytes(b"\0" * 100)
    for words in ([before, tmp_path / "cut"], [tmp_path / "cut", before]):
        refused(capsys, 12, "diff", *map(str, words))
    refused(capsys, 14, "diff", str(before), str(tmp_path / "other"))
    refused(capsys, 3, "diff", str(before), str(tmp_path / "none"))
    refused(capsys, 15, "diff", str(before), str(tmp_path))
    refused(capsys, 2, "diff", str(before))


def test_redacted_and_cuda_like(redacted: Path, worker: Path, cuda_like: Path, capsys: Capture) -> None:
    found = differences(capsys, redacted, worker)
    assert len(found["same"]) == 3, "fingerprints are of names"
    (graph,) = (each for each in differences(capsys, worker, cuda_like)["graphs"] if each["after"])
    assert graph["after"] == [{"launches": 2, "device": 8}]
