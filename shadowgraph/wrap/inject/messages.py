"""Log output of a wrapped process: one handler of shadowgraph's own logger, on the program's standard error.

Set up in the thread that starts the debugger. Findings and internal errors arrive as ``record.finding`` and
``record.fault``, so that a redacting formatter knows which part of a line quotes the program.
"""

from __future__ import annotations

import logging
import sys

from shadowgraph.common.internal_errors import logger
from shadowgraph.dumps.redaction import redacted, redacted_fault
from shadowgraph.model.findings import Finding


class Redacting(logging.Formatter):
    """Formats messages without keys, values and exception texts, and without tracebacks, which quote the last."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        finding, fault = getattr(record, "finding", None), getattr(record, "fault", None)
        if isinstance(finding, Finding):
            text = text.replace(finding.message, redacted(finding).message)
        return text.replace(fault, redacted_fault(fault)) if isinstance(fault, str) else text


def to_stderr(quiet: bool, redact: bool) -> None:
    """Send shadowgraph's logger to standard error only: the program's own logging may go to its output."""
    logger.propagate = False
    if quiet:
        logger.setLevel("CRITICAL")
    elif sys.__stderr__ is not None:
        handler = logging.StreamHandler(sys.__stderr__)
        handler.setFormatter(Redacting() if redact else logging.Formatter("%(message)s"))
        logger.addHandler(handler)
