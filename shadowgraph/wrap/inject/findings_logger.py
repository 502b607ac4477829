"""Where a wrapped process's findings go as they occur: into its findings log, and to its standard error.

`FindingsLogger` is called in the thread of the event that led to the finding, after the debugger's lock is released and
before the event returns. Its own lock keeps the records of a finding in order; only the findings log's lock is taken
under it. Lines on standard error are those of shadowgraph's own logger, which `log_to_stderr` gives a handler in the
thread that starts the debugger.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable

import msgspec

from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.common.internal_errors import logger
from shadowgraph.debugger import Debugger
from shadowgraph.dumps.redaction import redacted, redacted_fault
from shadowgraph.model.failures import Failure
from shadowgraph.model.findings import Finding, Severity
from shadowgraph.model.run_facts import plain_facts
from shadowgraph.wrap.folder.findings_log import FindingsLog, rank

_FIRST_INTERVAL, _LONGEST_INTERVAL = 10.0, 600.0  # seconds between interim summaries, doubled each time


class FindingsLogger:
    """Logs one debugger.

    A finding is recorded when it is new, when it has a new revision and at every power of two of its occurrences; the
    last state of each is written with the summary. Interim summaries are written after the first replay and then less
    and less often: servers tend to end themselves with SIGKILL.

    Parameters
    ----------
    book
        Number that identifies the debugger within the process.
    on_error
        Called after the first finding of severity error is written.
    """

    def __init__(
        self, log: FindingsLog, debugger: Debugger, book: int, on_error: Callable[[], None], redact: bool = False
    ) -> None:
        self.debugger = debugger
        self._log, self._book, self._on_error = log, book, on_error
        self._redact = redact
        self._lock = fork_safe(threading.RLock())
        self._written: dict[int, Finding] = {}  # findings of the store, which is bounded
        self._erred = False
        self._next, self._interval = 0.0, _FIRST_INTERVAL
        self._leave_findings = debugger.adapter.subscribe_findings(self.hear)
        self._leave_failures = debugger.adapter.subscribe_failures(self.fail)
        self._leave_checks = debugger.runner.subscribe_checked_replays(self.tick)

    def leave_replays(self) -> None:
        """The debugger has ended; findings of a later `check` are still logged. A debugger that starts again gets a
        logger of its own."""
        self._leave_failures()
        self._leave_checks()

    def leave(self) -> None:
        """In a forked child, which has a log of its own."""
        self.leave_replays()
        self._leave_findings()

    def hear(self, finding: Finding) -> None:
        """A finding was stored, or seen again."""
        with self._lock:
            before = self._written.get(finding.id)
            if before is not None and not _says_more(finding, before):
                return
            self._write(finding, before is None)
            first = finding.severity is Severity.ERROR and not finding.suppressed_by and not self._erred
            self._erred = self._erred or first
        if first:  # outside the lock: a dump takes the debugger's lock
            self._on_error()

    def fail(self, failure: Failure) -> None:
        """The program has met an exception; the process may be killed next."""
        shown = redacted(failure) if self._redact else failure
        self._log.write_json("failure", b'"book":%d,"failure":' % self._book + msgspec.json.encode(shown))

    def tick(self) -> None:
        """A checked replay has ended."""
        now = time.monotonic()
        if now >= self._next:
            self._next, self._interval = now + self._interval, min(2 * self._interval, _LONGEST_INTERVAL)
            self.summarise("interim")

    def summarise(self, kind: str = "summary") -> None:
        """Write the findings that changed since, and all other facts of the report."""
        facts = self.debugger.facts()
        with self._lock:
            withdrawn = [finding for finding in facts.hidden if finding.id]
            for finding in (*facts.damage, *facts.notes, *withdrawn):
                self._catch_up(finding, interim=kind == "interim")
        number = rank()
        hidden = tuple(msgspec.structs.replace(each, rank=number) for each in facts.hidden if not each.id)
        facts = msgspec.structs.replace(facts, findings=(), notes=(), parts=(), failures=(), hidden=hidden)
        body = msgspec.json.encode(plain_facts(redacted(facts) if self._redact else facts))
        self._log.write_json(kind, b'"book":%d,"facts":' % self._book + body)

    def _catch_up(self, finding: Finding, interim: bool) -> None:
        """Write a finding's last state, unless written; meanwhile the heartbeat has its occurrences."""
        before = self._written.get(finding.id)
        if before is not None:
            seen = msgspec.structs.replace(before, occurrences=finding.occurrences) if interim else before
            if finding == seen or _state(finding) < _state(before):
                return
        self._write(finding, before is None)

    def _write(self, finding: Finding, new: bool) -> None:
        self._written[finding.id] = finding
        kind = "revision" if not new else "note" if finding.severity is Severity.NOTE else "finding"
        shown = redacted(finding) if self._redact else finding
        body = msgspec.json.encode(msgspec.structs.replace(shown, rank=rank()).to_dict())
        self._log.write_json(kind, b'"book":%d,"finding":' % self._book + body)


def _state(finding: Finding) -> tuple[int, int]:
    """A key that only grows from one state of a finding to the next."""
    return finding.revision, finding.occurrences


def _says_more(finding: Finding, before: Finding) -> bool:
    """Whether a finding needs a record after the last one, which another thread may have written from a later state."""
    if _state(finding) <= _state(before):
        return False
    differs = (finding.revision, finding.suppressed_by) != (before.revision, before.suppressed_by)
    return differs or finding.occurrences.bit_count() == 1


class Redacting(logging.Formatter):
    """Formats messages without keys, values and exception texts, and without tracebacks, which quote the last.

    Findings and internal errors arrive as ``record.finding`` and ``record.fault``: they tell which part of a line
    quotes the program.
    """

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        finding, fault = getattr(record, "finding", None), getattr(record, "fault", None)
        if isinstance(finding, Finding):
            text = text.replace(finding.message, redacted(finding).message)
        return text.replace(fault, redacted_fault(fault)) if isinstance(fault, str) else text


def log_to_stderr(quiet: bool, redact: bool) -> None:
    """Send shadowgraph's logger to standard error only: the program's own logging may go to its output."""
    logger.propagate = False
    if quiet:
        logger.setLevel("CRITICAL")
    elif sys.__stderr__ is not None:
        handler = logging.StreamHandler(sys.__stderr__)
        handler.setFormatter(Redacting() if redact else logging.Formatter("%(message)s"))
        logger.addHandler(handler)
