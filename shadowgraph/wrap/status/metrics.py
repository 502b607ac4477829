"""Metrics of a run in the Prometheus text format, version 0.0.4."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from shadowgraph.model.coverage import added_classes
from shadowgraph.render.text.run_text import RunReport
from shadowgraph.wrap.folder.idle_report import cut
from shadowgraph.wrap.folder.process_record import ProcessRecord
from shadowgraph.wrap.folder.reader import Run
from shadowgraph.wrap.status.pause_file import is_off

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MOST_PROCESSES = 256  # the latest, with their own series

Labels = Mapping[str, str]


class Metric(NamedTuple):
    """A metric and its samples."""

    name: str
    kind: str
    help: str
    samples: tuple[tuple[Labels, float], ...]


def metrics(report: RunReport) -> str:
    """All metrics of a run as text."""
    return "".join(_lines([*_of_findings(report), *_of_coverage(report), *_of_run(report.run)]))


def _of_findings(report: RunReport) -> Iterator[Metric]:
    facts = report.facts
    kept = [*facts.findings, *facts.notes]
    found, seen = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for finding in kept:
        found[finding.code, str(finding.severity)] += 1
        seen[finding.code, str(finding.severity)] += finding.occurrences
    yield Metric("findings", "gauge", "Findings, one a cause, by code and severity.", _by_code(found))
    yield Metric("finding_occurrences_total", "counter", "How often their causes were seen.", _by_code(seen))
    yield _one("suppressed_total", "counter", "Sightings that a suppression left out.", facts.suppressed)
    yield _one("faults_total", "counter", "Faults of shadowgraph's own.", sum(facts.faults.values()))


def _of_coverage(report: RunReport) -> Iterator[Metric]:
    parts = [p.pulse.coverage for p in report.run.processes if p.pulse is not None and p.pulse.coverage is not None]
    written, exact = sum(part.written for part in parts), sum(part.exact for part in parts)
    yield _one("graph_written_bytes", "gauge", "Bytes that captured graphs may write.", written)
    yield _one("graph_written_guarded_bytes", "gauge", "Of those, bytes in buffers that are guarded exactly.", exact)
    rows = added_classes(part.classes for part in parts)
    written_by = tuple(({"class": row.name}, float(row.written)) for row in rows)
    yield Metric("graph_written_class_bytes", "gauge", "Bytes that graphs may write, by class of buffer.", written_by)
    exact_by = tuple(({"class": row.name}, float(row.exact)) for row in rows)
    yield Metric("graph_written_guarded_class_bytes", "gauge", "Of those, bytes in exactly guarded ones.", exact_by)
    share: tuple[tuple[Labels, float], ...] = (({}, exact / written),) if written else ()
    yield Metric("coverage_ratio", "gauge", "Guarded exactly, of all that graphs may write.", share)
    dropped = sum(part.dropped for part in parts)
    yield _one("records_dropped_total", "counter", "Records of launches forgotten for want of room.", dropped)


def _of_run(run: Run) -> Iterator[Metric]:
    info = {"version": str(run.manifest.get("shadowgraph", "")), "command": cut(shlex.join(run.command), 100)}
    yield Metric("run_info", "gauge", "What runs, and under which shadowgraph.", ((info, 1),))
    yield _one("switched_on", "gauge", "0 while checking is switched off from outside.", not is_off(run.folder))
    states = Counter(process.ended for process in run.processes)
    yield Metric(
        "processes", "gauge", "Processes seen, by state.", tuple(({"state": s}, n) for s, n in sorted(states.items()))
    )
    pulses = [process.pulse for process in run.processes if process.pulse is not None]
    yield _one("replays_total", "counter", "Replays that began.", sum(pulse.replays for pulse in pulses))
    yield _one(
        "replays_checked_total", "counter", "Replays whose guards were checked.", sum(pulse.checked for pulse in pulses)
    )
    yield _one(
        "replays_observed_total",
        "counter",
        "Replays that were observed in full, with their preparation.",
        sum(pulse.observed for pulse in pulses),
    )
    yield from _by_process([p for p in run.processes if p.pulse is not None and p.ended == "running"])


def _by_process(processes: list[ProcessRecord]) -> Iterator[Metric]:
    shown = [(_who(process), process.pulse) for process in processes[-_MOST_PROCESSES:] if process.pulse is not None]
    overhead = tuple((who, pulse.overhead) for who, pulse in shown if pulse.overhead is not None)
    yield Metric("overhead_percent", "gauge", "What checking took of the wall time lately, on the host.", overhead)
    on = tuple((who, float(pulse.every > 0 and pulse.off_since is None)) for who, pulse in shown)
    yield Metric("checking", "gauge", "1 while a process checks.", on)
    every = tuple((who, float(pulse.every)) for who, pulse in shown)
    yield Metric("check_every", "gauge", "One replay of a graph in so many is checked; 0: none any more.", every)
    off = tuple((who, pulse.seconds_off) for who, pulse in shown)
    yield Metric("checking_off_seconds_total", "counter", "For how long checking was switched off.", off)
    now = time.time()
    age = tuple((who, max(0.0, now - pulse.time)) for who, pulse in shown)
    yield Metric("pulse_age_seconds", "gauge", "Since a process told its numbers; it does so as it replays.", age)


def _who(process: ProcessRecord) -> Labels:
    return {"pid": str(process.pid), **({"rank": str(process.rank)} if process.rank is not None else {})}


def _by_code(counts: Mapping[tuple[str, str], int]) -> tuple[tuple[Labels, float], ...]:
    return tuple(({"code": code, "severity": severity}, number) for (code, severity), number in sorted(counts.items()))


def _one(name: str, kind: str, text: str, value: float) -> Metric:
    return Metric(name, kind, text, (({}, value),))


def _lines(found: Iterable[Metric]) -> Iterator[str]:
    for metric in found:
        name = f"shadowgraph_{metric.name}"
        yield f"# HELP {name} {_escaped(metric.help, quotes=False)}\n# TYPE {name} {metric.kind}\n"
        for labels, value in metric.samples:
            inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            yield f"{name}{{{inside}}} {_number(value)}\n" if inside else f"{name} {_number(value)}\n"


def _escaped(text: str, quotes: bool = True) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
