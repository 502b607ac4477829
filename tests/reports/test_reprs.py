"""What notebooks show of objects: the same facts as their text, as harmless markup, made only when asked for."""

from __future__ import annotations

import gc
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands.test_report_html import HOSTILE
from commands.verb_makers import Worker, worker_dump
from reports.page_reading import Page, folded, read_page
from serving.run_folders import made_folder, with_process
from support import warm
from support.finding_samples import FINDING, altered, run_of

import shadowgraph as sg
from shadowgraph.common.html_repr import HtmlRepr
from shadowgraph.dumps.reader import Dump, read_dump
from shadowgraph.model.findings import Finding
from shadowgraph.model.listings import Buffers, Findings
from shadowgraph.model.run_facts import RunFacts
from shadowgraph.render.engine import style
from shadowgraph.render.text.aliases_text import AliasesReport
from shadowgraph.render.text.finding_rows import end_rows, fact_rows
from shadowgraph.render.text.nodes_text import NodesReport
from shadowgraph.render.text.run_text import RunReport
from shadowgraph.render.text.text import Report
from shadowgraph.views.alias_list import alias_list
from shadowgraph.views.node_list import listed
from shadowgraph.wrap.folder.reader import read_run

Live = tuple[sg.Debugger, Worker]


@pytest.fixture(scope="module")
def live(dump: Dump) -> Iterator[Live]:
    """A run with an SG101, an SG102 and an SG104, still watched; the dump is of one before it."""
    with sg.debug() as debugger:
        worker = Worker(debugger)
        worker.step()
        worker.step(past=3)
        worker.lose(debugger)
        worker.step()
        assert {finding.code for finding in debugger.findings} == {"SG101", "SG102", "SG104"}
        yield debugger, worker


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dump]:
    """A dump of such a run."""
    with read_dump(worker_dump(tmp_path_factory.mktemp("reprs") / "run.dump")) as opened:
        yield opened


def shown(thing: HtmlRepr) -> Page:
    """What a notebook's cell gets: one element with its own style, and nothing that runs."""
    text = thing._repr_html_()
    assert text is not None
    assert text.strip().startswith('<div class="sg sg-cell"><style>')
    page = read_page(text)
    assert page.scripts == []
    assert not {"link", "img", "iframe", "meta"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name == "id"], "cells of one notebook share its ids"
    return page


def require_finding(finding: Finding, page: Page) -> None:
    assert folded(finding.message) in page.words
    for row in (*fact_rows(finding), *end_rows(finding)):
        assert folded(row.text) in page.words, row


def test_a_live_report(live: Live) -> None:
    debugger, _ = live
    printed = io.StringIO()
    report = debugger.report(printed)
    assert printed.getvalue() == str(report), "it prints as before"
    page = shown(report)
    assert printed.getvalue().splitlines()[-1].removeprefix("coverage: ") in page.words
    assert page.words.startswith(debugger.findings[0].message), "the finding comes first"
    for finding in debugger.findings:
        require_finding(finding, page)
    assert repr(report) == "<Report: 3 findings, 0 notes>"


def test_findings_are_tuples_still(live: Live) -> None:
    found = live[0].findings
    assert isinstance(found, Findings)
    assert found == tuple(found)
    assert repr(found) == repr(tuple(found))
    assert isinstance(live[0].facts().findings, tuple)
    page = shown(found)
    assert page.words.startswith("3 findings")
    for finding in found:
        require_finding(finding, page)
    assert live[0].notes == ()
    assert shown(live[0].notes).words == "none"


def test_many_findings_are_cut() -> None:
    page = shown(Findings(altered(id=number) for number in range(1, 81)))
    assert page.words.startswith("80 findings")
    assert page.words.endswith("... and 30 more")


def test_a_finding(live: Live, dump: Dump) -> None:
    for finding in (*live[0].findings, *dump.facts().findings, FINDING):
        page = shown(finding)
        require_finding(finding, page)
    assert "a1 a1 a1 a1 07 00 00 00" in page.words


def test_longer_stacks_are_folded_not_lost() -> None:
    frames = tuple(type(FINDING.culprit.stack[0])(f"/srv/{n}.py", n, "call") for n in range(9))
    finding = altered(culprit__stack=frames)
    assert str(Report(run_of(finding))).count(" in call") == 5
    page = shown(finding)
    assert page.words.count(" in call") == 9
    assert "4 more" in page.words


def test_buffers(live: Live, dump: Dump) -> None:
    debugger, worker = live
    buffers = debugger.buffers
    assert isinstance(buffers, Buffers)
    assert buffers == tuple(buffers)
    page = shown(buffers)
    assert f"{len(buffers)} buffers" in page.words
    mine = next(b for b in buffers if b.start == worker.table.data_ptr())
    for each in shown(mine), page:
        assert "worker.table" in each.words
        assert f"{mine.start:#x}" in each.words
        assert "int32[4, 2]" in each.words
    assert f"512 bytes before, {mine.tail_guard:,} bytes after" in shown(mine).words
    theirs = next(b for b in dump.buffers if b.nbytes == mine.nbytes and b.dtype == "int32" and b.graph is None)
    assert shown(theirs).words.startswith("worker.table buffer int32[4, 2]")
    freed = max((b for b in dump.freed if b.dtype == "float32" and b.shape == (8,)), key=lambda b: b.serial)
    assert "it has been freed" in shown(freed).words


