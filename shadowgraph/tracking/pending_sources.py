"""Host memory that queued copies have yet to read: looked at by the dispatch mode for each operator that writes.

Published whole by the check that waits for the copies, under the debugger's lock; read in any thread without a lock.
"""

from __future__ import annotations

from collections.abc import Iterable

spans: tuple[tuple[int, int], ...] = ()  # first address, and the one after the last


def publish(found: Iterable[tuple[int, int]]) -> None:
    """Set the memory that is waited for."""
    global spans
    spans = tuple(found)


def hit(start: int, stop: int) -> bool:
    """Whether a range has a byte of it."""
    return any(start < end and begin < stop for begin, end in spans)
