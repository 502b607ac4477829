"""Alignment of two graphs' nodes by the names of their kernels. Pure functions; any thread, no lock.

Graphs of one runner, captured for one batch size after the other, mostly have the same kernels in the same order. A
library may choose another variant for another size, or one kernel more. Kernels whose names differ in template
arguments alone may be different operations: where both graphs have both, neither stands for the other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import lru_cache

FLOOR = 0.8  # share of the nodes that must correspond
_MOST = 1024  # nodes that one of two graphs has and the other has not: their alignment takes up to the square of that
_VARIANT = re.compile(r"[<(].*|\d+")
_RETURNED = re.compile(r"^(?:void|static|int|float) ")


def families(names: Iterable[str]) -> Counter[str]:
    """How many kernels of each family there are."""
    return Counter(map(family, names))


def common(first: Counter[str], later: Counter[str]) -> int:
    """How many kernels two graphs have in common, in whatever order; 0 where too few for the same program."""
    found = (first & later).total()
    return found if found >= FLOOR * max(first.total(), later.total()) else 0


def aligned(first: Sequence[str], later: Sequence[str]) -> list[int | None] | None:
    """The place in `first` of each node of `later`; None for a node that has none there.

    None in all where too few correspond: the graphs are of different programs.
    """
    if (first or later) and not common(families(first), families(later)):
        return None
    counts, later_counts = Counter(first), Counter(later)
    as_many = {name for name, count in counts.items() if later_counts[name] == count}
    a, b = ([_key(name, as_many) for name in names] for names in (first, later))
    head = _common(a, b)
    tail = min(_common(a[::-1], b[::-1]), len(a) - head, len(b) - head)
    found: list[int | None] = [None] * len(b)
    found[:head] = range(head)
    found[len(b) - tail :] = range(len(a) - tail, len(a))
    for at_a, at_b in _matches(a[head : len(a) - tail], b[head : len(b) - tail]):
        found[head + at_b] = head + at_a
    for at, place in enumerate(found):
        if place is not None and first[place] != later[at] and first[place] in later_counts and later[at] in counts:
            found[at] = None  # each is in both graphs
    matched = sum(place is not None for place in found)
    return found if matched >= FLOOR * max(len(a), len(b)) else None


def _key(name: str, as_many: Container[str]) -> str:
    """What corresponding kernels have in common: their name, if both graphs have as many of it, else the family."""
    return f"= {name}" if name in as_many else family(name)


def _matches(a: Sequence[str], b: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The places of a longest common subsequence, from its end; nothing where it leaves out more than `_MOST`.

    Myers' algorithm: on each diagonal `x - y` of the table of the two, how far one gets with so many left out.
    """
    reached, trail = {1: 0}, list[dict[int, int]]()
    for left_out in range(min(len(a) + len(b), _MOST) + 1):
        trail.append(reached)
        reached = {diagonal: _slide(a, b, reached, diagonal, left_out) for diagonal in _within(a, b, left_out)}
        if reached.get(len(a) - len(b), 0) >= len(a):
            yield from _walk_back(len(a), len(b), trail)
            return


def _within(a: Sequence[str], b: Sequence[str], left_out: int) -> range:
    """The diagonals that can be reached; beyond the table's edges there is nothing."""
    low, high = max(-left_out, -len(b)), min(left_out, len(a))
    return range(low + (low + left_out) % 2, high + 1, 2)


def _start(reached: dict[int, int], diagonal: int, left_out: int) -> tuple[int, int]:
    """Where a diagonal is entered, and from which one."""
    above, beside = reached.get(diagonal + 1, -1), reached.get(diagonal - 1, -1)
    down = diagonal == -left_out or (diagonal != left_out and beside < above)
    return (above, diagonal + 1) if down else (beside + 1, diagonal - 1)


def _slide(a: Sequence[str], b: Sequence[str], reached: dict[int, int], diagonal: int, left_out: int) -> int:
    x = _start(reached, diagonal, left_out)[0]
    while x < len(a) and x - diagonal < len(b) and a[x] == b[x - diagonal]:
        x += 1
    return x


def _walk_back(x: int, y: int, trail: Sequence[dict[int, int]]) -> Iterator[tuple[int, int]]:
    for left_out in range(len(trail) - 1, -1, -1):
        start, before = _start(trail[left_out], x - y, left_out)
        while x > start:
            x, y = x - 1, y - 1
            yield x, y
        x = trail[left_out].get(before, 0)
        y = x - before


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common beginning."""
    count = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        count += 1
    return count


@lru_cache(maxsize=4096)
def family(name: str) -> str:
    """A kernel's name without what differs from one variant to the next: template arguments, parameters, numbers."""
    return _VARIANT.sub("", _RETURNED.sub("", name)) or name
