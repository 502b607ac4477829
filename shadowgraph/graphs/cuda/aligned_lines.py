"""Alignment of two graphs' nodes by the names of their kernels. Pure functions; any thread, no lock.

Graphs of one runner, captured for one batch size after the other, mostly have the same kernels in the same order. A
library may choose another variant for another size, or one kernel more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import lru_cache

FLOOR = 0.8  # share of the nodes that must correspond
_MOST = 4096  # nodes between the equal ends of two graphs: comparing them takes up to the square of that
_VARIANT = re.compile(r"[<(].*|\d+")
_RETURNED = re.compile(r"^(?:void|static|int|float) ")


def aligned(first: Sequence[str], later: Sequence[str]) -> list[int | None] | None:
    """The place in `first` of each node of `later`; None for a node that has none there.

    None in all where too few correspond: the graphs are of different programs.
    """
    a, b = [family(name) for name in first], [family(name) for name in later]
    head = _common(a, b)
    tail = min(_common(a[::-1], b[::-1]), len(a) - head, len(b) - head)
    found: list[int | None] = [None] * len(b)
    found[:head] = range(head)
    found[len(b) - tail :] = range(len(a) - tail, len(a))
    middle_a, middle_b = a[head : len(a) - tail], b[head : len(b) - tail]
    if middle_a and middle_b and max(len(middle_a), len(middle_b)) <= _MOST:
        for start_a, start_b, count in SequenceMatcher(None, middle_a, middle_b, autojunk=False).get_matching_blocks():
            found[head + start_b : head + start_b + count] = range(head + start_a, head + start_a + count)
    matched = sum(place is not None for place in found)
    return found if matched >= FLOOR * max(len(a), len(b)) else None


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
