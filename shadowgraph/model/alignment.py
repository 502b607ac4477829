"""The alignment of guarded memory: that of torch's CUDA caching allocator, so that pointers keep their alignment."""

from __future__ import annotations

ALIGNMENT = 512  # bytes


def round_up(nbytes: int) -> int:
    """`nbytes` rounded up to the alignment; at least one unit."""
    return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
