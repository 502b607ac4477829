"""Triton kernels of the cases, written from the public reports. Import after `enable_interpreter` on a host."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fill_draft_indices(table, indices, lens, stride, BLOCK: tl.constexpr):
    """Pack seq_len + step + 1 indices for each (sequence, branch) into the step's row, as EAGLE's draft does."""
    step = tl.program_id(0)
    seq = tl.program_id(1)
    branch = tl.program_id(2)
    topk = tl.num_programs(2)
    lane = tl.arange(0, BLOCK)
    before = tl.sum(tl.load(lens + lane, mask=lane < seq, other=0))
    count = tl.load(lens + seq) + step + 1
    base = (before + seq * (step + 1)) * topk + branch * count
    values = tl.load(indices + lane, mask=lane < count, other=0) + step * 1000 + seq * 100 + branch * 10
    tl.store(table + step * stride + base + lane, values, mask=lane < count)


@triton.jit
def scatter_pages(table, pages, width, count, BOUNDED: tl.constexpr, BLOCK: tl.constexpr):
    """Row r of a page table gets `count` pages; without the bound on the column they may not fit."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < count
    if BOUNDED:
        mask = mask & (column < width)
    tl.store(table + row * width + column, tl.load(pages + row * BLOCK + column), mask=mask)


@triton.jit
def fill(target, start, count, value, BLOCK: tl.constexpr):
    """Store `value` at ``target[start : start + count]``; `start` may be negative."""
    lane = tl.arange(0, BLOCK)
    tl.store(target + start + lane, lane + value, mask=lane < count)


@triton.jit
def bump(counter, BLOCK: tl.constexpr):
    """Increment a counter and reset it at four: a semaphore that resets itself within a launch of four programs."""
    old = tl.atomic_add(counter, 1)
    if old == 3:
        tl.store(counter, 0)
