"""Triton kernels that store elements of a table twice, or over the ends of its rows, and mean to. Import after
`enable_interpreter`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def flat(table, count, BLOCK: tl.constexpr):
    """Element by element: blocks pay no heed to rows."""
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(table + lane, lane, mask=lane < count)


@triton.jit
def flat_shifted(table, count, BLOCK: tl.constexpr):
    """The same, and the last block begins earlier instead of being masked."""
    lane = tl.minimum(tl.program_id(0) * BLOCK, count - BLOCK) + tl.arange(0, BLOCK)
    tl.store(table + lane, lane)


@triton.jit
def clear_then_rows(table, width, rows, BLOCK: tl.constexpr):
    """One program clears all of the table in blocks, then fills it row by row."""
    for start in range(0, rows * width, BLOCK):
        lane = start + tl.arange(0, BLOCK)
        tl.store(table + lane, -1, mask=lane < rows * width)
    for row in range(rows):
        column = tl.arange(0, BLOCK)
        tl.store(table + row * width + column, row * 1000 + column, mask=column < width)


@triton.jit
def rows_over_each_other(table, width, rows, BLOCK: tl.constexpr):
    """One program stores whole blocks, row after row: what is past a row's end the next row overwrites."""
    for row in range(rows):
        column = tl.arange(0, BLOCK)
        tl.store(table + row * width + column, row * 1000 + column, mask=(column < width) | (row < rows - 1))


@triton.jit
def padded_slots(table, slots, width, BLOCK: tl.constexpr):
    """A token a program, as in a cache of keys: all tokens of the padding store to slot 0."""
    column = tl.arange(0, BLOCK)
    slot = tl.load(slots + tl.program_id(0))
    tl.store(table + slot * width + column, tl.program_id(0) * 1000 + column, mask=column < width)


@triton.jit
def windows(table, step, count, BLOCK: tl.constexpr):
    """Sliding windows, each over half of the one before."""
    lane = tl.program_id(0) * step + tl.arange(0, BLOCK)
    tl.store(table + lane, lane + tl.program_id(0), mask=lane < count)


@triton.jit
def split(table, width, BLOCK: tl.constexpr):
    """Two programs for each row add their parts, past the end of the row, too."""
    column = tl.arange(0, BLOCK)
    tl.atomic_add(table + tl.program_id(0) // 2 * width + column, column + 1, mask=column < width + 8)


@triton.jit
def last_one_finishes(table, done, width, rows, BLOCK: tl.constexpr):
    """Flat blocks; the program that is done last goes over the table row by row."""
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(table + lane, lane, mask=lane < rows * width)
    if tl.atomic_add(done, 1) == tl.num_programs(0) - 1:
        for row in range(rows):
            column = tl.arange(0, BLOCK)
            tl.store(table + row * width + column, row * 1000 - column, mask=column < width)
        tl.store(done, 0)


@triton.jit
def two_passes(table, width, rows, BLOCK: tl.constexpr):
    """Each program stores its rows, then stores them once more, scaled."""
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        column = tl.arange(0, BLOCK)
        value = row * 1000 + column
        tl.store(table + row * width + column, value, mask=column < width)
        tl.store(table + row * width + column, value * 2, mask=column < width)


@triton.jit
def heads_twice(table, width, rows, BLOCK: tl.constexpr):
    """Two programs for each row: both store its first element, one of them the rest as well."""
    row = tl.program_id(0) // 2
    column = tl.arange(0, BLOCK)
    part = tl.program_id(0) % 2
    tl.store(table + row * width + column, part * 7 + column, mask=(column < width) & ((part == 0) | (column == 0)))
