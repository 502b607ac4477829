"""The status page of a run as data: findings, processes and limits. Built in a thread of the status server."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass

from shadowgraph.model.coverage import added_classes
from shadowgraph.model.findings import Finding
from shadowgraph.render.engine import render
from shadowgraph.render.text.last_check_text import last_check_of
from shadowgraph.render.text.run_text import RunReport, missing
from shadowgraph.render.text.text import headline
from shadowgraph.wrap.folder.heartbeats import Heartbeat
from shadowgraph.wrap.folder.idle_report import cut
from shadowgraph.wrap.folder.process_record import ProcessRecord
from shadowgraph.wrap.folder.reader import Run
from shadowgraph.wrap.status.pause_file import is_off
from shadowgraph.wrap.status.tables import Link, Row, Table, Tile

REFRESH = 5  # seconds
_FINDINGS, _PROCESSES, _LINES = 200, 100, 50  # shown of each
_FOUND = ("#", "code", "severity", "seen", "first at", "process", "what")
_WATCHED = ("pid", "state", "backend", "replays", "checked", "overhead", "checking", "last told", "what")


@dataclass(frozen=True, slots=True)
class StatusPage:
    """The state of a run; `missing` says which part of it could not be read, `found` whether there are findings."""

    headline: str
    found: bool
    command: str
    about: str
    missing: str
    tiles: tuple[Tile, ...]
    classes: str
    findings: Table
    processes: Table
    limits: tuple[str, ...]
    read: str
    refresh: int = REFRESH


def status_page(report: RunReport) -> bytes:
    """The current page of a run."""
    return render("status.html", page=_page(report)).encode("utf-8", "backslashreplace")


def _page(report: RunReport) -> StatusPage:
    run, facts = report.run, report.facts
    kept, latest = facts.told, run.processes[-_PROCESSES:]
    ended = [f"process {p.pid}: {said}" for p in latest if p.ended != "running" for said in last_check_of(p)]
    limits = [*ended, *facts.limits, *(f"fault: {what} ({count:,} times)" for what, count in facts.faults.items())]
    return StatusPage(
        headline=headline(facts),
        found=bool(facts.findings),
        command=cut(shlex.join(run.command), 300),
        about=_about(run),
        missing=missing(run) if run.unread else "",
        tiles=tuple(_tiles(report)),
        classes=_by_class([process.pulse for process in run.processes if process.pulse is not None]),
        findings=Table.of("findings", _FOUND, map(_finding, kept[:_FINDINGS]), len(kept) - _FINDINGS),
        processes=Table.of("processes", _WATCHED, map(_process, latest), len(run.processes) - _PROCESSES),
        limits=tuple(limits[:_LINES]),
        read=time.strftime("%H:%M:%S"),
    )


def _about(run: Run) -> str:
    started = run.manifest.get("started")
    since = f", since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(started))}" if started else ""
    return f"shadowgraph {run.manifest.get('shadowgraph', '?')}{since}; {run.folder}"


def _tiles(report: RunReport) -> Iterator[Tile]:
    run, facts = report.run, report.facts
    pulses = [process.pulse for process in run.processes if process.pulse is not None]
    errors = len(facts.findings)
    yield Tile("findings", "findings", f"{errors:,}", "bad" if errors else "good")
    yield Tile("notes", "notes", f"{len(facts.notes):,}")
    yield Tile("coverage", "of graph-written bytes guarded", _covered(pulses))
    replays, checked = sum(pulse.replays for pulse in pulses), sum(pulse.checked for pulse in pulses)
    yield Tile("replays", f"replays, {checked:,} checked", f"{replays:,}")
    yield Tile("overhead", "of the time spent on checking, at most", _most_overhead(run))
    off = is_off(run.folder)
    yield Tile("checking", "checking", "off" if off else "on", "warn" if off else "good")
    faults = sum(facts.faults.values())
    yield Tile("faults", "internal errors", f"{faults:,}", "warn" if faults else "")


def _covered(pulses: list[Heartbeat]) -> str:
    """The share of bytes written by graphs that lies in exactly guarded buffers."""
    parts = [pulse.coverage for pulse in pulses if pulse.coverage is not None]
    written, exact = sum(part.written for part in parts), sum(part.exact for part in parts)
    return f"{100 * exact // written} %" if written else "no graph yet"


def _by_class(pulses: list[Heartbeat]) -> str:
    """The same by class of buffer; empty without any graph."""
    rows = added_classes(pulse.coverage.classes for pulse in pulses if pulse.coverage is not None)
    return ", ".join(f"{row.name} {row.percent} %" for row in rows)


def _most_overhead(run: Run) -> str:
    """The largest overhead among the running processes."""
    live = [process.pulse for process in run.processes if process.pulse is not None and process.ended == "running"]
    shares = [pulse.overhead for pulse in live if pulse.overhead is not None]
    return f"{max(shares):.1f} %" if shares else "-"


def _finding(finding: Finding) -> Row:
    at = time.strftime("%H:%M:%S", time.localtime(finding.time))
    who = f"{finding.pid}" if finding.rank is None else f"{finding.pid} (rank {finding.rank})"
    page = f"finding/{finding.id}"
    return (
        Link(f"#{finding.id}", page), finding.code, str(finding.severity), finding.occurrences, at, who,
        Link(finding.message, page),
    )  # fmt: skip


def _process(process: ProcessRecord) -> Row:
    pulse = process.pulse
    who = cut(process.title or shlex.join(process.argv), 160)
    start: Row = (str(process.pid), process.ended, process.backend or "no tensor work")
    if pulse is None:
        return (*start, 0, 0, "-", "-", "-", who)
    overhead = f"{pulse.overhead:.1f} %" if pulse.overhead is not None else "-"
    every = "every replay" if pulse.every == 1 else f"one replay in {pulse.every:,}" if pulse.every else "stopped"
    checking = "off" if pulse.off_since is not None else every
    told = f"{max(0.0, time.time() - pulse.time):,.0f} s ago"
    return (*start, pulse.replays, pulse.checked, overhead, checking, told, who)
