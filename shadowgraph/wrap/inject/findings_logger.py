"""Writes what a debugger finds into its process's journal, as it happens.

Called in the thread of the event that found it, after the debugger's lock is released and before the event returns. A
lock of the recorder's own keeps the records of a finding in order; only the journal's is taken under it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.debugger import Debugger
from shadowgraph.dumps.redaction import redacted_facts, redacted_failure, redacted_finding
from shadowgraph.model.failures import Failure
from shadowgraph.model.findings import Finding, Severity
from shadowgraph.wrap.folder.findings_log import FindingsLog, rank

_FIRST_INTERVAL, _LONGEST_INTERVAL = 10.0, 600.0  # seconds between interim summaries, each twice as long


class FindingsLogger:
    """Follows one debugger.

    A finding is a record when it is new, when it has a new revision and at every power of two of its occurrences; the
    last state of each is written with the summary. Interim summaries are written after the first replay and ever more
    seldom from then on: servers like to end themselves with SIGKILL.

    Parameters
    ----------
    book
        Tells the debuggers of a process apart.
    on_error
        Called after the first finding of severity error was written.
    """

    def __init__(
        self, journal: FindingsLog, debugger: Debugger, book: int, on_error: Callable[[], None], redact: bool = False
    ) -> None:
        self.debugger = debugger
        self._journal, self._book, self._on_error = journal, book, on_error
        self._redact = redact
        self._lock = fork_safe(threading.RLock())
        self._written: dict[int, Finding] = {}  # of those that the book keeps, which is bounded
        self._erred = False
        self._next, self._interval = 0.0, _FIRST_INTERVAL
        outside = debugger.monitor.outside
        outside.finding_listeners.append(self.hear)
        outside.replayed, outside.failed = self.tick, self.fail

    def hear(self, finding: Finding) -> None:
        """A finding was kept, or seen again."""
        with self._lock:
            before = self._written.get(finding.id)
            if before is not None and not _says_more(finding, before):
                return
            self._write(finding, before is None)
            first = finding.severity is Severity.ERROR and not self._erred
            self._erred = self._erred or first
        if first:  # a dump takes the debugger's lock
            self._on_error()

    def fail(self, failure: Failure) -> None:
        """The program has met an exception; it may be killed for that at once."""
        shown = redacted_failure(failure) if self._redact else failure
        self._journal.write_json("failure", b'"book":%d,"failure":' % self._book + msgspec.json.encode(shown))

    def tick(self) -> None:
        """A replay has ended."""
        now = time.monotonic()
        if now >= self._next:
            self._next, self._interval = now + self._interval, min(2 * self._interval, _LONGEST_INTERVAL)
            self.summarise("interim")

    def summarise(self, kind: str = "summary") -> None:
        """Write what changed since, and everything else of the report."""
        facts = self.debugger.facts()
        with self._lock:
            for finding in (*facts.findings, *facts.notes):
                self._catch_up(finding, interim=kind == "interim")
        facts = msgspec.structs.replace(facts, findings=(), notes=(), failures=())
        body = msgspec.json.encode(redacted_facts(facts) if self._redact else facts)
        self._journal.write_json(kind, b'"book":%d,"facts":' % self._book + body)

    def _catch_up(self, finding: Finding, interim: bool) -> None:
        """Write a finding's last state, if it is not written yet; how often it was seen is in the pulse meanwhile."""
        before = self._written.get(finding.id)
        if before is not None:
            seen = msgspec.structs.replace(before, occurrences=finding.occurrences) if interim else before
            if finding == seen or _state(finding) < _state(before):
                return
        self._write(finding, before is None)

    def _write(self, finding: Finding, new: bool) -> None:
        self._written[finding.id] = finding
        kind = "revision" if not new else "note" if finding.severity is Severity.NOTE else "finding"
        shown = redacted_finding(finding) if self._redact else finding
        body = msgspec.json.encode(msgspec.structs.replace(shown, rank=rank()))
        self._journal.write_json(kind, b'"book":%d,"finding":' % self._book + body)


def _state(finding: Finding) -> tuple[int, int]:
    """What only grows from one state of a finding to the next."""
    return finding.revision, finding.occurrences


def _says_more(finding: Finding, before: Finding) -> bool:
    """Whether a finding is worth a record after the last one, which may be of a later state: another thread's."""
    if _state(finding) <= _state(before):
        return False
    return finding.occurrences.bit_count() == 1 or finding.revision != before.revision
