"""Content of an HTML report as data: of a live run, of a dump, of a run folder. The template is `page.html`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shadowgraph.dumps.choosing import later_findings, later_said
from shadowgraph.dumps.reader import Dump
from shadowgraph.model.coverage import Coverage
from shadowgraph.model.findings import Finding, Severity
from shadowgraph.model.run_facts import RunFacts
from shadowgraph.render.html.bytes_around import bytes_of
from shadowgraph.render.html.cards import Card, Said, card_of, said_of
from shadowgraph.render.html.hexdump import HexTable
from shadowgraph.render.html.pictures import MapView, map_view
from shadowgraph.render.html.tables import (
    GraphTable,
    LaunchRow,
    ProcessRow,
    graph_tables,
    launch_rows,
    process_row,
)
from shadowgraph.render.text.dumped import about_lines, tail_lines
from shadowgraph.render.text.folding import folded, in_processes, process_rows
from shadowgraph.render.text.map_text import DumpedMap
from shadowgraph.render.text.run_text import RunReport, missing, title, where
from shadowgraph.render.text.text import failure_lines, headline, limit_lines, lost_lines, replays, summary, watch_lines
from shadowgraph.views.dumped_map import dumped_map
from shadowgraph.views.high_water import MarkTable, mark_table
from shadowgraph.wrap.folder.idle_report import UNSEEN
from shadowgraph.wrap.folder.reader import Run

_FINDINGS = 200
_PROCESSES = 200
_PARTS = 8  # processes whose memory, graphs and launches are shown
_MARKS = 200  # high-water marks
_GRAPHS = 50  # graphs that are listed one by one

BytesOf = Callable[[Finding], HexTable | None]


@dataclass(frozen=True, slots=True)
class Part:
    """The dump of one process: its graphs, last launches and memory map."""

    title: str
    file: str
    graphs: tuple[GraphTable, ...]
    more_graphs: int
    launches: tuple[LaunchRow, ...]
    more_launches: int
    map: MapView


@dataclass(frozen=True, slots=True)
class Page:
    """A report.

    Attributes
    ----------
    headline
        The first finding, and the number of others.
    summary
        The line of the text report with the counts.
    replays
        The line of the text report on replays; empty without any.
    file
        Path of the dump or the run folder for a command line; empty for a live run.
    """

    title: str
    headline: str
    summary: str
    replays: str
    findings: tuple[Card, ...]
    notes: tuple[Card, ...]
    left_out: int
    watches: tuple[Said, ...]
    lost: tuple[Said, ...]
    failures: tuple[Said, ...]
    limits: tuple[Said, ...]
    coverage: Coverage
    graphs: tuple[tuple[str, int, int], ...]
    more_graphs: int
    marks: MarkTable
    file: str = ""
    head: tuple[Said, ...] = ()
    tail: tuple[Said, ...] = ()
    is_run: bool = False
    processes: tuple[ProcessRow, ...] = ()
    more_processes: int = 0
    parts: tuple[Part, ...] = ()
    more_parts: int = 0


def live_page(facts: RunFacts, bytes_of: BytesOf | None = None) -> Page:
    """The page of a run's facts; `bytes_of` gives more bytes around a finding than the finding itself kept."""
    kept, named = folded(facts), in_processes(facts)
    shown = [
        (
            card_of(
                told.finding,
                bytes_of(told.finding) if bytes_of is not None else None,
                process_rows(told) if named else (),
            ),
            told.finding.severity is Severity.ERROR,
        )
        for told in kept[:_FINDINGS]
    ]
    return Page(
        title="shadowgraph report",
        headline=headline(facts),
        summary=summary(facts),
        replays=replays(facts),
        findings=tuple(card for card, is_error in shown if is_error),
        notes=tuple(card for card, is_error in shown if not is_error),
        left_out=len(kept) - len(shown),
        watches=said_of(watch_lines(facts)),
        lost=said_of(lost_lines(facts)),
        failures=said_of(failure_lines(facts)),
        limits=said_of(limit_lines(facts)),
        coverage=facts.coverage,
        graphs=facts.graphs[:_GRAPHS],
        more_graphs=max(0, len(facts.graphs) - _GRAPHS),
        marks=mark_table(facts.high_water, _MARKS, all_of_them=True),
    )


def dump_page(dump: Dump) -> Page:
    """The page of a dump."""
    return replace(dump_report(dump), parts=(_part(dump),))


def dump_report(dump: Dump) -> Page:
    """The page of a dump without its nodes, launches and map."""
    return replace(
        live_page(dump.facts(), bytes_of([dump])),
        title=f"shadowgraph report: {dump.path.name}",
        file=shlex.quote(str(dump.path)),
        head=said_of(about_lines(dump.manifest)),
        tail=said_of(tail_lines(dump)),
    )


def run_page(report: RunReport, dumps: Sequence[Dump]) -> Page:
    """The page of a run folder; `dumps` are its open dumps, one for each process."""
    run = report.run
    found = {finding.pid for finding in report.facts.findings}
    order = sorted(dumps, key=lambda dump: (dump.manifest.pid not in found, dump.manifest.pid))
    shown = order[:_PARTS]
    return replace(
        with_run(live_page(report.facts, bytes_of(shown)), run),
        title=f"shadowgraph report: {run.folder.name}",
        file=shlex.quote(str(run.folder)),
        tail=(Said(where(run)),),
        parts=tuple(_part(dump, later_said(dump, later_findings(dump, report.facts.findings))) for dump in shown),
        more_parts=len(order) - len(shown),
    )


def with_run(page: Page, run: Run) -> Page:
    """The page with the run's command, exit status and processes."""
    return replace(
        page,
        head=(
            Said(title(run), "head"),
            *([Said(missing(run), "warn")] if run.unread else []),
            *([] if run.processes else [Said(UNSEEN, "warn")]),
        ),
        is_run=True,
        processes=tuple(process_row(process) for process in run.processes[:_PROCESSES]),
        more_processes=max(0, len(run.processes) - _PROCESSES),
    )


def _part(dump: Dump, later: str = "") -> Part:
    book, file = dump.names, shlex.quote(str(dump.path))
    graphs, more_graphs = graph_tables(dump, book, file)
    launches, more_launches = launch_rows(dump, book)
    drawn = DumpedMap(dump.manifest.pid, str(dump.path), dumped_map(dump, book))
    return Part(
        title=f"process {dump.manifest.pid}, {later or dump.path.name}",
        file=file,
        graphs=graphs,
        more_graphs=more_graphs,
        launches=launches,
        more_launches=more_launches,
        map=map_view(drawn),
    )
