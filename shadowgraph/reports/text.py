"""The report as text: coloured on a terminal, plain in a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from rich.text import Text

from shadowgraph.findings import Finding, Severity
from shadowgraph.reports.advice import advice
from shadowgraph.reports.asserted_text import asserted_line
from shadowgraph.reports.batch_text import batch_said
from shadowgraph.reports.console import console
from shadowgraph.reports.culprit_text import culprit_line, culprit_rows
from shadowgraph.reports.document import RunFacts, to_json
from shadowgraph.reports.ending_text import ending_rows
from shadowgraph.reports.failure_text import failure_head, failure_rows
from shadowgraph.reports.hexview import HexRow, decoded, hex_rows
from shadowgraph.reports.paths import at, short
from shadowgraph.reports.rebound_text import rebound_rows
from shadowgraph.reports.stale_text import stale_rows
from shadowgraph.reports.verdicts import form, plural, verdict
from shadowgraph.tracking.guards import Side
from shadowgraph.tracking.stacks import Stack

__all__ = ["Report", "verdict"]

_LABEL = 11
_STACK = 5
_ROWS = 8


class Report:
    """A run's facts, ready to be shown. Holds data only; safe to keep."""

    def __init__(self, facts: RunFacts) -> None:
        self.facts = facts

    def print(self, file: IO[str] | None = None) -> None:
        """Write the report; colour only on a terminal.

        Parameters
        ----------
        file
            Where to; standard output unless given.
        """
        out = console(file)
        for line in lines(self.facts):
            out.print(line)

    def to_json(self) -> str:
        """The report as one JSON document (schema ``shadowgraph.report/1``)."""
        return to_json(self.facts)

    def __str__(self) -> str:
        return "".join(f"{line.plain}\n" for line in lines(self.facts))

    def __repr__(self) -> str:
        return f"<Report: {plural(len(self.facts.findings), 'finding')}, {plural(len(self.facts.notes), 'note')}>"


def lines(facts: RunFacts) -> Iterator[Text]:
    """The report, line by line."""
    for finding in (*facts.findings, *facts.notes):
        yield from finding_lines(finding)
        yield Text()
    yield from _watches(facts)
    yield from _lost(facts)
    for failure in facts.failures:
        yield Text(failure_head(failure), style="bold red")
        for label, said in failure_rows(failure):
            yield _row(label, said)
        yield Text()
    yield from _summary(facts)


def finding_lines(finding: Finding) -> Iterator[Text]:
    """All that a report says of one finding."""
    colour = "bold red" if finding.severity is Severity.ERROR else "bold yellow"
    yield Text(finding.message or verdict(finding), style=colour)
    facts = finding.bytes
    if facts is not None:
        yield _row("bytes", _geometry(finding))
    yield _row("buffer", _buffer(finding))
    if finding.buffer.allocated:
        yield from _stack("allocated", finding.buffer.allocated)
    for label, said in culprit_rows(finding.culprit):
        yield _row(label, said)
    if finding.culprit.stack:
        yield from _stack("launched", finding.culprit.stack)
    for other in finding.candidates:
        yield _row("or", culprit_line(other))
    if finding.rule:
        yield _row("rule", finding.rule)
    for label, said in (*ending_rows(finding), *stale_rows(finding), *rebound_rows(finding)):
        yield _row(label, said)
    if finding.batch is not None:
        yield _row("batch", batch_said(finding.batch))
    yield from _surroundings(finding)
    for row in hex_rows(finding):
        yield _hex(row, "was" if finding.rebound is None else "should be")
    tips = advice(finding)
    if tips:
        yield _row("do", tips)
    yield _row("finding", _identity(finding))


def _surroundings(finding: Finding) -> Iterator[Text]:
    for row in finding.rows[:_ROWS]:
        hit = ", ".join("past the end" if r >= row.rows else f"row {r}" for r in row.into)
        beyond = f"{row.written_past:,} entries beyond it, into {hit}; {row.lost:,} lost"
        yield _row("rows", f"row {row.row} is {row.width:,} wide; {beyond}")
    if len(finding.rows) > _ROWS:
        yield _row("", f"... and {len(finding.rows) - _ROWS} more rows")
    if finding.reader is not None:
        reader = finding.reader
        node = f" node {reader.node}" if reader.node is not None else ""
        whom = f"{finding.graph}{node} {reader.name}" if reader.kind == "graph" else f"the host, {reader.name}"
        yield _row("read by", f"{whom}{at(reader.file, reader.line)}")
    for alias in finding.aliases[:8]:
        yield _row("alias", f"{alias.name} is {finding.buffer.name}{_joined(alias.relation)}")
    if len(finding.aliases) > 8:
        yield _row("", f"... and {len(finding.aliases) - 8} more owners")
    if finding.neighbour is not None:
        near = finding.neighbour
        side = "next" if near.side is Side.AFTER else "previous"
        yield _row(
            "neighbour", f"{side} by address: {near.name} ({form(near.dtype, near.shape)}), {near.gap:,} bytes away"
        )


