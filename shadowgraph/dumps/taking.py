"""A dump from collection to file, written at once or in the background.

Background dumps are written by a daemon thread, one after another: a slow disk delays no replay, and the end of the
process by at most `LIMIT` seconds. A forked child inherits no such thread and writes no pending dump.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from shadowgraph.common.errors import ShadowgraphError, UsageError
from shadowgraph.common.exception_text import summary
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.common.option_kinds import shown
from shadowgraph.common.options import SMALLEST_DUMP
from shadowgraph.dumps.collecting import Collected, collect
from shadowgraph.dumps.writer import destination, write_dump
from shadowgraph.model.run_facts import RunFacts
from shadowgraph.monitor.monitor import Monitor

LIMIT = 30.0  # seconds that the end of a process waits for pending dumps
_in_background: list[threading.Thread] = []
_ended = False  # whether new threads can no longer be started
os.register_at_fork(after_in_child=_in_background.clear)


def take_dump(
    work: Monitor,
    facts: Callable[[], RunFacts],
    path: str | os.PathLike[str],
    *,
    reason: str,
    limit: int,
    redact: bool,
    background: bool,
    written: Callable[[Path], None] = lambda path: None,
    room: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Path:
    """Collect, then write; see `Debugger.dump`.

    Parameters
    ----------
    written
        Called when the file is complete, by the thread that wrote it.
    room
        Returns a context in which a few files can be opened, for the background thread that writes.

    Raises
    ------
    ShadowgraphError
        For every error, with a one-line message. With `background` only for errors before the writing.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < SMALLEST_DUMP:
        raise UsageError(f"a dump's limit must be a whole number of at least {SMALLEST_DUMP:,} bytes, not {limit!r}")
    if not isinstance(path, (str, os.PathLike)):
        raise UsageError(f"dump() takes the path of a file or of a folder, not {shown(path)}")
    if not isinstance(reason, str):
        raise UsageError(f"dump() takes a text as reason, not {shown(reason)}")
    try:
        target = destination(path)
        collected = collect(work, facts, reason, limit, redact)
        if background and not _ended:
            _write_later(collected, target, limit, written, room)
            return target
        finish()  # an earlier pending dump must not replace this one
        write_dump(collected, target, limit)
        written(target)
        return target
    except ShadowgraphError:
        raise
    except Exception as error:
        internal_errors.note("dump", error)
        raise ShadowgraphError(f"the dump could not be made: {summary(error)}") from error


def finish() -> bool:
    """Wait for pending background dumps, `LIMIT` seconds at most; returns whether all are written."""
    deadline = time.monotonic() + LIMIT
    waited = [thread for thread in list(_in_background) if thread is not threading.current_thread()]
    for thread in waited:
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in waited)


def _write_later(
    collected: Collected,
    target: Path,
    limit: int,
    written: Callable[[Path], None],
    room: Callable[[], AbstractContextManager[None]],
) -> None:
    """Write in a thread that the interpreter's exit waits for, one dump after another."""
    before = _in_background[-1] if _in_background else None

    def write() -> None:
        if before is not None:
            before.join()
        try:
            with room():
                write_dump(collected, target, limit)
            written(target)
        except Exception as error:  # no caller is left; the report and the log tell
            internal_errors.note("dump", error)

    thread = threading.Thread(target=write, name="shadowgraph-dump", daemon=True)
    _in_background[:] = [*(known for known in _in_background if known.is_alive()), thread]
    thread.start()


def _end() -> None:
    """Wait together with the interpreter's wait for its threads: later, thread pools take no work and no thread starts,
    and children of multiprocessing run no `atexit` callbacks."""
    global _ended
    _ended = True
    finish()


try:
    getattr(threading, "_register_atexit", atexit.register)(_end)
except RuntimeError:  # the interpreter is shutting down already
    _ended = True
