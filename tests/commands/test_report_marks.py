"""High-water marks wherever a report is made: from a dump, a page, a document, a run of several processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from support.finding_samples import MARK, run_of
from verb_makers import Capture, printed

import shadowgraph as sg
from shadowgraph.commands.main import main
from shadowgraph.dumps.redaction import redacted
from shadowgraph.model.high_water import fullest_first
from shadowgraph.render.text.text import Report
from shadowgraph.views.high_water import mark_table
from shadowgraph.wrap.folder.merging import merge
from shadowgraph.wrap.folder.process_record import ProcessRecord

BUFFERS = 6


class Prepared:
    """Inputs that steps fill in part, the later ones more; the first always as much."""

    def __init__(self, debugger: sg.Debugger) -> None:
        with debugger.guard():
            self.inputs = [torch.zeros(40, dtype=torch.int32) for _ in range(BUFFERS)]
        debugger.name("prepared", self)
        self.graph = sg.HostGraph()
        with sg.host_graph(self.graph):
            self.sums = [each.sum() for each in self.inputs]
        for step in range(4):
            for place, each in enumerate(self.inputs):
                count = 5 + place * step
                each[:count].copy_(torch.arange(count))
            self.graph.replay()


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    with sg.debug() as debugger:
        prepared = Prepared(debugger)
        written = debugger.dump(tmp_path / "marks.dump")
        assert not debugger.notes
        del prepared
    return written


def rows_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if " of 40 entries, replay " in line]


def test_a_dump_lists_the_fullest_few_or_all(dump: Path, capsys: Capture) -> None:
    few, every = rows_of(printed(capsys, "report", str(dump))), rows_of(printed(capsys, "report", str(dump), "--marks"))
    assert [line.split(" (")[0].split()[-1] for line in few] == [f"prepared.inputs[{at}]" for at in (5, 4, 3, 2)]
    assert few == every[:4]
    assert len(every) == BUFFERS
    assert "   50 %  prepared.inputs[5] (int32[40]): 20 of 40 entries, replay 4 of graph#" in few[0]
    assert every[-1].endswith("; in 3 observed replays, written before the replay")


def test_marks_that_are_asked_for_and_not_there(tmp_path: Path, capsys: Capture) -> None:
    with sg.debug() as debugger:
        written = str(debugger.dump(tmp_path / "none.dump"))
    assert "no high-water marks: in observed replays, host code wrote" in printed(capsys, "report", written, "--marks")
    assert "high-water" not in printed(capsys, "report", written)


def test_a_page_and_a_document_have_all(dump: Path, tmp_path: Path, capsys: Capture) -> None:
    target = tmp_path / "page.html"
    printed(capsys, "report", str(dump), "--html", str(target))
    page = target.read_text("utf-8")
    assert "<h2>High-water marks</h2>" in page
    assert page.count(" of 40 entries</td>") == BUFFERS
    text = printed(capsys, "report", str(dump), "--json")
    document = json.loads(text)
    assert [mark["used"] for mark in document["high_water"]] == [20, 17, 14, 11, 8, 5]
    saved = tmp_path / "report.json"
    saved.write_text(text, "utf-8")
    assert rows_of(printed(capsys, "report", str(saved), "--marks")) == rows_of(
        printed(capsys, "report", str(dump), "--marks")
    )


def test_a_wrapped_run_has_the_marks_of_its_processes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "import shadowgraph as sg\n"
        "inputs = torch.zeros(40, dtype=torch.int32)\n"
        "graph = sg.HostGraph()\n"
        "with sg.host_graph(graph):\n"
        "    out = inputs * 2\n"
        "for count in (3, 4, 9, 6):\n"
        "    inputs[:count].copy_(torch.arange(count))\n"
        "    graph.replay()\n",
        "utf-8",
    )
    folder = tmp_path / "run"
    words = ("--backend", "host", "--run-dir", str(folder), "--", sys.executable, str(program))
    assert main(["wrap", *words]) == 0
    capfd.readouterr()
    assert main(["report", str(folder), "--marks"]) == 0
    (row,) = rows_of(capfd.readouterr().out)
    assert "9 of 40 entries, replay 3 of graph#1; at least 4, in 3 observed replays" in row


def test_marks_of_several_processes_are_merged_in_order() -> None:
    emptier = replace(MARK, used=9, buffer="draft.other")
    records = [
        ProcessRecord(Path("a"), pid=1, summaries=[run_of(high_water=(emptier,))]),
        ProcessRecord(Path("b"), pid=2, summaries=[run_of(high_water=(MARK,))]),
    ]
    merged = merge(records).high_water
    assert [(mark.buffer, mark.graph) for mark in merged] == [
        ("draft.kv_indices", "2:graph#1"),
        ("draft.other", "1:graph#1"),
    ]
    assert merge(records[:1]).high_water == (emptier,)


def test_a_mark_in_words() -> None:
    said = str(Report(run_of(high_water=(MARK,))))
    assert (
        "   94 %  draft.kv_indices (int32[3, 128]): 120 of 128 entries of a row, replay 7 of graph#1: 2 requests, "
        "padded to 4; longest 16, 28 tokens; at least 8, in 12 observed replays, told by the plan; "
        "overflows at a sum of lengths of 31"
    ) in said
    hidden = redacted(run_of(high_water=(replace(MARK, buffer="cache['a prompt'].x"),)))
    assert hidden.high_water == (replace(MARK, buffer="cache[...].x"),)


def test_what_is_shown_and_in_which_order() -> None:
    same = replace(MARK, least=120, forecast=None)
    fuller, emptier = replace(MARK, used=128, forecast=None), replace(MARK, used=20, forecast=None)
    marks = fullest_first([emptier, same, fuller, MARK])
    assert marks == [MARK, fuller, same, emptier]
    assert [row.share for row in mark_table(marks, 8).rows] == ["94 %", "100 %", "16 %"]
    assert (mark_table(marks, 2).left_out, len(mark_table(marks, 8, all_of_them=True).rows)) == (2, 4)
    assert mark_table([replace(MARK, used=10**6 - 1, capacity=10**6)], 1).rows[0].share == "99 %"
    assert not mark_table([same], 8).rows
    assert "high-water" not in str(Report(run_of(high_water=(same,))))
