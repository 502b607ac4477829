"""The status page of a run: findings, processes and limits."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator

from shadowgraph.model.findings import Finding
from shadowgraph.render.text.run_text import RunReport, missing
from shadowgraph.wrap.folder.heartbeats import Heartbeat
from shadowgraph.wrap.folder.idle_report import cut
from shadowgraph.wrap.folder.process_record import ProcessRecord
from shadowgraph.wrap.folder.reader import Run
from shadowgraph.wrap.status.html import page, table, text, tile
from shadowgraph.wrap.status.pause_file import is_off

REFRESH = 5  # seconds
_FINDINGS, _PROCESSES, _LINES = 200, 100, 50  # shown of each


def status_page(report: RunReport) -> bytes:
    """The current page of a run."""
    return page("shadowgraph: status", _body(report), REFRESH)


def _body(report: RunReport) -> Iterator[str]:
    run, facts = report.run, report.facts
    yield from _head(run)
    yield f'<div class="tiles">{"".join(_tiles(report))}</div>'
    kept = facts.told
    yield "<h2>Findings</h2>"
    if kept:
        columns = ("#", "code", "severity", "seen", "first at", "process", "what")
        yield table("findings", columns, map(_finding, kept[:_FINDINGS]), len(kept) - _FINDINGS)
    else:
        yield '<p id="findings">none so far</p>'
    yield "<h2>Processes</h2>"
    latest = run.processes[-_PROCESSES:]
    headings = ("pid", "state", "backend", "replays", "checked", "overhead", "checking", "last told", "what")
    yield table("processes", headings, map(_process, latest), len(run.processes) - _PROCESSES)
    said = [*facts.limits, *(f"fault: {what} ({count:,} times)" for what, count in facts.faults.items())]
    if said:
        yield "<h2>Limits</h2>"
        yield "".join(f"<p>{text(line)}</p>" for line in said[:_LINES])
    yield f'<p class="dim">read {time.strftime("%H:%M:%S")}; this page asks again every {REFRESH} seconds</p>'


def _head(run: Run) -> Iterator[str]:
    started = run.manifest.get("started")
    since = f", since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(started))}" if started else ""
    yield f"<h1><code>{text(cut(shlex.join(run.command), 300))}</code></h1>"
    yield f'<p class="dim">shadowgraph {text(run.manifest.get("shadowgraph", "?"))}{since}; {text(run.folder)}</p>'
    if run.unread:
        yield f'<p class="warn">{text(missing(run))}</p>'
    yield '<nav><a href="json">JSON</a><a href="metrics">metrics</a><a href="map">memory map</a></nav>'


def _tiles(report: RunReport) -> Iterator[str]:
    run, facts = report.run, report.facts
    pulses = [process.pulse for process in run.processes if process.pulse is not None]
    errors = len(facts.findings)
    yield tile("tile-findings", "findings", f"{errors:,}", "bad" if errors else "good")
    yield tile("tile-notes", "notes", f"{len(facts.notes):,}")
    yield tile("tile-coverage", "of graph-written bytes guarded", _covered(pulses))
    replays, checked = sum(pulse.replays for pulse in pulses), sum(pulse.checked for pulse in pulses)
    yield tile("tile-replays", f"replays, {checked:,} checked", f"{replays:,}")
    yield tile("tile-overhead", "most time for checking", _most_overhead(run))
    off = is_off(run.folder)
    yield tile("tile-checking", "checking", "off" if off else "on", "warn" if off else "good")
    faults = sum(facts.faults.values())
    yield tile("tile-faults", "internal errors", f"{faults:,}", "warn" if faults else "")


def _covered(pulses: list[Heartbeat]) -> str:
    """The share of bytes written by graphs that lies in exactly guarded buffers."""
    parts = [pulse.coverage for pulse in pulses if pulse.coverage is not None]
    written, exact = sum(part.written for part in parts), sum(part.exact for part in parts)
    return f"{100 * exact // written} %" if written else "no graph yet"


def _most_overhead(run: Run) -> str:
    """The largest overhead among the running processes."""
    live = [process.pulse for process in run.processes if process.pulse is not None and process.ended == "running"]
    shares = [pulse.overhead for pulse in live if pulse.overhead is not None]
    return f"{max(shares):.1f} %" if shares else "-"


def _finding(finding: Finding) -> tuple[str | int, ...]:
    at = time.strftime("%H:%M:%S", time.localtime(finding.time))
    who = f"{finding.pid}" if finding.rank is None else f"{finding.pid} (rank {finding.rank})"
    return finding.id, finding.code, str(finding.severity), finding.occurrences, at, who, finding.message


def _process(process: ProcessRecord) -> tuple[str | int, ...]:
    pulse = process.pulse
    who = cut(process.title or shlex.join(process.argv), 160)
    start: tuple[str | int, ...] = (str(process.pid), process.ended, process.backend or "no tensor work")
    if pulse is None:
        return (*start, 0, 0, "-", "-", "-", who)
    overhead = f"{pulse.overhead:.1f} %" if pulse.overhead is not None else "-"
    every = "every replay" if pulse.every == 1 else f"one replay in {pulse.every:,}" if pulse.every else "stopped"
    checking = "off" if pulse.off_since is not None else every
    told = f"{max(0.0, time.time() - pulse.time):,.0f} s ago"
    return (*start, pulse.replays, pulse.checked, overhead, checking, told, who)
