"""What a verb is busy with, on standard error: only in a terminal, and only once it has taken a while."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from shadowgraph.common.console import tame

AFTER = 0.7  # seconds without a word
_busy = False
_COLUMNS = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())


@contextmanager
def working(what: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Show that something goes on, and how much of it is done.

    Standard output has none of it, and what was shown is gone from the terminal at the end. Where standard error is no
    terminal, or a dumb one, nothing is written. Inside another one only the outer is shown.

    Parameters
    ----------
    what
        As in "reading run.dump"; it may come from a file name.
    total
        Parts that are to be done, where they are known.

    Yields
    ------
    callable
        To be called when a part is done.
    """
    global _busy
    console = Console(stderr=True, highlight=False, markup=False)
    if _busy or not sys.stderr.isatty() or console.is_dumb_terminal:
        yield _nothing
        return
    _busy = True
    columns = (*_COLUMNS, MofNCompleteColumn()) if total is not None else _COLUMNS
    progress = Progress(*columns, console=console, transient=True)
    task = progress.add_task(tame(what), total=total)
    begins = threading.Timer(AFTER, progress.start)
    begins.daemon = True
    begins.start()
    try:
        yield lambda: progress.advance(task)
    finally:
        begins.cancel()
        begins.join()  # it may be starting now
        progress.stop()
        _busy = False


def _nothing() -> None:
    """Nobody looks."""
