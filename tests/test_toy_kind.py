"""A kind of finding is one unit: this file registers one, and every part of the package knows it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from support.finding_samples import altered, known, run_of

import shadowgraph as sg
from shadowgraph.checks.base import Check, Checkpoint, Context, Detection
from shadowgraph.checks.kind import FindingKind, Row
from shadowgraph.commands.main import main
from shadowgraph.dumps.reader import read_dump
from shadowgraph.dumps.redaction import redacted
from shadowgraph.integrations.pytest import declared
from shadowgraph.model import kinds as register
from shadowgraph.model.findings import Finding, Severity, json_schema
from shadowgraph.model.graphs import Graph
from shadowgraph.model.kinds import TAG, Detail, decode_detail
from shadowgraph.model.redaction import Kept, OwnerPath
from shadowgraph.model.run_facts import RunFacts
from shadowgraph.monitor.finding_store import FindingStore
from shadowgraph.render.html.page import live_page
from shadowgraph.render.html.reprs import html_of
from shadowgraph.render.text.run_text import RunReport
from shadowgraph.render.text.text import Report
from shadowgraph.wrap.folder.reader import read_run
from shadowgraph.wrap.status.page import status_page

# -- the kind: all that one writes for a new one --------------------------------------------------------------------

CODE = "SG190"


class NegativeDetail(Detail, msgspec.Struct, frozen=True, tag=CODE, tag_field=TAG):
    """`prompt` has no mark: redaction drops it."""

    count: Kept[int]
    beside: OwnerPath
    prompt: str = ""


class NegativeCheck(Check):
    """Reports graphs whose first static input begins with a negative number when they are about to replay."""

    def replay_begins(self, checkpoint: Checkpoint) -> None:
        graph = checkpoint.graph
        assert graph is not None
        for buffer in first_inputs(graph):
            data = self.context.engine.read(buffer.range)
            if data[3] & 0x80:
                self.context.report(
                    Detection(
                        code=CODE,
                        checkpoint=checkpoint,
                        buffer=buffer,
                        first=buffer.start,
                        last=buffer.start + 3,
                        count=4,
                        ranges=((buffer.start, buffer.start + 3),),
                        graph=graph,
                        replay=checkpoint.replay,
                        facts=NegativeDetail(1, "cache['a prompt'].x", "a prompt"),
                    )
                )


def first_inputs(graph: Graph) -> Iterable[Any]:
    return list(graph.inputs.values())[:1]


class NegativeKind(FindingKind):
    """A static input begins with a negative number."""

    code = CODE
    title = "negative input"
    detail = NegativeDetail
    remedy = "Write a number that is not negative."

    def verdict(self, finding: Finding) -> str:
        return f"{finding.buffer.name} begins with a negative number"

    def rows(self, finding: Finding) -> Iterable[Row]:
        assert isinstance(finding.detail, NegativeDetail)
        yield "negative", f"{finding.detail.count} beside {finding.detail.beside}: {finding.detail.prompt or '...'}"

    def explanation(self) -> str:
        return "*Cause.* A number went wrong.\n\n*Evidence.* Its sign bit."

    def make_checks(self, context: Context) -> Iterable[Check]:
        yield NegativeCheck(context)


# -- and what knows it then ------------------------------------------------------------------------------------------

HEADLINE = "SG190 negative input: runner.lens begins with a negative number in eager code"


class Runner:
    def __init__(self) -> None:
        self.lens = torch.tensor([-1, 2, 3], dtype=torch.int32)


@pytest.fixture(autouse=True)
def kind() -> Iterator[NegativeKind]:
    made = NegativeKind()
    register.register(made)
    yield made
    register.unregister(CODE)


@pytest.fixture
def debugger() -> Iterator[sg.Debugger]:
    with sg.debug(backend="host") as made:
        with made.guard():
            runner = Runner()
        made.name("runner", runner)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            runner.lens.add(1)
        graph.replay()
        yield made


def test_its_fixed_twin_is_silent() -> None:
    with sg.debug(backend="host") as debugger:
        with debugger.guard():
            lens = torch.tensor([1, 2, 3], dtype=torch.int32)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            lens.add(1)
        graph.replay()
        assert debugger.findings == ()


def found(debugger: sg.Debugger) -> Finding:
    (finding,) = debugger.findings
    return finding


def test_its_check_runs_and_the_report_has_its_words(debugger: sg.Debugger) -> None:
    assert found(debugger).message == HEADLINE
    said = str(Report(debugger.facts()))
    assert said.startswith(f"{HEADLINE}\n")
    assert "  negative   1 beside cache['a prompt'].x: a prompt\n" in said
    assert "  do         Write a number that is not negative.\n" in said


def test_json(debugger: sg.Debugger) -> None:
    document = json.loads(Report(debugger.facts()).to_json())
    (finding,) = document["findings"]
    assert (finding["code"], finding["kind"], finding["message"]) == (CODE, "negative input", HEADLINE)
    assert finding["detail"] == {"code": CODE, "count": 1, "beside": "cache['a prompt'].x", "prompt": "a prompt"}
    assert msgspec.convert(document, RunFacts, dec_hook=decode_detail).findings == debugger.findings
    assert "NegativeDetail" in json_schema()["$defs"]


def test_html(debugger: sg.Debugger) -> None:
    (card,) = live_page(debugger.facts()).findings
    assert card.headline == HEADLINE
    page = html_of(found(debugger))
    assert page is not None
    assert "begins with a negative number" in page
    assert "Write a number that is not negative." in page


def test_a_dump_and_back(debugger: sg.Debugger, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = debugger.dump(tmp_path / "run.dump")
    with read_dump(path) as dump:
        assert dump.facts().findings == debugger.findings
    assert main(["report", str(path)]) == 0
    assert HEADLINE in capsys.readouterr().out


def test_a_redacted_dump_has_nothing_that_is_not_marked(debugger: sg.Debugger, tmp_path: Path) -> None:
    with read_dump(debugger.dump(tmp_path / "run.dump", redact=True)) as dump:
        (finding,) = dump.facts().findings
    assert finding.detail == NegativeDetail(1, "cache[...].x", "")
    assert redacted(found(debugger)).detail == finding.detail


def test_suppressions(debugger: sg.Debugger) -> None:
    finding = found(debugger)
    book = FindingStore(known(finding.fingerprint))
    assert not book.add(finding, "")[1]
    assert book.suppressed == 1


def test_two_sightings_are_one_finding() -> None:
    one = altered(code=CODE, detail=NegativeDetail(1, "x"))
    book = FindingStore()
    book.add(one, "")
    kept, new = book.add(one, "")
    assert (new, kept.occurrences) == (False, 2)


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "negative input"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("SG190: negative input\n\ncause\n  A number went wrong.\n")
    assert main(["explain"]) == 0
    assert "SG190  negative input" in capsys.readouterr().out


def test_the_plugin_for_pytest_takes_its_code() -> None:
    assert declared._codes("allow", [CODE]) == {CODE}


def test_the_run_folder_and_the_status_page(debugger: sg.Debugger, tmp_path: Path) -> None:
    finding = found(debugger)
    line = json.dumps({"kind": "finding", "book": 1, "finding": finding.to_dict()})
    (tmp_path / "run.json").write_text('{"format": 2, "command": ["x"]}')
    (tmp_path / "findings-1-2.jsonl").write_text(f'{{"kind": "start", "format": 2, "pid": 1}}\n{line}\n')
    run = read_run(tmp_path)
    assert [each.message for each in run.merged().findings] == [HEADLINE]
    assert HEADLINE in status_page(RunReport(run)).decode()


def test_severity_and_runs_like_any_other() -> None:
    note = altered(code=CODE, severity=Severity.NOTE, detail=NegativeDetail(1, "x"))
    assert "1 note" in str(Report(run_of(notes=(note,))))
