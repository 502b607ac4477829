"""A report as JSON, printed or from a status server, is read again by verbs; what other verbs print is not."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands.verb_makers import Capture, printed, refused, run_folder
from serving.run_folders import COVERAGE, made_folder, with_process

import shadowgraph as sg
from shadowgraph.commands.main import main
from shadowgraph.wrap.folder.heartbeats import Heartbeat
from shadowgraph.wrap.status.server import StatusServer

LAST = re.compile(r"^dump: .*\n\Z", re.MULTILINE)


@pytest.fixture
def report(worker: Path, tmp_path: Path, capsys: Capture) -> Path:
    """A dump's report as JSON."""
    return saved(capsys, tmp_path / "report.json", "report", str(worker))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = made_folder(tmp_path / "run", "python", "serve.py")
    with_process(made, Heartbeat(replays=7, checked=7, coverage=COVERAGE))
    return made


@pytest.fixture
def server(folder: Path) -> Iterator[str]:
    made = StatusServer(folder, 0, memory=True)
    made.start()
    yield made.url
    made.stop()


def saved(capsys: Capture, path: Path, *words: str) -> Path:
    path.write_text(printed(capsys, *words, "--json"), "utf-8")
    return path


def noted(capsys: Capture, *words: str) -> tuple[str, str]:
    """What a verb prints, and the one note beside it."""
    capsys.readouterr()
    assert main(list(words)) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("shadowgraph: note: ")
    assert shown.err.count("\n") == 1
    return shown.out, shown.err


def test_a_report_comes_back_as_it_was(worker: Path, report: Path, capsys: Capture) -> None:
    assert printed(capsys, "report", str(report), "--json") == report.read_text("utf-8")
    told, again = printed(capsys, "report", str(worker)), printed(capsys, "report", str(report))
    assert LAST.sub("", again) == LAST.sub("", told), "all but the line on what the dump holds"
    assert again.splitlines()[-1].startswith("dump: its buffers, launches and memory are in the dump itself")
    assert told.count("SG101 out-of-bounds write") >= 1
    assert main(["report", str(report), "--error-exitcode", "3"]) == 3


def test_a_live_report_comes_back(tmp_path: Path, capsys: Capture) -> None:
    with sg.debug() as debugger:
        pass
    path = tmp_path / "live"  # whatever it is called
    path.write_text(debugger.report(quiet=True).to_json(), "utf-8")
    assert printed(capsys, "report", str(path)) == str(debugger.report(quiet=True))
    assert json.loads(printed(capsys, "report", str(path), "--json")) == json.loads(path.read_text("utf-8"))


def test_a_run_comes_back_from_a_file_and_from_its_server(
    folder: Path, server: str, tmp_path: Path, capsys: Capture
) -> None:
    told = printed(capsys, "report", str(folder))
    assert "SG101" in told
    assert "run folder: " in told
    path = saved(capsys, tmp_path / "run.json", "report", str(folder))
    assert printed(capsys, "report", str(path)) == told
    assert printed(capsys, "report", str(path), "--json") == path.read_text("utf-8")
    for url in (server, server.rstrip("/"), f"{server}json", server.replace("127.0.0.1", "localhost")):
        assert printed(capsys, "report", url) == told
    assert json.loads(printed(capsys, "report", server, "--json")) == json.loads(path.read_text("utf-8"))


@pytest.mark.parametrize(
    "verb",
    [("aliases",), ("hexdump", "table"), ("map",), ("map", "--kind", "writes"), ("nodes",), ("timeline", "table")],
)
def test_what_a_verb_printed_of_a_dump_is_no_input(
    verb: tuple[str, ...], worker: Path, tmp_path: Path, capsys: Capture
) -> None:
    path = saved(capsys, tmp_path / "saved.json", *verb, str(worker))
    by = " ".join(verb) if verb[0] == "map" else verb[0]
    line = f"is what `shadowgraph {by} --json` printed; give the dump or run folder it was made from"
    for reading in (("report",), ("map",), ("timeline", "table"), ("aliases",), ("nodes",), ("hexdump", "table")):
        assert line in refused(capsys, 14, *reading, str(path))
    assert line in refused(capsys, 14, "diff", str(worker), str(path))


