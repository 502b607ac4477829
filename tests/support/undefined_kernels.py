"""Kernels that read bytes that must not matter."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scale_rows(out, x, lens, W: tl.constexpr):  # type: ignore[no-untyped-def]
    """Skips rows of length 0."""
    row = tl.program_id(0)
    if tl.load(lens + row) == 0:
        return
    columns = tl.arange(0, W)
    tl.store(out + row * W + columns, tl.load(x + row * W + columns) * 2)


@triton.jit
def add_next(out, x, count, step, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The last lanes read past the end of x."""
    lane = tl.arange(0, BLOCK)
    inside = lane < count
    here = tl.load(x + lane, mask=inside, other=0)
    tl.store(out + lane, here + tl.load(x + lane + step, mask=inside, other=0), mask=inside)


@triton.jit
def masked_next(out, x, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The last lane reads past the end of x, and multiplies by 0."""
    lane = tl.arange(0, BLOCK)
    inside = lane < count
    after = tl.load(x + lane + 1, mask=inside, other=0) * (lane + 1 < count)
    tl.store(out + lane, tl.load(x + lane, mask=inside, other=0) + after, mask=inside)


@triton.jit
def sum_rows(out, x, starts):  # type: ignore[no-untyped-def]
    """One row for each program, from an array of starts with one more."""
    row = tl.program_id(0)
    start, stop = tl.load(starts + row), tl.load(starts + row + 1)
    total = tl.load(x + start) * 0.0
    for place in range(start, stop):
        total += tl.load(x + place) + 1.0
    tl.store(out + row, total)


@triton.jit
def append_row(cache, row, at, W: tl.constexpr):  # type: ignore[no-untyped-def]
    """A row behind those that are there, and the count of them."""
    columns, place = tl.arange(0, W), tl.load(at)
    tl.store(cache + place * W + columns, tl.load(row + columns))
    tl.store(at, place + 1)


@triton.jit
def meet(out, semaphore, PROGRAMS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The last program to come adds to all, and leaves the semaphore as it was."""
    if tl.atomic_add(semaphore, 1) == PROGRAMS - 1:
        lane = tl.arange(0, PROGRAMS)
        tl.store(out + lane, tl.load(out + lane) + 1)
        tl.store(semaphore, 0)


@triton.jit
def my_all_reduce(out, x, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Named like a kernel that waits for others."""
    lane = tl.arange(0, BLOCK)
    tl.store(out + lane, tl.load(x + lane))


@triton.jit
def copy_some(out, x):  # type: ignore[no-untyped-def]
    """Copies what is not 0, an element for each program."""
    place = tl.program_id(0)
    value = tl.load(x + place)
    if value != 0:
        tl.store(out + place, value)
