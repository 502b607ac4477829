"""What holds for every verb that looks at a dump: bad files, run folders, pipes, terminals, what is imported."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from commands.verb_makers import Capture, Worker, document, empty_dump, of_process, printed, refused, run_folder
from dumps.dump_makers import with_manifest
from hypothesis import given
from hypothesis import strategies as st

import shadowgraph as sg
from shadowgraph.commands.main import main

# How each verb is called: the words before the dump.
VERBS: dict[str, list[str]] = {
    "hexdump": ["hexdump", "table"],
    "timeline": ["timeline", "table"],
    "aliases": ["aliases"],
    "aliases of one": ["aliases", "rows"],
    "map": ["map"],
    "map of one": ["map", "--buffer", "table"],
}
each_verb = pytest.mark.parametrize("words", VERBS.values(), ids=VERBS)
SHADOWS = {name: words for name, words in VERBS.items() if name in ("hexdump", "timeline", "aliases", "map")}


@each_verb
def test_files_that_are_no_dump(words: list[str], worker: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "other").write_bytes(b"\0" * 100)
    (tmp_path / "cut").write_bytes(worker.read_bytes()[:-1])
    newer = worker.read_bytes().replace(b"shadowgraph.dump/2", b"shadowgraph.dump/9", 1)
    (tmp_path / "newer").write_bytes(newer)
    assert "cannot read" in refused(capsys, 3, *words, str(tmp_path / "none"))
    refused(capsys, 14, *words, str(tmp_path / "other"))
    assert "is damaged" in refused(capsys, 12, *words, str(tmp_path / "cut"))
    refused(capsys, 13, *words, str(tmp_path / "newer"))
    assert "is no run folder" in refused(capsys, 15, *words, str(tmp_path))


@pytest.mark.parametrize("verb", ["hexdump", "timeline", "aliases"])
def test_a_buffer_that_nobody_knows(verb: str, worker: Path, tmp_path: Path, capsys: Capture) -> None:
    said = refused(capsys, 9, verb, "worker.tabel", str(worker))
    assert "no buffer is called 'worker.tabel'; the nearest names are: worker.table" in said
    assert "no buffer holds 0x10; " in refused(capsys, 9, verb, "0x10", str(worker))
    assert "'e' is the end of several names: worker." in refused(capsys, 2, verb, "e", str(worker))
    empty = empty_dump(tmp_path / "empty.dump")
    assert refused(capsys, 9, verb, "table", str(empty)).endswith("no buffer is called 'table'\n")


@each_verb
def test_a_run_is_the_latest_dump_of_each_process(
    words: list[str], worker: Path, tmp_path: Path, capsys: Capture
) -> None:
    data = worker.read_bytes()
    folder = run_folder(
        tmp_path / "run",
        dump_8_1_exit=of_process(data, 8, 15.0),
        dump_7_1_exit=of_process(data, 7, 20.0),
        dump_7_1_finding=of_process(data, 7, 10.0),
    )
    made = document(capsys, *words, str(folder))
    (rows,) = (value for key, value in made.items() if key != "schema")
    assert {(row["pid"], row["dump"].rsplit("/", 1)[1]) for row in rows} == {
        (7, "dump-7-1-exit.dump"),
        (8, "dump-8-1-exit.dump"),
    }
    assert {row["pid"] for row in rows} == {7, 8}
    (only,) = (value for key, value in document(capsys, *words, str(folder), "--pid", "8").items() if key != "schema")
    assert {row["pid"] for row in only} == {8}
    assert "no dump of process 9 in " in refused(capsys, 2, *words, str(folder), "--pid", "9")
    assert "there are dumps of: 7, 8" in refused(capsys, 2, *words, str(folder), "--pid", "9")


@each_verb
def test_a_damaged_dump_of_a_run_is_left_out(words: list[str], worker: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = run_folder(tmp_path / "run", dump_7_1_exit=worker.read_bytes(), dump_9_1_exit=worker.read_bytes()[:-1])
    assert main([*words, str(folder)]) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("shadowgraph: warning: left out: ")
    assert "dump-9-1-exit.dump is damaged" in shown.err
    assert "worker.table" in shown.out
    (folder / "dump-7-1-exit.dump").unlink()
    refused(capsys, 12, *words, str(folder))
    (folder / "dump-9-1-exit.dump").unlink()
    assert "holds no dump" in refused(capsys, 15, *words, str(folder))


@each_verb
def test_texts_give_a_terminal_no_orders(words: list[str], worker: Path, tmp_path: Path, capsys: Capture) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\nall is well"

    def change(manifest: dict[str, Any]) -> None:
        manifest["strings"] = [text + evil for text in manifest["strings"]]
        for graph in manifest["graphs"]:
            graph["name"] += evil
        for finding in manifest["facts"]["findings"]:
            finding["detected_at"] = evil
        manifest["owners"] = [[evil + path, view] for path, view in manifest["owners"]]

    path = tmp_path / "run.dump"
    path.write_bytes(with_manifest(worker.read_bytes(), change))
    assert main([*words, str(path)]) == 0
    assert main([words[0], evil, *words[2:], str(path)]) in (2, 9)
    shown = capsys.readouterr()
    assert not set(shown.out + shown.err) & {"\x1b", "\x07", "\x9b", "\u202e"}
    assert "\nall is well" not in shown.out
    assert shown.err.count("\n") == 1


@each_verb
def test_names_that_the_terminal_cannot_write(words: list[str], tmp_path: Path) -> None:
    with sg.debug() as debugger:
        worker = Worker(debugger)
        debugger.name("模é", worker)
        worker.step(past=1)
        path = debugger.dump(tmp_path / "run.dump")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for more, said in (([], "\\u6a21\\xe9."), (["--json"], "\\u6a21\\u00e9.")):
        ran = subprocess.run(
            [sys.executable, "-m", "shadowgraph", *words, str(path), *more],
            env=environment,
            capture_output=True,
            check=False,
        )
        assert (ran.returncode, ran.stderr) == (0, b"")
        assert said in ran.stdout.decode("ascii")
    assert "模é." in json.dumps(json.loads(ran.stdout), ensure_ascii=False)


@each_verb
def test_on_a_terminal_and_in_a_pipe(
    words: list[str], worker: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped = printed(capsys, *words, str(worker))
    assert "\x1b" not in piped
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    assert "\x1b[" in printed(capsys, *words, str(worker))


@pytest.mark.parametrize("words", SHADOWS.values(), ids=SHADOWS)
def test_a_reader_that_goes_away_is_no_error(words: list[str], worker: Path) -> None:
    code = (
        "import subprocess, sys\n"
        f"words = [sys.executable, '-m', 'shadowgraph', *{words!r}, {str(worker)!r}]\n"
        "child = subprocess.Popen(words, stdout=subprocess.PIPE)\n"
        "child.stdout.close()\n"
        "sys.exit(child.wait())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "words",
    [*([*words, "DUMP"] for words in SHADOWS.values()), ["diff", "DUMP", "DUMP"], ["explain", "SG101"], ["explain"]],
    ids=[*SHADOWS, "diff", "explain", "explain all"],
)
def test_they_need_neither_torch_nor_anything_optional(words: list[str], worker: Path) -> None:
    words = [str(worker) if word == "DUMP" else word for word in words]
    code = (
        "import sys, types\n"
        "absent = ('torch', 'triton', 'cupy', 'cuda', 'sglang', 'safetensors', 'matplotlib')\n"
        "for name in absent: sys.modules[name] = None\n"
        "front = types.ModuleType('shadowgraph')\n"
        f"front.__path__ = [{os.path.dirname(sg.__file__)!r}]\n"
        "front.__version__ = 'x'\n"
        "sys.modules['shadowgraph'] = front\n"
        "from shadowgraph.commands.main import main\n"
        f"sys.exit(main({words!r}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@each_verb
def test_what_a_made_up_file_says_need_not_make_a_report(
    words: list[str], worker: Path, tmp_path: Path, capsys: Capture
) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["form"] = ""
        for _, view in manifest["owners"]:
            view[2] = [-(1 << 40)] * len(view[2])

    path = tmp_path / "run.dump"
    path.write_bytes(with_manifest(worker.read_bytes(), change))
    assert "is damaged: no " in refused(capsys, 12, *words, str(path))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.fuzz
@given(choices=st.lists(st.integers(0, 10**6), min_size=6, max_size=6), value=values)
def test_random_values_anywhere(
    choices: list[int], value: object, tmp_path_factory: pytest.TempPathFactory, worker: Path
) -> None:
    path = tmp_path_factory.getbasetemp() / "verbs-fuzz"
    path.write_bytes(with_manifest(worker.read_bytes(), spoiler(choices, value)))
    for words in (*VERBS.values(), ["hexdump", "indptr", "--start=-99", "--count", "4096"], ["diff", str(worker)]):
        for more in ([], ["--json"]):
            out, err = io.StringIO(), io.StringIO()
            with redirect_stdout(out), redirect_stderr(err):
                code = main([*words, str(path), *more])
            assert code in (0, 2, 9, 12), err.getvalue()
            assert err.getvalue().count("\n") == (code > 0)
            assert bool(out.getvalue()) == (code == 0)


def spoiler(choices: list[int], value: object) -> Callable[[dict[str, Any]], None]:
    """Puts a value somewhere into a manifest."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["form"] = ""
        at: Any = manifest
        for choice in choices:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                return
            key = keys[choice % len(keys)]
            if not isinstance(at[key], (dict, list)) or choice % 5 == 0:
                at[key] = value
                return
            at = at[key]

    return change


def test_nothing_was_allocated(tmp_path: Path, capsys: Capture) -> None:
    empty = str(empty_dump(tmp_path / "empty.dump"))
    assert printed(capsys, "aliases", empty) == "no two owners share bytes, as far as they have names\n"
    assert printed(capsys, "map", empty).endswith(": 0 buffers, 0 B, 0 guarded; no findings on them\n")
    assert "findings: 0 gone, 0 new, 0 the same\n" in printed(capsys, "diff", empty, empty)


def test_one_launch_is_one(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    def one(manifest: dict[str, Any]) -> None:
        assert len(manifest["launches"]) > 1
        manifest.update(launches=manifest["launches"][-1:], replays=manifest["replays"][-1:])

    path = tmp_path / "one.dump"
    path.write_bytes(with_manifest(worker.read_bytes(), one))
    assert "journal of 1 launch and 1 replay, " in printed(capsys, "report", str(path))
