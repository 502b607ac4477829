"""Run folders that are finished, cut, damaged, newer, hostile, or none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.finding_samples import altered

from shadowgraph.commands.main import main
from shadowgraph.common.errors import RunFolderError, ShadowgraphError
from shadowgraph.common.version import VERSION
from shadowgraph.model.findings import Severity
from shadowgraph.model.overrun_extents import CausedBy, Origin
from shadowgraph.render.text.run_text import RunReport
from shadowgraph.render.text.text import Report
from shadowgraph.wrap.folder.findings_log import FindingsLog
from shadowgraph.wrap.folder.injection_config import InjectionConfig
from shadowgraph.wrap.folder.reader import read_run
from shadowgraph.wrap.folder.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = RunFolder(tmp_path / "run")
    made.begin(["python", "serve.py"], InjectionConfig(made.path), VERSION)
    return Path(made.path)


def journal_of(folder: Path, pid: int = 1, **facts: Any) -> Path:
    """A file as a process writes it, with one finding."""
    path = folder / f"findings-{pid}-1.jsonl"
    start = {"kind": "start", "time": 1.0, "format": 1, "pid": pid, "ppid": 1, "argv": ["python"], "born": "start"}
    lines = [start, {"kind": "watch", "time": 1.1, "backend": "host"}]
    lines.append({"kind": "finding", "time": 2.0, "book": 1, "finding": altered(pid=pid, id=1, **facts).to_dict()})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_findings_of_two_processes_keep_their_pid_and_get_ids_of_their_own(folder: Path) -> None:
    journal_of(folder, 11, time=5.0)
    journal_of(folder, 12, time=4.0, rank=1)
    facts = read_run(folder).merged()
    assert [(f.id, f.pid, f.rank) for f in facts.findings] == [(1, 12, 1), (2, 11, None)]
    assert "1 finding (2 with each process's own)" in str(Report(facts))


@pytest.mark.parametrize(
    ("facts", "row", "last"),
    [
        ({}, "unknown, 1 finding  python", "shadowgraph: 1 finding"),
        ({"severity": Severity.NOTE}, "unknown, 1 note  python", "shadowgraph: no findings, 1 note"),
        (
            {"caused_by": CausedBy(9, "SG101", "0" * 12, "a", 1, True)},
            "unknown, 1 consequence  python",
            "shadowgraph: no findings, 1 consequence",
        ),
        ({"continues": Origin("a", 1, "0" * 12)}, "unknown  python", "shadowgraph: no findings"),
    ],
)
def test_the_row_of_a_process_agrees_with_the_last_lines(
    folder: Path, facts: dict[str, Any], row: str, last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    journal_of(folder, **facts)
    said = str(RunReport(read_run(folder)))
    assert f"host, {row}\n" in said
    assert f"\n{last}\n" in said
    assert main(["report", str(folder), "--json"]) == 0
    document = capsys.readouterr().out
    saved = folder / "saved.json"
    saved.write_text(document)
    assert main(["report", str(saved)]) == 0
    assert f"host, {row}\n" in capsys.readouterr().out, "a saved report counts alike"


def test_later_records_of_a_finding_replace_it(folder: Path) -> None:
    path = journal_of(folder)
    again = altered(pid=1, id=1, revision=2, occurrences=4).to_dict()
    with path.open("a") as file:
        file.write(json.dumps({"kind": "revision", "time": 3.0, "book": 1, "finding": again}) + "\n")
        file.write(json.dumps({"kind": "finding", "time": 3.0, "book": 2, "finding": again}) + "\n")
    found = read_run(folder).merged().findings
    assert [f.revision for f in found] == [2, 2]


def test_cut_at_every_byte_a_file_can_be_read(folder: Path) -> None:
    path = journal_of(folder)
    whole = path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(whole) if byte == 10]
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        (process,) = read_run(folder).processes
        assert process.cut == (length not in (0, *ends))
        assert len(process.findings) == 0
        assert process.damaged == 0
    path.write_bytes(whole)
    assert len(read_run(folder).processes[0].findings) == 1


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"[]",
        b'{"kind":"finding","book":1,"finding":{}}',
        b'{"kind":"finding","finding":7}',
        b'{"kind":"summary","facts":[]}',
        b'{"kind":3}',
        b"{}",
        b"\xff\xfe\x00",
        b'{"kind":"start","pid":"many"}',
        b"[" * 100_000,
        b'{"kind":"event","text":' + b"1" * 400 + b"}",
    ],
)
def test_damaged_lines_are_counted(line: bytes, folder: Path) -> None:
    path = journal_of(folder)
    path.write_bytes(line + b"\n" + path.read_bytes())
    run = read_run(folder)
    assert run.processes[0].damaged == 1
    assert len(run.merged().findings) == 1
    assert "1 damaged line in its file was left out" in str(RunReport(run))


def test_unknown_kinds_and_fields_are_left_out_in_silence(folder: Path) -> None:
    path = journal_of(folder)
    with path.open("a") as file:
        file.write('{"kind":"telemetry","time":1,"beat":3}\n')
    assert read_run(folder).processes[0].damaged == 0


def spoil(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        said = json.loads((folder / "run.json").read_text())
        change(said)
        (folder / "run.json").write_text(json.dumps(said))

    return apply


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "run.json").unlink(), "has no run.json"),
        (lambda folder: (folder / "run.json").write_text("{"), "is damaged: no JSON"),
        (lambda folder: (folder / "run.json").write_text("[" * 100_000), "is damaged: no JSON"),
        (lambda folder: (folder / "run.json").write_bytes(b"\xff" * 10), "is damaged: no JSON"),
        (lambda folder: (folder / "run.json").write_text("[]"), "names no format"),
        (spoil(lambda said: said.pop("format")), "names no format"),
        (spoil(lambda said: said.update(format=True)), "names no format"),
        (spoil(lambda said: said.update(format=3, shadowgraph="9.0")), "has format 3, written by shadowgraph 9.0"),
        (
            spoil(lambda said: (said.update(format=3), said.pop("shadowgraph"))),
            "has format 3, written by a newer shadowgraph; ",
        ),
    ],
)
def test_what_is_no_run_of_ours_is_one_error(
    damage: Callable[[Path], None], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(folder)
    with pytest.raises(RunFolderError, match=said):
        read_run(folder)
    assert main(["report", str(folder)]) == 15
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("shadowgraph: error: ")

    journal_of(folder)  # what a process wrote is read all the same, and one line says what is missing
    assert main(["report", str(folder), "--error-exitcode", "9"]) == 9
    out = capsys.readouterr().out
    assert "shadowgraph wrap: unknown command: end unknown" in out
    (line,) = [line for line in out.splitlines() if "command, settings and end of the run are not known: " in line]
    assert "SUMMARY: shadowgraph: SG101" in out
    assert main(["report", str(folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert said.split(":")[0] in document["run"]["unread"]
    (folder / "report.json").write_text(json.dumps(document))
    assert main(["report", str(folder / "report.json")]) == 0
    assert line in capsys.readouterr().out
    assert main(["report", str(folder), "--html", str(folder / "page.html")]) == 0
    assert "command, settings and end of the run are not known" in (folder / "page.html").read_text()
    assert main(["pause", str(folder)]) == 0


def test_strange_manifests_do_not_break_the_report(folder: Path) -> None:
    journal_of(folder)
    for strange in ({"command": 7}, {"command": [1, None]}, {"signal": 3}, {"exit_code": "x"}):
        spoil(lambda said, strange=strange: said.update(strange))(folder)  # type: ignore[misc]
        assert "SUMMARY" in str(RunReport(read_run(folder)))
        json.loads(RunReport(read_run(folder)).to_json())


def test_a_missing_folder_and_a_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ShadowgraphError):
            read_run(path)


def test_the_report_command_reads_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal_of(folder)
    assert main(["report", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "python serve.py: has not ended, or its supervisor was killed" in out
    assert "SUMMARY: shadowgraph: " in out
    assert main(["report", str(folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["run"]["processes"][0]["backend"] == "host"


# -- the writer ------------------------------------------------------------------------------------------


def test_a_journal_is_capped_and_still_says_its_end(tmp_path: Path) -> None:
    journal = FindingsLog(tmp_path, limit=1000)
    for number in range(100):
        journal.write("event", text=f"number {number}")
    journal.write("end")
    lines = [json.loads(line) for line in journal.path.read_text().splitlines()]
    assert [line["kind"] for line in lines[-2:]] == ["capped", "end"]
    assert journal.path.stat().st_size < 1200
    assert journal.lost == 100 - (len(lines) - 2)


def test_each_record_is_there_as_soon_as_it_is_written(tmp_path: Path) -> None:
    journal = FindingsLog(tmp_path)
    journal.write("event", text="now")
    assert journal.path.read_text().endswith('"text":"now"}\n')
    journal.close()
    journal.write("event", text="later")
    assert journal.lost == 1


def test_a_folder_that_is_gone_is_said_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    journal = FindingsLog(tmp_path / "gone")
    journal.write("event", text="a")
    journal.write("finding", book=1)
    assert journal.lost == 0, "it waits"
    assert capfd.readouterr().err.count("cannot write") == 1
    journal.close()
    assert journal.lost == 2
    assert capfd.readouterr().err.count("2 records, 1 of them findings, could not be written") == 1


def test_a_manifest_is_replaced_whole(folder: Path) -> None:
    with pytest.raises(RunFolderError, match="holds another run already"):
        RunFolder(folder)
    assert sorted(os.listdir(folder)) == [".run.json.new", "run.json"]
