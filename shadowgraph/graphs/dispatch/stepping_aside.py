"""How often, and why, the program was left to itself so that it runs as without us.

Counted by what steps aside, in any thread; read by the debugger that watches, which begins a new count.
"""

from __future__ import annotations

from collections import Counter

POOLED = "allocations left unguarded in a memory pool that the program had made active"
MADE_FX = "allocations left unguarded while make_fx traced"
TRACED = "calls not seen while torch.jit traced them"

_counts: Counter[str] = Counter()


def stepped_aside(reason: str) -> None:
    """Count one."""
    _counts[reason] += 1


def begin_count() -> Counter[str]:
    """Count from here on into what is returned."""
    global _counts
    _counts = Counter()
    return _counts
