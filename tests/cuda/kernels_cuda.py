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


@triton.jit
def fill_all(target, size, BLOCK: tl.constexpr):
    """Store lane numbers at all of `target`."""
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + lane, lane, mask=lane < size)


@triton.jit
def add_one(source, out, size, BLOCK: tl.constexpr):
    """``out = source + 1``."""
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + lane, tl.load(source + lane, mask=lane < size) + 1, mask=lane < size)


@triton.jit
def take(source, places, out, size, BLOCK: tl.constexpr):
    """``out = source[places]``."""
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.load(places + lane, mask=lane < size)
    tl.store(out + lane, tl.load(source + place, mask=lane < size), mask=lane < size)


@triton.jit
def write_early(out, EARLY: tl.constexpr, WAITS: tl.constexpr, VALUE: tl.constexpr, SPINS, BLOCK: tl.constexpr):
    """Fill `out`; with `EARLY` let dependent kernels start first, with `WAITS` wait for the kernel before."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    if WAITS:
        tl.extra.cuda.gdc_wait()
    lane = tl.arange(0, BLOCK)
    value = tl.full((BLOCK,), VALUE, tl.int32)
    for spin in range(SPINS):  # takes time and changes nothing
        value = tl.where(value + spin < 0, spin, value)
    tl.store(out + lane, value)


@triton.jit
def store_keys(keys, slots, cache, DIM: tl.constexpr, MARKED: tl.constexpr):
    """A token a program, at its slot unless that is below zero; `MARKED` clears the slots."""
    token = tl.program_id(0)
    slot = tl.load(slots + token)
    lane = tl.arange(0, DIM)
    tl.store(cache + slot * DIM + lane, tl.load(keys + token * DIM + lane), mask=(lane < DIM) & (slot >= 0))
    if MARKED:
        tl.store(slots + token, -1)
