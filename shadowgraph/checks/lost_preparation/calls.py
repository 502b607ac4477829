"""For which graph a call prepared: the one that alone reads all that the call wrote.

A plan writes what is shared, and beside it what one graph alone reads. Used by `LostPreparations`, under the debugger's
lock, for writes that were overwritten before a replay read them.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence

from shadowgraph.checks.lost_preparation.preparations import Prepared
from shadowgraph.model.stacks import Stack

_DEPTH = 4  # functions, from the innermost on, whose calls are looked at


def graph_of_call(entry: Prepared, writes: Sequence[Prepared], replays: Iterable[int]) -> int | None:
    """Serial of the only graph that reads something of each write of the call that made an entry.

    Parameters
    ----------
    writes
        Writes of bytes that graphs read, the entry among them, in order.
    replays
        When replays began, by the clock.
    """
    begun = sorted(replays)
    at = bisect(begun, entry.order)
    near = [each for each in writes if bisect(begun, each.order) == at]  # without a replay between
    for depth in range(min(_DEPTH, len(entry.write.launch.stack))):
        readers = [each.readers for each in _call(entry, near, depth)]
        common = frozenset.intersection(*readers)
        if not common:
            return None  # a call that prepares several graphs; so do those around it
        if len(common) == 1:
            return next(iter(common)) if any(len(each) > 1 for each in readers) else None
    return None


def _call(entry: Prepared, writes: Sequence[Prepared], depth: int) -> list[Prepared]:
    """The writes of one call of a function: one after the other, and no line twice: there the next call begins."""
    key, found, lines = _key(entry, depth), list[Prepared](), set[tuple[str, Stack]]()
    for each in writes:
        place = each.write.launch.name, each.write.launch.stack
        if _key(each, depth) != key or place in lines:
            if entry in found:
                break
            found, lines = [], set()
        if _key(each, depth) == key:
            found.append(each)
            lines.add(place)
    return found if entry in found else [entry]


def _key(entry: Prepared, depth: int) -> tuple[object, ...]:
    """The function at a depth of the stack, and the lines that called it."""
    stack = entry.write.launch.stack
    if depth >= len(stack):
        return ()
    return (stack[depth].file, stack[depth].function, stack[depth + 1 :])