def test_a_report_of_a_later_minor_version_loses_what_is_unknown(report: Path, capsys: Capture) -> None:
    before = printed(capsys, "report", str(report), "--json")
    report.write_text(json.dumps({**json.loads(before), "novelty": 1}), "utf-8")
    assert printed(capsys, "report", str(report), "--json") == before


def test_a_report_maps_what_findings_are_about(report: Path, capsys: Capture) -> None:
    text, note = noted(capsys, "map", str(report))
    assert re.match(r"memory of process \d+: 3 buffers, 100 B, 0 guarded; 3 findings\n", text)
    assert re.search(r"#\d SG101: \+12 B by fill", text)
    assert re.search(r"\[-{24}\] .*worker\.scale.*, freed\n", text)
    assert "knows only what findings say of their buffers; for the rest take a dump" in note
    assert "need a dump or a run folder" in refused(capsys, 2, "map", str(report), "--buffer", "table")


def test_a_report_tells_the_findings_of_a_buffer(report: Path, worker: Path, capsys: Capture) -> None:
    text, _ = noted(capsys, "timeline", "indptr", str(report))
    whole = printed(capsys, "timeline", "indptr", str(worker))
    kept = [line for line in whole.splitlines() if not re.search(r"captured|replayed|launched|remembers", line)]
    assert [line for line in text.splitlines() if "remembers" not in line] == kept
    assert "has no buffer 'indptrr'; the nearest names are: worker.indptr" in refused(
        capsys, 9, "timeline", "indptrr", str(report)
    )


def test_what_a_report_does_not_hold_is_one_line(report: Path, server: str, folder: Path, capsys: Capture) -> None:
    for verb in (("aliases",), ("nodes",), ("hexdump", "table")):
        said = refused(capsys, 2, *verb, str(report))
        assert "holds shadowgraph.report/2, which has nothing for" in said
        assert "take a dump: dbg.dump(PATH) makes one" in said
        assert "take the run folder once it has a dump" in refused(capsys, 2, *verb, server)
    (folder / "dump-1-1-exit.dump").write_bytes(b"")
    assert f"take the run folder, which has dumps: {folder}" in fresh_refusal(capsys, folder)


def fresh_refusal(capsys: Capture, folder: Path) -> str:
    """What a server says that has read the folder just now."""
    made = StatusServer(folder, 0)
    made.start()
    try:
        return refused(capsys, 2, "aliases", made.url)
    finally:
        made.stop()


