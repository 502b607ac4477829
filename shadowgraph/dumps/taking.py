"""A dump from start to end, at once or with the file written in the background."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from shadowgraph.dumps.collecting import Collected, collect, first_line
from shadowgraph.dumps.writer import destination, write_dump
from shadowgraph.errors import ShadowgraphError, UsageError
from shadowgraph.faults import faults
from shadowgraph.reports.document import RunFacts
from shadowgraph.settings import SMALLEST_DUMP
from shadowgraph.supervisor import Supervisor

_in_background: list[threading.Thread] = []


def take_dump(
    work: Supervisor,
    facts: Callable[[], RunFacts],
    path: str | os.PathLike[str],
    *,
    reason: str,
    limit: int,
    redact: bool,
    background: bool,
) -> Path:
    """Collect, then write; see `Debugger.dump`.

    Raises
    ------
    ShadowgraphError
        Whatever goes wrong, in one line. With `background` only what goes wrong before the writing.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < SMALLEST_DUMP:
        raise UsageError(f"a dump's limit must be a whole number of at least {SMALLEST_DUMP:,} bytes, not {limit!r}")
    try:
        target = destination(path)
        collected = collect(work, facts, reason, limit, redact)
        if background:
            _write_later(collected, target, limit)
            return target
        finish()  # an earlier dump that is still being written must not replace this one
        return write_dump(collected, target, limit)
    except ShadowgraphError:
        raise
    except Exception as error:
        faults.note("dump", error)
        raise ShadowgraphError(f"the dump could not be made: {first_line(error)}") from error


def finish() -> None:
    """Wait for the dumps that are being written in the background."""
    for thread in list(_in_background):
        thread.join()


def _write_later(collected: Collected, target: Path, limit: int) -> None:
    """Write in a thread that the interpreter's end waits for, one dump after another."""
    before = _in_background[-1] if _in_background else None

    def write() -> None:
        if before is not None:
            before.join()
        try:
            write_dump(collected, target, limit)
        except Exception as error:  # nobody is there to be told but the report and the log
            faults.note("dump", error)

    thread = threading.Thread(target=write, name="shadowgraph-dump")
    _in_background[:] = [*(known for known in _in_background if known.is_alive()), thread]
    thread.start()
