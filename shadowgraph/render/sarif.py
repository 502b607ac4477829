"""Findings as SARIF 2.1.0, for code hosts and editors. Pure functions over facts, for `shadowgraph report --sarif`.

A finding is a result of the rule of its code; equal ones of several processes are one. Suppressed findings are results
with a suppression, which viewers leave out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec

from shadowgraph.checks.kind import FindingKind
from shadowgraph.checks.kinds import kind_of
from shadowgraph.common.console import tame
from shadowgraph.common.version import VERSION
from shadowgraph.common.words import form
from shadowgraph.model.findings import Culprit, Finding, Severity, Status
from shadowgraph.model.run_facts import RunFacts
from shadowgraph.model.stacks import Frame
from shadowgraph.model.suppressions import Rule as SuppressionRule
from shadowgraph.render import sarif_types as sarif
from shadowgraph.render.source_root import Place, launch_frames, place_of, primary_place, reader_frames, store_frames
from shadowgraph.render.text.folding import folded

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "SRCROOT"
FINGERPRINT = "shadowgraph/v1"


def to_sarif(facts: RunFacts, root: Path) -> str:
    """The findings and notes of a run, and what was suppressed, as an indented SARIF document.

    Parameters
    ----------
    root
        The folder that source files are named relative to; other files are named by their whole paths.
    """
    log = sarif.Log(SCHEMA, "2.1.0", (_run(facts, root),))
    return msgspec.json.format(msgspec.json.encode(log), indent=2).decode() + "\n"


def _run(facts: RunFacts, root: Path) -> sarif.Run:
    told = [(each.finding, each.elsewhere) for each in folded(facts)]
    codes = sorted({finding.code for finding in (*(first for first, _ in told), *facts.hidden)})
    made = _Results(codes, {count.rule.place: count.rule for count in facts.suppressions}, root)
    return sarif.Run(
        tool=sarif.Tool(sarif.Driver("shadowgraph", VERSION, tuple(_rule(kind_of(code)) for code in codes))),
        results=(*(made.of(*each) for each in told), *(made.of(finding, ()) for finding in facts.hidden)),
        original_uri_base_ids={ROOT: sarif.ArtifactLocation(f"{_uri(str(root)).rstrip('/')}/")},
        invocations=(sarif.Invocation(True, tuple(_notifications(facts))),),
        column_kind="unicodeCodePoints",
    )


def _notifications(facts: RunFacts) -> Iterator[sarif.Notification]:
    """What the report says, beside findings, of what was not seen."""
    if facts.lost is not None:
        yield _notification("error", f"the device is lost, checking ended: {facts.lost}")
    for fault, count in facts.faults.items():
        yield _notification("warning", f"internal error of shadowgraph, {count} times: {fault}")
    for limit in facts.limits:
        yield _notification("note", limit)
    yield _notification("note", facts.coverage.sentence())


def _notification(level: str, text: str) -> sarif.Notification:
    return sarif.Notification(level, sarif.Message(tame(text)))


def _rule(kind: FindingKind) -> sarif.Rule:
    remedy = kind.remedy or kind.title
    explained = f"{kind.explanation().strip()}\n\n{remedy}"
    return sarif.Rule(
        id=kind.code,
        name="".join(word.capitalize() for word in re.findall(r"\w+", kind.title)),
        short_description=sarif.Message(kind.title),
        full_description=sarif.Message(remedy),
        help=sarif.Help(explained, explained),
        default_configuration=sarif.Configuration("error"),
    )


class _Results:
    """Makes the results of a run.

    Parameters
    ----------
    codes
        The codes of the run's rules, in their order.
    rules
        The suppression rules of the run, by their places.
    """

    def __init__(self, codes: Sequence[str], rules: dict[str, SuppressionRule], root: Path) -> None:
        self._codes, self._rules, self._root = list(codes), rules, root

    def of(self, finding: Finding, elsewhere: Sequence[Finding]) -> sarif.Result:
        """A finding, with the equal ones of other processes."""
        return sarif.Result(
            rule_id=finding.code,
            rule_index=self._codes.index(finding.code),
            level="error" if finding.severity is Severity.ERROR else "note",
            message=sarif.Message(tame(finding.message)),
            locations=(self._primary(finding),),
            partial_fingerprints={FINGERPRINT: finding.fingerprint},
            occurrence_count=max(1, finding.occurrences + sum(other.occurrences for other in elsewhere)),
            related_locations=tuple(self._related(finding)),
            stacks=tuple(self._stacks(finding)),
            suppressions=self._suppressions(finding),
            properties=_properties(finding, elsewhere),
        )

    def _primary(self, finding: Finding) -> sarif.Location:
        names = [sarif.LogicalLocation(tame(finding.buffer.name), "variable")]
        if finding.culprit.name:
            names.append(sarif.LogicalLocation(tame(finding.culprit.name), "function"))
        return sarif.Location(
            physical_location=_physical(primary_place(finding, self._root)), logical_locations=tuple(names)
        )

    def _related(self, finding: Finding) -> Iterator[sarif.Location]:
        """Where the buffer was allocated, where the culprit stored, where the culprits and candidates were launched,
        and where the buffer is read."""
        buffer, reader = finding.buffer, finding.reader
        told = [(f"allocated here: {buffer.name}, {form(buffer.dtype, buffer.shape)}", buffer.allocated)]
        told += [(f"stored here: {finding.culprit.name}", tuple(store_frames(finding.culprit)))]
        told += [(_launched(one), tuple(launch_frames(one))) for one in (finding.culprit, *finding.candidates)]
        told += [(f"read here: {reader.name}", tuple(reader_frames(finding)))] if reader is not None else []
        found = ((text, self._innermost(frames)) for text, frames in told)
        known = [(text, place) for text, place in found if place is not None]
        for number, (text, place) in enumerate(known, 1):
            yield sarif.Location(number, _physical(place), message=sarif.Message(tame(text)))

    def _innermost(self, frames: Iterable[Frame]) -> Place | None:
        places = (place_of(frame.file, frame.line, self._root) for frame in frames)
        return next((place for place in places if place is not None), None)

    def _stacks(self, finding: Finding) -> Iterator[sarif.Stack]:
        """The stacks of the launch and of the allocation, innermost line first."""
        for text, frames in (
            (_launched(finding.culprit), tuple(launch_frames(finding.culprit))),
            (f"allocation of {finding.buffer.name}", finding.buffer.allocated),
        ):
            if frames:
                yield sarif.Stack(sarif.Message(tame(text)), tuple(map(self._frame, frames)))

    def _frame(self, frame: Frame) -> sarif.StackFrame:
        place = place_of(frame.file, frame.line, self._root)
        function = tame(frame.function if place is not None else f"{frame.file} {frame.function}").strip()
        named = (sarif.LogicalLocation(function, "function"),) if function else ()
        return sarif.StackFrame(sarif.Location(physical_location=_physical(place), logical_locations=named))

    def _suppressions(self, finding: Finding) -> tuple[sarif.Suppression, ...] | None:
        """The rule that hides a finding; where a run has rules, an empty list says that none does."""
        if not finding.suppressed_by:
            return () if self._rules else None
        rule = self._rules.get(finding.suppressed_by)
        file, _, line = finding.suppressed_by.rpartition(":")
        place = place_of(file, int(line) if line.isdecimal() else 0, self._root)
        return (
            sarif.Suppression(
                "external",
                "accepted",
                tame(rule.reason or rule.words()) if rule is not None else None,
                sarif.Location(physical_location=_physical(place)) if place is not None else None,
            ),
        )


def _launched(culprit: Culprit) -> str:
    """What a launch is to the finding."""
    sure = "" if culprit.status is Status.CONFIRMED else f" ({culprit.status})"
    return f"launched here: {culprit.name or 'an unseen launch'}{sure}"


def _properties(finding: Finding, elsewhere: Sequence[Finding]) -> dict[str, str | int]:
    known: dict[str, str | int | None] = {
        "finding": finding.id,
        "phase": str(finding.phase),
        "graph": tame(finding.graph) if finding.graph is not None else None,
        "replay": finding.replay,
        "confidence": finding.confidence,
        "process": finding.pid,
        "rank": finding.rank,
        "processes": len({finding.pid, *(other.pid for other in elsewhere)}) if elsewhere else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _physical(place: Place | None) -> sarif.PhysicalLocation | None:
    if place is None:
        return None
    file = sarif.ArtifactLocation(_uri(place.file), ROOT if place.is_below else None)
    return sarif.PhysicalLocation(file, sarif.Region(place.line) if place.line else None)


def _uri(path: str) -> str:
    return ("file://" if path.startswith("/") else "") + quote(path, errors="replace")
