"""Text report of a run: coloured on a terminal, plain in a pipe. Made by `Debugger.report` in the caller's thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import IO

from rich.text import Text

from shadowgraph.common.console import console
from shadowgraph.common.html_repr import HtmlRepr, shows_html
from shadowgraph.common.internal_errors import PROGRAMS_RULE
from shadowgraph.common.source_paths import at
from shadowgraph.common.words import form, plural
from shadowgraph.model.coverage import Coverage
from shadowgraph.model.fences import LAID
from shadowgraph.model.findings import Finding, Severity
from shadowgraph.model.run_facts import RunFacts, to_json
from shadowgraph.render.text.failure_text import asserted_line, failure_head, failure_rows
from shadowgraph.render.text.finding_rows import FactRow, end_rows, fact_rows, unlike_what
from shadowgraph.render.text.folding import folded, found, in_processes, of, process_rows
from shadowgraph.render.text.high_water_text import high_water_lines
from shadowgraph.render.text.suppressed_text import suppressed_lines
from shadowgraph.views.byte_rows import ByteRow, window_rows
from shadowgraph.views.byte_values import decoded

_ENDINGS = 3  # processes whose end the result line tells
_LABEL = 11


class Report(HtmlRepr):
    """A run's facts, ready to be shown. Holds data only; safe to keep."""

    def __init__(self, facts: RunFacts) -> None:
        self.facts = facts

    def print(self, file: IO[str] | None = None) -> None:
        """Write the report; colour only on a terminal.

        Parameters
        ----------
        file
            The stream; standard output by default.
        """
        with console(file) as out:  # one write: a notebook makes an output of each
            for line in lines(self.facts):
                out.print(line)

    def to_json(self) -> str:
        """The report as one JSON document (schema ``shadowgraph.report/2``)."""
        return to_json(self.facts)

    def __str__(self) -> str:
        return "".join(f"{line.plain}\n" for line in lines(self.facts))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """The whole text beside the HTML, for what shows or exports a notebook without it."""
        return {"text/plain": str(self)} if shows_html() else {}

    def __repr__(self) -> str:
        return f"<Report: {plural(len(self.facts.findings), 'finding')}, {plural(len(self.facts.notes), 'note')}>"


def lines(facts: RunFacts, all_marks: bool = False) -> Iterator[Text]:
    """The report, line by line; with `all_marks`, every high-water mark."""
    named = in_processes(facts)
    for told in folded(facts):
        yield from finding_lines(told.finding, process_rows(told) if named else ())
        yield Text()
    yield from watch_lines(facts)
    yield from lost_lines(facts)
    yield from failure_lines(facts)
    yield from limit_lines(facts)
    yield from high_water_lines(facts, all_marks)
    if facts.replays.made:
        yield Text(replays(facts))
    for told in of(Severity.ERROR, facts):
        yield Text(f"SUMMARY: shadowgraph: {told.finding.message}", style="bold")
    yield Text(summary(facts))
    yield from coverage_lines(facts.coverage)


def coverage_lines(coverage: Coverage) -> Iterator[Text]:
    """The guarded share by class of buffer, and what guards of large buffers take: the last lines of a report."""
    for said in filter(None, (coverage.sentence(), coverage.large.sentence())):
        yield Text(f"coverage: {said}")


def summary(facts: RunFacts) -> str:
    """The line before coverage: the number of findings, consequences and notes, of rules that were not checked, and,
    where the program met its end before any finding, how."""
    rules = sum(fault.startswith(PROGRAMS_RULE) for fault in facts.faults)
    unchecked = f", {plural(rules, 'rule')} not checked" if rules else ""
    return f"shadowgraph: {found(facts)}{_before(facts)}{unchecked}"


def _before(facts: RunFacts) -> str:
    """What came before the findings could: no finding is no reassurance where a program ended early."""
    if not facts.endings:
        return ""
    ended = ", ".join(facts.endings[:_ENDINGS]) + (", ..." if len(facts.endings) > _ENDINGS else "")
    if facts.findings:
        return f"; {ended}"
    return f" before {ended}{'' if facts.replays.made else '; no graph was replayed'}"


def headline(facts: RunFacts) -> str:
    """A report in one line: its first finding, and the number of others; without findings the counts alone."""
    own = [told.finding for told in of(Severity.ERROR, facts) if not told.finding.is_consequence]
    if not own:
        return summary(facts)
    more = len(own) - 1
    return own[0].message if not more else f"{own[0].message}, and {plural(more, 'more finding')}"


def replays(facts: RunFacts) -> str:
    """How many replays were made, checked, and observed in full; empty without any."""
    return f"replays: {facts.replays.sentence()}" if facts.replays.made else ""


def failure_lines(facts: RunFacts) -> Iterator[Text]:
    """Exceptions of the program, with the facts known at that time."""
    for failure in facts.failures:
        yield Text(failure_head(failure), style="bold red")
        for label, said in failure_rows(failure):
            yield _row(label, said)
        yield Text()


