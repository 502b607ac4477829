"""Rows of a finding, each a label and a text: the same for the text report and for the HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from shadowgraph.checks.kinds import kind_of
from shadowgraph.checks.out_of_bounds.kind import OutOfBoundsKind
from shadowgraph.checks.verdicts import joined, viewed, when
from shadowgraph.common.source_paths import at, short
from shadowgraph.common.words import counted, form, plural
from shadowgraph.model.findings import Alias, Finding, StorePlace
from shadowgraph.model.guards import Side
from shadowgraph.model.overrun_extents import CausedBy
from shadowgraph.model.stacks import Stack
from shadowgraph.render.text.batch_text import batch_said
from shadowgraph.render.text.culprit_text import culprit_line, culprit_rows

ADVICE = "do"  # the label of the advice
_STACK = 5
_ALIASES = 8


class FactRow(NamedTuple):
    """A row; with an empty label it continues the row before. A spare row is shown only where there is more room."""

    label: str
    text: str
    spare: bool = False


def fact_rows(finding: Finding) -> Iterator[FactRow]:
    """The facts, shown before the bytes."""
    if finding.bytes is not None:
        yield FactRow("bytes", _geometry(finding))
    if finding.widest is not None:
        yield FactRow("most", f"{when(finding.widest)}: the bytes shown are from then")
    yield from _rows(kind_of(finding.code).extent_rows(finding))
    if finding.caused_by is not None:
        yield FactRow("caused by", _cause(finding.caused_by))
    yield FactRow("buffer", _buffer(finding))
    yield from _stack("allocated", finding.buffer.allocated, finding.buffer.allocated_source)
    yield from _rows(culprit_rows(finding.culprit))
    if finding.culprit.stored_by is not None:
        yield from _stored(finding.culprit.stored_by)
    yield from _stack("launched", finding.culprit.stack, finding.culprit.launched_source)
    for other in finding.candidates:
        yield FactRow("or", culprit_line(other))
    yield from _rows(kind_of(finding.code).rows(finding))
    if finding.batch is not None:
        yield FactRow("batch", batch_said(finding.batch))
    yield from _surroundings(finding)


def end_rows(finding: Finding) -> Iterator[FactRow]:
    """The advice and the finding's identity, shown after the bytes."""
    tips = advice(finding)
    if tips:
        yield FactRow(ADVICE, tips)
    yield FactRow("finding", _identity(finding))


def advice(finding: Finding) -> str:
    """What to do about a finding, in two sentences."""
    if finding.continues is not None:
        return f"The fault lies with {finding.continues.buffer}: see finding {finding.continues.fingerprint}."
    cause = finding.caused_by
    if cause is not None and cause.sure:
        return f"The fault lies with {cause.buffer}: see finding {cause.fingerprint}."
    return kind_of(finding.code).advice(finding)


def _cause(cause: CausedBy) -> str:
    number = f"#{cause.finding}, " if cause.finding else ""
    said = f"{cause.code} of {cause.buffer} ({number}fingerprint {cause.fingerprint})"
    if cause.sure:
        ran_on = cause.code == OutOfBoundsKind.code
        how = "ran over this buffer" if ran_on else "wrote to memory that this buffer took"
        return f"{said}: the same launch {how}"
    return f"perhaps {said}, which ran on as far as this; no launch is confirmed"


def unlike_what(finding: Finding) -> str:
    """Label of the expected bytes: their value before, or the right value."""
    return kind_of(finding.code).expected_label


def _rows(rows: Iterable[tuple[str, str]]) -> Iterator[FactRow]:
    return (FactRow(label, text) for label, text in rows)


def _surroundings(finding: Finding) -> Iterator[FactRow]:
    if finding.reader is not None:
        reader = finding.reader
        node = f" node {reader.node}" if reader.node is not None else ""
        graph = finding.graph if reader.kind == "graph" else reader.kind  # of another graph it is the name
        whom = {"host": "the host,", "eager": "eager code,"}.get(reader.kind, f"{graph}{node}")
        yield FactRow("read by", f"{whom} {reader.name}{at(reader.file, reader.line)}")
    for alias in finding.aliases[:_ALIASES]:
        yield FactRow("alias", _alias(alias, finding.buffer.name))
    if len(finding.aliases) > _ALIASES:
        yield FactRow("", f"... and {len(finding.aliases) - _ALIASES} more owners")
    if finding.neighbour is not None:
        near = finding.neighbour
        side = "next" if near.side is Side.AFTER else "previous"
        yield FactRow(
            "neighbour", f"{side} by address: {near.name} ({form(near.dtype, near.shape)}), {near.gap:,} bytes away"
        )


def _alias(alias: Alias, named: str) -> str:
    part, whole = (named, alias.name) if alias.covers else (alias.name, named)
    return f"{part} is {whole}{joined(alias.relation)}"


def _geometry(finding: Finding) -> str:
    facts = finding.bytes
    assert facts is not None
    kind = kind_of(finding.code)
    size = counted(finding.buffer.nbytes)
    said = f"{facts.first:,} to {facts.last:,} of {size}-byte buffer, {facts.count:,} {kind.bytes_are}"
    if facts.ranges_total > 1:
        said += f" in {facts.ranges_total:,} places"
    if facts.side is Side.AFTER:
        said += f"; starts {plural(facts.distance, 'byte')} past the end"
    elif facts.side is Side.BEFORE:
        said += f"; ends {plural(facts.distance, 'byte')} before the start"
    if facts.truncated and finding.continues is None and kind.may_go_further(finding):
        said += "; reaches the end of what was armed, so there may be more"
    return said


def _buffer(finding: Finding) -> str:
    buffer = finding.buffer
    known = (
        f"{viewed(buffer)}  {form(buffer.dtype, buffer.shape)}  {plural(buffer.nbytes, 'byte')} at {buffer.address:#x}"
    )
    return f"{known}, {buffer.role}, allocation {buffer.serial}"


def _identity(finding: Finding) -> str:
    times = "" if finding.occurrences == 1 else f", seen {finding.occurrences:,} times"
    revision = "" if finding.revision == 1 else f", revision {finding.revision}"
    return (
        f"#{finding.id}{revision}, {finding.severity}, confidence {finding.confidence}, seen at {finding.detected_at}"
        f"{times}, fingerprint {finding.fingerprint}"
    )


def _stored(store: StorePlace) -> Iterator[FactRow]:
    """The store that hit the bytes, as in ``program (3, 0, 0) at kernel.py:11``, with the text of its line."""
    program = f"program {store.program}" if store.program is not None else "several programs"
    yield FactRow("stored by", f"{program}{at(store.line.file, store.line.line)}")
    if store.text:
        yield FactRow("", f"    {store.text}")


def _stack(label: str, stack: Stack, source: str) -> Iterator[FactRow]:
    """The lines of a stack, the innermost one first and with its text below."""
    for index, frame in enumerate(stack):
        place = f"{short(frame.file)}:{frame.line} in {frame.function}"
        yield FactRow(label if index == 0 else "", place, spare=index >= _STACK)
        if source and index == 0:
            yield FactRow("", f"    {source}")
