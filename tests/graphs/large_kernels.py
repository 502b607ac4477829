"""Triton kernels of the tests of large results."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store_row(target, at, ROW: tl.constexpr, BLOCK: tl.constexpr):
    """Store at the start of the row whose number memory has."""
    lane = tl.arange(0, BLOCK)
    tl.store(target + tl.load(at) * ROW + lane, lane.to(tl.uint8))