def test_reports_are_compared(report: Path, worker: Path, capsys: Capture) -> None:
    text = printed(capsys, "diff", str(report), str(worker), "--exit-code")
    assert "findings: 0 gone, 0 new, 3 the same" in text
    assert "buffers, aliases and graphs are not compared" in text


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (b"", 14, "is empty, and so no shadowgraph document"),
        (b"  \n", 14, "is empty"),
        (b"{", 14, "no JSON"),
        (b"[1, 2]", 14, "names no schema of ours"),
        (b'{"a": 1}', 14, "names no schema of ours"),
        (b'{"schema": 3}', 14, "names no schema of ours"),
        (b'{"schema": "shadowgraph.report/3"}', 13, "this shadowgraph reads up to shadowgraph.report/2"),
        (b'{"schema": "shadowgraph.report/x"}', 14, "this verb reads shadowgraph.report/2"),
        (b'{"schema": "shadowgraph.map/1", "maps": []}', 14, "is what `shadowgraph map --json` printed; give the dump"),
        (b'{"schema": "shadowgraph.finding/1"}', 14, "holds shadowgraph.finding/1, and this verb reads"),
        (b'{"schema": "shadowgraph.report/2"}', 12, "is damaged: it makes no sense"),
        (b'{"schema": "shadowgraph.report/2", "findings": [', 12, "is damaged: no JSON"),
        (b"[" * 100_000, 14, "no JSON"),
        (b'{"schema": "\xff"}', 14, "no JSON"),
    ],
)
def test_other_files_are_one_line(content: bytes, code: int, said: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    assert said in refused(capsys, code, "report", str(path))


def test_every_wrong_value_is_one_line(report: Path, tmp_path: Path, capsys: Capture) -> None:
    """Each value of the document replaced by one of another kind: a line, or a report, and never a traceback."""
    whole = json.loads(report.read_text("utf-8"))
    path = tmp_path / "wrong.json"
    codes = set()
    for name in whole.keys() - {"schema"}:
        for value in (None, -1, "\x1b[2J", [[]], {"a": {}}, 1e300):
            path.write_text(json.dumps({**whole, name: value}), "utf-8")
            capsys.readouterr()
            codes.add(main(["report", str(path)]))
            shown = capsys.readouterr()
            assert "\x1b" not in shown.out + shown.err
            assert shown.err.count("\n") <= 1
            assert "internal error" not in shown.err
    assert codes == {0, 12}


@pytest.mark.parametrize(
    "url",
    ["http://10.0.0.1:8123", "http://example.org/json", "https://127.0.0.1:8123", "http://127.0.0.1.example.org:80",
     "http://me@127.0.0.1:8123", "ftp://127.0.0.1:21", "http://0.0.0.0:8123", "file:///etc/hosts"],
)  # fmt: skip
def test_only_this_machine_is_asked(url: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any, **__: Any) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr(socket.socket, "connect", none)
    assert "only a status server of this machine is asked" in refused(capsys, 2, "report", url)


def test_places_without_json_and_servers_that_are_gone(server: str, capsys: Capture) -> None:
    for url in ("http://127.0.0.1", f"{server}map", f"{server}?x=1", "http://127.0.0.1:99999"):
        assert "http://127.0.0.1" in refused(capsys, 2, "report", url)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    said = refused(capsys, 3, "report", f"http://127.0.0.1:{port}")
    assert "Connection refused; is it what `shadowgraph wrap --status` named" in said


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (b"HTTP/1.0 503 Gone\r\n\r\nthe run cannot be read: \x1b[2Jmoved\n", 3, "503 the run cannot be read"),
        (b"HTTP/1.0 302 Found\r\nLocation: http://10.0.0.1/\r\n\r\n", 3, "302"),
        (b"not HTTP at all\r\n\r\n", 3, "cannot read"),
        (b"HTTP/1.0 200 OK\r\n\r\n<html>", 14, "no shadowgraph document"),
        (b'HTTP/1.0 200 OK\r\nContent-Length: 999\r\n\r\n{"schema": "shadowgraph.rep', 12, "is damaged: no JSON"),
    ],
)
def test_other_servers_are_one_line(answer: bytes, code: int, said: str, capsys: Capture) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        line = refused(capsys, code, "report", f"http://127.0.0.1:{listening.getsockname()[1]}")
        thread.join()
    assert said in line
    assert "\x1b" not in line


def test_dumps_and_folders_are_no_documents(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    from shadowgraph.commands.saved.reader import is_saved

    assert not is_saved(str(worker))
    assert not is_saved(str(tmp_path))
    assert not is_saved(str(tmp_path / "none"))
    made_up = tmp_path / "dump"
    made_up.write_bytes(b"{" + b"\0" * 7 + b'{"__metadata__":{"format"')  # a header of 123 bytes
    assert not is_saved(str(made_up))
    folder = run_folder(tmp_path / "run", dump_7_1_exit=worker.read_bytes())
    assert printed(capsys, "map", str(folder)) == printed(capsys, "map", str(worker))
    assert os.path.isdir(folder)