def finding_lines(finding: Finding, more: Iterable[FactRow] = ()) -> Iterator[Text]:
    """The whole report on one finding; `more` rows come before the advice."""
    colour = "bold red" if finding.severity is Severity.ERROR else "bold yellow"
    yield Text(finding.message, style=colour)
    yield from _rows(fact_rows(finding))
    for row in window_rows(finding):
        yield _hex(row, unlike_what(finding))
    yield from _rows((*more, *end_rows(finding)))


def _rows(rows: Iterable[FactRow]) -> Iterator[Text]:
    return (_row(row.label, row.text) for row in rows if not row.spare)


def _hex(row: ByteRow, unlike: str) -> Text:
    known = row.known
    text = Text(" " * (_LABEL + 2))
    text.append(f"{known[0].offset:+7d}  ", style="dim")
    for cell in known:
        text.append(f"{cell.value:02x} ", style="bold red" if cell.changed else "dim")
    expected = bytes(cell.expected for cell in known if cell.expected is not None).hex(" ")
    text.append(f" {row.values}", style="cyan")
    text.append(f"  {unlike} {expected}", style="dim")
    return text


def watch_lines(facts: RunFacts) -> Iterator[Text]:
    """Changes of watched tensors."""
    for name, changes, dropped in facts.watches:
        yield Text(f"watch {name}: {plural(len(changes) + dropped, 'change')}", style="bold")
        for change in changes[-8:]:
            where = f"{change.graph} replay {change.replay}" if change.graph else str(change.phase or "eager code")
            node = f" node {change.node}" if change.node is not None else ""
            place = at(change.stack[0].file, change.stack[0].line) if change.stack else ""
            wrote = f"{change.writer or 'an unseen writer'} wrote [{change.first:,}, {change.last:,}]"
            yield _row("", f"{where}{node}: {wrote}{place}")
        yield Text()


def lost_lines(facts: RunFacts) -> Iterator[Text]:
    """The facts on a lost device; nothing while the device works."""
    if facts.lost is None:
        return
    yield Text(f"shadowgraph: the device is lost, checking ended: {facts.lost}", style="bold red")
    for name, dtype, data in facts.last_values:
        yield _row("last seen", f"{name} ({dtype}): {decoded(data[: 16 * 8], dtype)}")
    fenced = {fence.name for fence in facts.fences}
    for launch in facts.last_launches:
        passed = f", {plural(launch.passed, 'replay')} before: those passed unseen (--watch-eager always)"
        since = passed if launch.passed else ""
        yield _row("ran last", f"{launch.name}{at(launch.file, launch.line)}{since}")
        for value in launch.values:
            behind = ", with a fence behind it" if value.owner in fenced else ""
            named = f" is {value.owner}{behind}" if value.owner else ""
            shown = f": {decoded(value.data[: 16 * 8], value.dtype)}" if value.data else ""
            yield _row("", f"  {value.argument}{named}, {form(value.dtype, value.shape)}{shown}")
        if launch.asserted is not None:
            yield _row("", f"  {asserted_line(launch.asserted)}")
    for fence in facts.fences:
        yield _row("fenced", fence.sentence())
    yield _row("kept", "ledger, names, launches and findings so far; device memory after the last boundary is not")


def limit_lines(facts: RunFacts) -> Iterator[Text]:
    """Internal errors, and work that was skipped or left out."""
    yield from _fault_lines(facts)
    yield from _unguarded_lines(facts)
    for reason, count in facts.stepped_aside.items():
        yield Text(f"stepped aside: {count:,} {reason}", style="yellow")
    if facts.names_unread or facts.names_cut_short:
        unread, cut = plural(facts.names_unread, "object"), plural(facts.names_cut_short, "walk")
        yield Text(f"names: {unread} could not be read, {cut} cut short", style="yellow")
    for limit in facts.limits:
        yield Text(f"limit: {limit}", style="yellow")
    yield from suppressed_lines(facts.suppressed, facts.suppressions, facts.ended)


def _fault_lines(facts: RunFacts) -> Iterator[Text]:
    """Internal errors, and exceptions of the program's rules."""
    for fault, count in facts.faults.items():
        times = plural(count, "time")
        if fault.startswith(PROGRAMS_RULE):
            yield Text(f"not checked, {times}: {fault}", style="yellow")
        else:
            yield Text(f"internal error of shadowgraph, {times} (the program went on): {fault}", style="yellow")


def _unguarded_lines(facts: RunFacts) -> Iterator[Text]:
    """Guards that are smaller than asked for, or not there; and fences."""
    if facts.guards_shrunk or facts.guards_dropped:
        yield Text(
            f"guards: {facts.guards_shrunk:,} made smaller, {facts.guards_dropped:,} left out: no memory for more",
            style="yellow",
        )
    for reason, count in facts.left_alone.items():
        yield Text(f"guards: left out of {plural(count, 'capture')}: {reason}", style="yellow")
    for fence in facts.fences:
        yield Text(f"{LAID}{fence.sentence()}")


def _row(label: str, text: str) -> Text:
    made = Text(f"  {label:<{_LABEL}}", style="bold" if label else "")
    made.append(text, style="not bold")
    return made
