"""The findings of a run: one per cause, counted, suppressed by fingerprint."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec

from shadowgraph.errors import MissingFileError, UsageError
from shadowgraph.findings import Finding, Severity, fingerprint

Cause = tuple[str, int, str, str]


def read_suppressions(path: str) -> frozenset[str]:
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
        self._suppressions = suppressions
        self.suppressed = 0

    def add(self, finding: Finding, key: str) -> tuple[Finding, bool]:
        """Enter a finding, or count one more occurrence of a known cause.

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
        known = self._by_cause.get(cause)
        if known is None:
            kept = msgspec.structs.replace(finding, id=next(self._ids))
            self._by_cause[cause] = kept
            return kept, True
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


def _merged(known: Finding, again: Finding) -> Finding:
    """The first sighting with one more occurrence; the later one's facts where they are surer."""
    if known.severity is Severity.NOTE and again.severity is Severity.ERROR:
        return msgspec.structs.replace(
            again, id=known.id, revision=known.revision + 1, occurrences=known.occurrences + 1
        )
    return msgspec.structs.replace(known, occurrences=known.occurrences + 1)
