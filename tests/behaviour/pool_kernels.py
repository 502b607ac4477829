"""Triton kernels of the tests of pools."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def through(source, scratch, target, WANTED: tl.constexpr, BLOCK: tl.constexpr):
    """Store the source's values, by way of a scratch buffer where it is wanted."""
    at = tl.arange(0, BLOCK)
    values = tl.load(source + at)
    if WANTED:
        tl.store(scratch + at, values)
        values = tl.load(scratch + at)
    tl.store(target + at, values)


@triton.jit
def shifted(source, target, BLOCK: tl.constexpr):
    """Store the source's values, plus one."""
    at = tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at) + 1)