def _geometry(finding: Finding) -> str:
    facts = finding.bytes
    assert facts is not None
    what = "stale" if finding.stale is not None or finding.rebound is not None else "changed"
    said = f"{facts.first} to {facts.last} of a {finding.buffer.nbytes:,}-byte buffer, {facts.count:,} {what}"
    if facts.ranges_total > 1:
        said += f" in {facts.ranges_total:,} places"
    if facts.side is Side.AFTER:
        said += f"; starts {plural(facts.distance, 'byte')} past the end"
    elif facts.side is Side.BEFORE:
        said += f"; ends {plural(facts.distance, 'byte')} before the start"
    if facts.truncated:
        said += "; reaches the end of what was armed, so there may be more"
    return said


def _buffer(finding: Finding) -> str:
    buffer = finding.buffer
    known = f"{buffer.name}  {form(buffer.dtype, buffer.shape)}  {plural(buffer.nbytes, 'byte')} at {buffer.address:#x}"
    return f"{known}, {buffer.role}, allocation {buffer.serial}"


def _identity(finding: Finding) -> str:
    times = "" if finding.occurrences == 1 else f", seen {finding.occurrences:,} times"
    revision = "" if finding.revision == 1 else f", revision {finding.revision}"
    return (
        f"#{finding.id}{revision}, {finding.severity}, confidence {finding.confidence}, seen at {finding.detected_at}"
        f"{times}, fingerprint {finding.fingerprint}"
    )


def _stack(label: str, stack: Stack) -> Iterator[Text]:
    for index, frame in enumerate(stack[:_STACK]):
        yield _row(label if index == 0 else "", f"{short(frame.file)}:{frame.line} in {frame.function}")


def _hex(row: HexRow, unlike: str) -> Text:
    text = Text(" " * (_LABEL + 2))
    text.append(f"{row.offset:+7d}  ", style="dim")
    for value, changed in zip(row.found, row.changed, strict=True):
        text.append(f"{value:02x} ", style="bold red" if changed else "dim")
    expected = row.expected.hex(" ")
    text.append(f" {row.values}", style="cyan")
    text.append(f"  {unlike} {expected}", style="dim")
    return text


def _watches(facts: RunFacts) -> Iterator[Text]:
    for name, changes, dropped in facts.watches:
        yield Text(f"watch {name}: {plural(len(changes) + dropped, 'change')}", style="bold")
        for change in changes[-8:]:
            where = f"{change.graph} replay {change.replay}" if change.graph else str(change.phase or "eager code")
            node = f" node {change.node}" if change.node is not None else ""
            place = at(change.stack[0].file, change.stack[0].line) if change.stack else ""
            yield _row(
                "", f"{where}{node}: {change.writer or 'an unseen writer'} wrote [{change.first}, {change.last}]{place}"
            )
        yield Text()


def _lost(facts: RunFacts) -> Iterator[Text]:
    if facts.lost is None:
        return
    yield Text(f"shadowgraph: the device is lost, checking ended: {facts.lost}", style="bold red")
    for name, dtype, data in facts.last_values:
        yield _row("last seen", f"{name} ({dtype}): {decoded(data[: 16 * 8], dtype)}")
    for launch in facts.last_launches:
        yield _row("ran last", f"{launch.name}{at(launch.file, launch.line)}")
        for value in launch.values:
            named = f" is {value.owner}" if value.owner else ""
            shown = decoded(value.data[: 16 * 8], value.dtype)
            yield _row("", f"  {value.argument}{named}, {form(value.dtype, value.shape)}: {shown}")
        if launch.asserted is not None:
            yield _row("", f"  {asserted_line(launch.asserted)}")
    yield _row("kept", "ledger, names, launches and findings so far; device memory after the last boundary is not")


def _summary(facts: RunFacts) -> Iterator[Text]:
    for fault, count in facts.faults.items():
        yield Text(f"shadowgraph's own fault, {count} times (the program went on): {fault}", style="yellow")
    if facts.guards_shrunk or facts.guards_dropped:
        yield Text(
            f"guards: {facts.guards_shrunk:,} made smaller, {facts.guards_dropped:,} left out: no memory for more",
            style="yellow",
        )
    for reason, count in facts.left_alone.items():
        yield Text(f"guards: left out of {plural(count, 'capture')}: {reason}", style="yellow")
    if facts.names_unread or facts.names_cut_short:
        unread, cut = plural(facts.names_unread, "object"), plural(facts.names_cut_short, "walk")
        yield Text(f"names: {unread} could not be read, {cut} cut short", style="yellow")
    for limit in facts.limits:
        yield Text(f"limit: {limit}", style="yellow")
    for name, _, _ in facts.graphs:
        if "captured earlier" in name:
            yield Text(
                f"{name}: its nodes and pool are unknown; replays, names and declared buffers only", style="yellow"
            )
    if facts.suppressed:
        yield Text(f"suppressed: {facts.suppressed:,}")
    for finding in facts.findings:
        yield Text(f"SUMMARY: shadowgraph: {finding.message or verdict(finding)}", style="bold")
    said = plural(len(facts.findings), "finding") if facts.findings else "no findings"
    notes = f", {plural(len(facts.notes), 'note')}" if facts.notes else ""
    yield Text(f"shadowgraph: {said}{notes}; {facts.coverage.sentence()}")


def _row(label: str, text: str) -> Text:
    made = Text(f"  {label:<{_LABEL}}", style="bold" if label else "")
    made.append(text, style="not bold")
    return made


def _joined(relation: str) -> str:
    return relation if not relation or relation.startswith(("[", ".")) else f" {relation}"
