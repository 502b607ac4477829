"""Triton kernels of the CUDA tests. Numbers are not specialised on, so that one launch compiles a kernel for all."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["start", "count"])
def put(target, start, count, BLOCK: tl.constexpr):
    """Store lane numbers at ``target[start : start + count]``; `start` may be negative."""
    lane = tl.arange(0, BLOCK)
    tl.store(target + start + lane, lane, mask=lane < count)


@triton.jit(do_not_specialize=["size", "which", "extra"])
def put_late(target, counter, size, which, extra, BLOCK: tl.constexpr):
    """Count launches; store lane numbers at ``target[:size]``, in launch number `which` at `extra` places more."""
    launch = tl.atomic_add(counter, 1) + 1
    lane = tl.arange(0, BLOCK)
    tl.store(target + lane, lane, mask=lane < size + tl.where(launch == which, extra, 0))


@triton.jit
def stray(target, offset):
    """Store one element as far from `target` as memory says: zero is harmless."""
    tl.store(target + tl.load(offset), 1)


@triton.jit
def matmul(left, right, out, N: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):
    """``out = left @ right`` for row-major matrices whose sizes are multiples of `BLOCK`."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, K, BLOCK):
        inner = start + tl.arange(0, BLOCK)
        a = tl.load(left + rows[:, None] * K + inner[None, :])
        b = tl.load(right + inner[:, None] * N + columns[None, :])
        total += tl.dot(a, b)
    tl.store(out + rows[:, None] * N + columns[None, :], total)
