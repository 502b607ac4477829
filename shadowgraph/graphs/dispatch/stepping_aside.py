"""Counts of operations that were left unobserved, by reason, so that the program runs as without the debugger.

Incremented in any thread, without a lock; read by the active debugger, which begins a new count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

POOLED = "allocations left unguarded in a memory pool that the program had made active"
MADE_FX = "allocations left unguarded while make_fx traced"
LARGE = "large allocations left unguarded: "  # followed by why
FENCE = "fences not laid: "  # followed by why
PARTED = "resizes of guarded tensors whose storage is also held in C++, which keeps the old memory"
TRACED = "calls not seen while torch.jit traced them"

_counts: Counter[str] = Counter()


def stepped_aside(reason: str) -> None:
    """Count one operation."""
    _counts[reason] += 1


def begin_count() -> Counter[str]:
    """Begin a new count, and return it."""
    global _counts
    _counts = Counter()
    return _counts


def refusals(reasons: Iterable[str]) -> list[str]:
    """Of the reasons of a count, those for which fences were not laid."""
    return [reason.removeprefix(FENCE) for reason in reasons if reason.startswith(FENCE)]