def test_a_buffer_that_nobody_names_any_more(live: Live) -> None:
    buffer = next(b for b in live[0].buffers if b.stack)
    orphan = type(buffer)(10**9, 4096, 8, buffer.role, "int64", (1,), 8, buffer.stack)
    assert f"int64[1] from {Path(buffer.stack[0].file).name}:" in shown(orphan).words


def test_a_graph(live: Live, dump: Dump) -> None:
    debugger, worker = live
    for graph, replays in (debugger.graph(worker.graph), 3), (dump.graphs[0], 3):
        page = shown(graph)
        assert f"3 nodes, {replays} replays" in page.words
        assert "self -> worker.table + 0" in page.words
        assert "self -> worker.indptr + 4" in page.words
    page = shown(NodesReport([listed(dump.graphs[0], dump.at)]))
    assert "self -> worker.table + 0" in page.words


def test_alias_groups(live: Live, dump: Dump) -> None:
    groups = alias_list(dump, dump.names)
    for thing in (live[0].names.groups(), AliasesReport(groups), groups[0]):
        assert isinstance(thing, HtmlRepr)
        page = shown(thing)
        assert page.words.startswith("1 group of owners that share bytes")
        assert "worker.rows int32[2, 2] 8 to 23 worker.table[1:3]" in page.words
    assert isinstance(live[0].names.groups(), list)
    assert shown(AliasesReport([])).words == "no two owners share bytes"


def test_a_dump_and_a_run(dump: Dump, tmp_path: Path) -> None:
    page = shown(dump)
    assert f"dump of process {dump.manifest.pid}" in page.words
    for finding in dump.facts().findings:
        require_finding(finding, page)
    folder = made_folder(tmp_path / "run", "python", "serve.py")
    with_process(folder, pid=4_100_001)
    report = RunReport(read_run(folder))
    page = shown(report)
    assert "shadowgraph wrap: python serve.py" in page.words
    for finding in report.facts.findings:
        require_finding(finding, page)


def test_other_reports_show_their_lines(dump: Dump) -> None:
    from shadowgraph.render.text.map_text import DumpedMap, MapReport
    from shadowgraph.views.dumped_map import dumped_map

    report = MapReport([DumpedMap(1, "run.dump", dumped_map(dump, dump.names))], 40)
    page = shown(report)
    for line in str(report).splitlines():
        assert folded(line) in page.words


def test_texts_stay_texts() -> None:
    for thing in (
        altered(buffer__name=HOSTILE, culprit__name=HOSTILE),
        Report(run_of(altered(buffer__name=HOSTILE), limits=(HOSTILE,), faults={HOSTILE: 1})),
        Findings([altered(buffer__name=HOSTILE)]),
    ):
        page = shown(thing)
        assert "<script>alert(1)</script>" in page.words
        assert "\u202e" not in page.words


def test_what_has_no_better_form_keeps_its_text() -> None:
    assert HtmlRepr()._repr_html_() is None


def test_facts_stay_encodable(live: Live) -> None:
    facts: RunFacts = live[0].facts()
    assert type(facts.findings) is tuple
    assert '"SG101"' in Report(facts).to_json()


def test_names_are_kept_by_nobody() -> None:
    from shadowgraph.common.html_repr import namer_of, register_namer

    class One:
        def knows(self, thing: object) -> bool:
            return thing == "mine"

        def called(self, buffer: object) -> str:
            return "it"

        def at(self, address: int) -> None:
            return None

    one = register_namer(One())
    assert namer_of("mine") is one
    del one
    gc.collect()
    assert namer_of("mine") is None


def test_importing_loads_no_template_engine() -> None:
    code = "import sys, shadowgraph, shadowgraph.debugger; sys.exit('shadowgraph.render.html' in sys.modules)"
    assert warm.run([sys.executable, "-c", code], os.environ).returncode == 0


def test_cells_of_tables_stand_to_the_left_in_jupyter() -> None:
    """Its own rule for them, `:not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon td`, counts two classes and one element:
    ours comes later and wins if it counts no less."""
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", re.sub(r"/\*.*?\*/", "", style(), flags=re.DOTALL))
    cells = [s.strip() for names, body in rules if "text-align: left" in body for s in names.split(",")]
    assert {s.split()[-1] for s in cells} >= {"td", "th"}
    assert all(s.count(".") >= 2 for s in cells if s.split()[-1] in {"td", "th"})
    (table,) = [body for names, body in rules if names.strip() == ".sg table"]
    assert "table-layout: auto" in table, "Jupyter makes all columns equally wide"
