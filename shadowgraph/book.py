"""The findings of a run: one per cause, counted, suppressed by fingerprint."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import msgspec

from shadowgraph.errors import MissingFileError, UsageError
from shadowgraph.findings import ByteFacts, Finding, Severity, fingerprint
from shadowgraph.reports.verdicts import verdict

Cause = tuple[str, int, str, str]


def read_suppressions(path: str | os.PathLike[str]) -> frozenset[str]:
    """Fingerprints of a file: one a line, the rest of the line and ``#`` comments ignored.

    Raises
    ------
    MissingFileError
        When it cannot be read.
    UsageError
        For a line that does not start with a fingerprint.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise MissingFileError(f"cannot read suppressions {path}: {error}") from None
    found = set()
    for number, line in enumerate(lines, 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        if len(words[0]) != 12 or any(c not in "0123456789abcdef" for c in words[0]):
            raise UsageError(f"{path}:{number}: {words[0]!r} is no fingerprint (12 hexadecimal digits, see a report)")
        found.add(words[0])
    return frozenset(found)


class FindingBook:
    """Findings in order of arrival.

    Attributes
    ----------
    suppressed
        How many findings (occurrences too) matched a suppression.
    """

    def __init__(self, suppressions: frozenset[str] = frozenset()) -> None:
        self._ids = itertools.count(1)
        self._by_cause: dict[Cause, Finding] = {}
        self._latest: dict[Cause, Finding] = {}  # the last sighting of each
        self._suppressions = suppressions
        self.suppressed = 0

    def add(self, finding: Finding, key: str) -> tuple[Finding, bool]:
        """Enter a finding, or count one more occurrence of a known cause.

        A known cause keeps phase, graph and replay of its first sighting, and the extreme bytes of all. A rule that a
        check finds as broken as it was seen before is no further occurrence: nothing happened since.

        Returns
        -------
        tuple
            The finding as kept, and whether it is new and not suppressed.
        """
        finding = msgspec.structs.replace(finding, fingerprint=fingerprint(finding))
        if finding.fingerprint in self._suppressions:
            self.suppressed += 1
            return finding, False
        side = str(finding.bytes.side) if finding.bytes and finding.bytes.side else ""
        cause = (finding.code, finding.buffer.serial, side, key)
        known, latest = self._by_cause.get(cause), self._latest.get(cause)
        self._latest[cause] = finding
        if known is None or latest is None:
            kept = msgspec.structs.replace(finding, id=next(self._ids))
            self._by_cause[cause] = kept
            return kept, True
        if _still_broken(finding, known, latest):
            return known, False
        kept = _merged(known, finding)
        self._by_cause[cause] = kept
        promoted = known.severity is Severity.NOTE and kept.severity is Severity.ERROR
        return kept, promoted

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Errors, in order of first arrival."""
        return tuple(f for f in self._by_cause.values() if f.severity is Severity.ERROR)

    @property
    def notes(self) -> tuple[Finding, ...]:
        """What is worth knowing and no fault."""
        return tuple(f for f in self._by_cause.values() if f.severity is Severity.NOTE)


def _still_broken(finding: Finding, *before: Finding) -> bool:
    """Whether a check on request sees a rule broken in the way that it was seen before."""
    if finding.code != "SG109" or finding.detected_at != "check":
        return False
    sight = finding.severity, finding.rule, finding.bytes
    return any((seen.severity, seen.rule, seen.bytes) == sight for seen in before)


def _merged(known: Finding, again: Finding) -> Finding:
    """The first sighting with one more occurrence; the later one's facts where they are surer or worse."""
    if known.severity is Severity.NOTE and again.severity is Severity.ERROR:
        return msgspec.structs.replace(
            again, id=known.id, revision=known.revision + 1, occurrences=known.occurrences + 1
        )
    known = msgspec.structs.replace(known, occurrences=known.occurrences + 1)
    if known.severity is not again.severity or known.rule is not None:  # bytes of a rule are an example, with its text
        return known
    return _widened(known, again)


def _widened(known: Finding, again: Finding) -> Finding:
    """The known finding with the extreme bytes of both, shown by what the worse sighting left."""
    old, new = known.bytes, again.bytes
    if old is None or new is None:
        return known
    shown, bytes_shown = (again, new) if _extent(new) > _extent(old) else (known, old)
    merged = ByteFacts(
        first=min(old.first, new.first),
        last=max(old.last, new.last),
        count=max(old.count, new.count),
        ranges=bytes_shown.ranges,
        ranges_total=bytes_shown.ranges_total,
        side=old.side,
        distance=min(old.distance, new.distance),
        truncated=old.truncated or new.truncated,
    )
    if merged == old and shown is known:
        return known
    grown = _extent(merged)[0] > _extent(old)[0]
    wider = msgspec.structs.replace(
        known, bytes=merged, window=shown.window, rows=shown.rows, revision=known.revision + grown
    )
    return msgspec.structs.replace(wider, message=verdict(wider))


def _extent(facts: ByteFacts) -> tuple[int, int]:
    return facts.last - facts.first, facts.count
