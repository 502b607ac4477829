"""Progress display of verbs on standard error: only on a terminal, and only after a delay.
Called by verbs in the main thread; a timer thread starts the display.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from shadowgraph.common.console import tame

AFTER = 0.7  # seconds without a display
_busy = False
_COLUMNS = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())


@contextmanager
def working(what: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Show that an operation is running, and its progress.

    Standard output stays free of it, and the display is erased at the end. Where standard error is no terminal, or a
    dumb one, nothing is written. Of nested displays only the outer one is shown.

    Parameters
    ----------
    what
        As in "reading run.dump"; it may come from a file name.
    total
        Number of parts, if known.

    Yields
    ------
    callable
        To be called after each part.
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
        begins.join()  # it may be starting right now
        progress.stop()
        _busy = False


def _nothing() -> None:
    """Stands in for the callback without a display."""
