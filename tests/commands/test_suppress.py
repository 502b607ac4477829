"""`shadowgraph suppress`, and `report --sarif` and `--github`, of dumps and reports."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from commands.verb_makers import Capture, printed, refused, run_folder, suppressing_dump
from serving.run_folders import made_folder, with_process

from shadowgraph.commands.main import main
from shadowgraph.dumps.reader import read_dump
from shadowgraph.model.findings import Finding
from shadowgraph.model.suppression_file import read_suppressions


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, without a file of rules in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHADOWGRAPH_SUPPRESSIONS", raising=False)
    return tmp_path


def findings(dump: Path) -> dict[str, Finding]:
    with read_dump(dump) as opened:
        return {finding.code: finding for finding in opened.facts().findings}


def test_a_rule_by_fingerprint(here: Path, worker: Path, capsys: Capture) -> None:
    finding = findings(worker)["SG101"]
    words = ("suppress", f"#{finding.id}", str(worker), "--reason", "known\nupstream", "--expires", "2999-12-31")
    said = printed(capsys, *words)
    line = f'{finding.fingerprint} expires=2999-12-31 reason="known upstream"'
    assert said.startswith(f"wrote shadowgraph-suppressions.txt:2: {line}\n")
    assert "--suppressions shadowgraph-suppressions.txt" in said
    assert (here / "shadowgraph-suppressions.txt").read_text() == f"# {finding.message}\n{line}\n"
    rules = read_suppressions("shadowgraph-suppressions.txt")
    assert [code for code, each in findings(worker).items() if rules.hiding(each)] == ["SG101"]
    again = printed(capsys, "suppress", finding.fingerprint, str(worker))
    assert again == f"shadowgraph-suppressions.txt:2 hides it already: {finding.fingerprint}\n"
    assert len((here / "shadowgraph-suppressions.txt").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "by", ["buffer", "kernel", "file", "function", "code", "buffer,kernel,file,function,fingerprint"]
)
def test_a_rule_by_what_it_names(by: str, here: Path, worker: Path, capsys: Capture) -> None:
    finding = findings(worker)["SG101"]
    printed(capsys, "suppress", str(finding.id), str(worker), "--by", by, "--file", "rules.txt")
    rules = read_suppressions("rules.txt")
    assert rules.rules[0].code == "SG101"
    assert [code for code, each in findings(worker).items() if rules.hiding(each)] == ["SG101"]


def test_a_report_as_json_and_the_latest_run(here: Path, worker: Path, capsys: Capture) -> None:
    (here / "report.json").write_text(printed(capsys, "report", str(worker), "--json"), "utf-8")
    finding = findings(worker)["SG102"]
    printed(capsys, "suppress", str(finding.id), "report.json", "--file", "a.txt")
    assert [rule.fingerprint for rule in read_suppressions("a.txt").rules] == [finding.fingerprint]
    older, newer = (made_folder(here / "shadowgraph-runs" / name) for name in ("older", "newer"))
    with_process(newer, fingerprint="feedfeedfeed")
    os.utime(older / "run.json", (1, 1))
    printed(capsys, "suppress", "1", "--file", "b.txt")
    assert [rule.fingerprint for rule in read_suppressions("b.txt").rules] == ["feedfeedfeed"]


def test_a_fingerprint_alone_needs_no_run(here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHADOWGRAPH_SUPPRESSIONS", "mine.txt")
    (here / "mine.txt").write_text("code=SG102")
    assert "wrote mine.txt:2: 0123456789ab" in printed(capsys, "suppress", "0123456789ab")
    assert (here / "mine.txt").read_text() == "code=SG102\n0123456789ab\n"


def test_what_is_refused(here: Path, worker: Path, capsys: Capture) -> None:
    dump = str(worker)
    assert "no finding 77; there are: #1, #2" in refused(capsys, 2, "suppress", "77", dump)
    assert "has no finding feedfeedfeed" in refused(capsys, 2, "suppress", "feedfeedfeed", dump)
    assert "its number or its fingerprint, not by 'SG101'" in refused(capsys, 2, "suppress", "SG101", dump)
    assert "there is no run below shadowgraph-runs" in refused(capsys, 2, "suppress", "1")
    assert "--by must be some of fingerprint, code" in refused(capsys, 2, "suppress", "1", dump, "--by", "line")
    said = refused(capsys, 2, "suppress", "1", dump, "--expires", "tomorrow")
    assert "--expires must be a date such as 2027-01-31, not 'tomorrow'" in said
    said = refused(capsys, 2, "suppress", "1", dump, "--expires", "2026-01-31")
    assert "--expires 2026-01-31 is over" in said
    assert "no.dump" in refused(capsys, 3, "suppress", "1", "no.dump")
    assert "cannot write nowhere/a.txt" in refused(capsys, 3, "suppress", "1", dump, "--file", "nowhere/a.txt")
    (here / "bad.txt").write_text("code=SG102\nnonsense\n")
    assert "bad.txt:2: 'nonsense' is no" in refused(capsys, 2, "suppress", "1", dump, "--file", "bad.txt")
    assert (here / "bad.txt").read_text() == "code=SG102\nnonsense\n"
    assert sorted(path.name for path in here.iterdir()) == ["bad.txt"]


def test_a_forged_fingerprint_writes_nothing(here: Path, worker: Path, capsys: Capture) -> None:
    document = json.loads(printed(capsys, "report", str(worker), "--json"))
    number = document["findings"][0]["id"]
    document["findings"][0]["fingerprint"] = "0123456789ab\ncode=SG10?"
    (here / "report.json").write_text(json.dumps(document))
    assert "no line of" in refused(capsys, 2, "suppress", str(number), "report.json", "--file", "a.txt")
    assert not (here / "a.txt").exists()


def test_a_comparison_with_a_run_that_suppresses(here: Path, worker: Path, capsys: Capture) -> None:
    (here / "known.txt").write_text("code=SG101\n")
    quiet = str(suppressing_dump(here / "quiet.dump", here / "known.txt"))
    for sides, letter in (((quiet, str(worker)), "A"), ((str(worker), quiet), "B")):
        assert main(["diff", *sides, "--exit-code"]) == (1 if letter == "A" else 0), (
            "SG104 is of the other program alone"
        )
        lines = capsys.readouterr().out.splitlines()
        (line,) = [line for line in lines if " SG101 " in line]
        assert line.startswith("  = ")
        assert line.endswith(f", suppressed in {letter}")
    assert main(["diff", quiet, quiet, "--exit-code"]) == 0
    assert "SG101" not in capsys.readouterr().out


# -- code hosts --------------------------------------------------------------------------------------------------------


def test_sarif_and_annotations_of_a_dump(here: Path, worker: Path, capsys: Capture) -> None:
    root = str(Path(__file__).parents[2])
    said = printed(capsys, "report", str(worker), "--sarif", "a.sarif", "--github", "--root", root)
    first, *lines = said.splitlines()
    assert first == "wrote a.sarif"
    assert {line.partition("title=")[2][:5] for line in lines} == {"SG101", "SG102", "SG104"}
    places = {line.partition("title=")[2][:5]: line.partition("file=")[2].partition(",")[0] for line in lines}
    assert places.pop("SG101") == "shadowgraph/demos/kernels.py", "of the store"
    assert all(place.startswith("tests/") for place in places.values())
    (run,) = json.loads((here / "a.sarif").read_text())["runs"]
    assert [result["ruleId"] for result in run["results"]] == [line.partition("title=")[2][:5] for line in lines]
    capsys.readouterr()
    assert main(["report", str(worker), "--github", "--error-exitcode", "7"]) == 7
    (here / "report.json").write_text(printed(capsys, "report", str(worker), "--json"), "utf-8")
    assert printed(capsys, "report", "report.json", "--github", "--root", root).splitlines() == lines


def test_annotations_of_a_run_without_findings(here: Path, capsys: Capture) -> None:
    run_folder(here / "run")
    assert printed(capsys, "report", "run", "--github") == ""


def test_where_sarif_cannot_go(here: Path, worker: Path, capsys: Capture) -> None:
    assert "--sarif writes into a file" in refused(capsys, 2, "report", str(worker), "--sarif", "-")
    assert "there is no folder nowhere" in refused(capsys, 3, "report", str(worker), "--sarif", "nowhere/a")
    assert "take one of them" in refused(capsys, 2, "report", str(worker), "--sarif", "a", "--json")
    assert "no.dump" in refused(capsys, 3, "report", "no.dump", "--sarif", "a.sarif")
    assert list(here.iterdir()) == []
