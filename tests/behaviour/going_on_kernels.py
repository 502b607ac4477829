"""Triton kernels of the tests of overruns. Import after `enable_interpreter`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fill_two(first, second, count, BLOCK: tl.constexpr):
    """Store lane numbers at ``first[:count]``, which may lie beyond its end, and a zero at ``second[0]``."""
    lane = tl.arange(0, BLOCK)
    tl.store(first + lane, lane, mask=lane < count)
    tl.store(second, 0)


@triton.jit
def fill_strided(tensor, first, stride, count, BLOCK: tl.constexpr):
    """Store ones at ``tensor[first + k * stride]`` for `count` values of k, which may lie beyond its end."""
    lane = tl.arange(0, BLOCK)
    tl.store(tensor + first + lane * stride, 1, mask=lane < count)
