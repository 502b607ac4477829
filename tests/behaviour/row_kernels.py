"""Triton kernels that fill the rows of a table, each in another way. Import after `enable_interpreter`.

Row r gets ``lens[r]`` entries of value ``1000 * r + column``; with `BOUNDED` as many as it has room for. Those with
`BOUNDED` false are wrong for rows that are longer than the table is wide.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def put(table, lens, row, column, width, BOUNDED: tl.constexpr):
    """Store some columns of one row."""
    mask = column < tl.load(lens + row)
    if BOUNDED:
        mask = mask & (column < width)
    tl.store(table + row * width + column, row * 1000 + column, mask=mask)


@triton.jit
def rows_first(table, lens, width, rows, blocks, BOUNDED: tl.constexpr, BLOCK: tl.constexpr):
    """A flat grid: the first blocks of all rows, then the second ones."""
    row, block = tl.program_id(0) % rows, tl.program_id(0) // rows
    put(table, lens, row, block * BLOCK + tl.arange(0, BLOCK), width, BOUNDED)


@triton.jit
def blocks_first(table, lens, width, rows, blocks, BOUNDED: tl.constexpr, BLOCK: tl.constexpr):
    """A flat grid: all blocks of a row, then those of the next."""
    row, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    put(table, lens, row, block * BLOCK + tl.arange(0, BLOCK), width, BOUNDED)


@triton.jit
def backwards(table, lens, width, rows, blocks, BOUNDED: tl.constexpr, BLOCK: tl.constexpr):
    """A flat grid, from the last row to the first."""
    row, block = rows - 1 - tl.program_id(0) // blocks, tl.program_id(0) % blocks
    put(table, lens, row, block * BLOCK + tl.arange(0, BLOCK), width, BOUNDED)


@triton.jit
def swizzled(table, lens, width, rows, blocks, BOUNDED: tl.constexpr, BLOCK: tl.constexpr):
    """A flat grid in groups of two rows, as matrix products order their tiles for the cache."""
    index = tl.program_id(0)
    group = index // (2 * blocks)
    row = group * 2 + index % 2
    block = (index % (2 * blocks)) // 2
    put(table, lens, row, block * BLOCK + tl.arange(0, BLOCK), width, BOUNDED)


@triton.jit
def persistent_rows(table, lens, width, rows, blocks, BOUNDED: tl.constexpr, BLOCK: tl.constexpr):
    """Each program takes every n-th row, block by block."""
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        for block in range(blocks):
            put(table, lens, row, block * BLOCK + tl.arange(0, BLOCK), width, BOUNDED)


@triton.jit
def persistent_tiles(table, lens, width, rows, blocks, BOUNDED: tl.constexpr, BLOCK: tl.constexpr):
    """Each program takes every n-th block of the table."""
    for tile in range(tl.program_id(0), rows * blocks, tl.num_programs(0)):
        put(table, lens, tile // blocks, (tile % blocks) * BLOCK + tl.arange(0, BLOCK), width, BOUNDED)


@triton.jit
def persistent_columns(table, lens, width, rows, blocks, BOUNDED: tl.constexpr, BLOCK: tl.constexpr):
    """Each program takes every n-th block of the table, which are counted down the rows first."""
    for tile in range(tl.program_id(0), rows * blocks, tl.num_programs(0)):
        put(table, lens, tile % rows, (tile // rows) * BLOCK + tl.arange(0, BLOCK), width, BOUNDED)


@triton.jit
def chunks(table, lens, width, rows, blocks, BOUNDED: tl.constexpr, BLOCK: tl.constexpr):
    """Each program takes some rows that follow each other."""
    each = (rows + tl.num_programs(0) - 1) // tl.num_programs(0)
    for place in range(each):
        row = tl.program_id(0) * each + place
        if row < rows:
            for block in range(blocks):
                put(table, lens, row, block * BLOCK + tl.arange(0, BLOCK), width, BOUNDED)


@triton.jit
def one_program_down(table, lens, width, rows, blocks, BOUNDED: tl.constexpr, BLOCK: tl.constexpr):
    """One program takes all rows, the last one first, so that each row overwrites the one that it has stored before."""
    for place in range(rows):
        for block in range(blocks):
            put(table, lens, rows - 1 - place, block * BLOCK + tl.arange(0, BLOCK), width, BOUNDED)


@triton.jit
def listed(table, lens, width, rows, blocks, BOUNDED: tl.constexpr, BLOCK: tl.constexpr):
    """Each program takes the row that a permutation gives it."""
    row = (tl.program_id(0) * 5 + 3) % rows
    for block in range(blocks):
        put(table, lens, row, block * BLOCK + tl.arange(0, BLOCK), width, BOUNDED)


@triton.jit
def tiles(table, lens, width, rows, blocks, BOUNDED: tl.constexpr, BLOCK: tl.constexpr):
    """A flat grid of tiles of two rows."""
    row = (tl.program_id(0) // blocks) * 2 + tl.arange(0, 2)[:, None]
    column = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = column < tl.load(lens + row)
    if BOUNDED:
        mask = mask & (column < width)
    tl.store(table + row * width + column, row * 1000 + column, mask=mask)


@triton.jit
def tall_tiles(table, lens, width, rows, blocks, BOUNDED: tl.constexpr, BLOCK: tl.constexpr):
    """A persistent loop over tiles of two rows, whose elements are numbered down the rows first."""
    for tile in range(tl.program_id(0), (rows // 2) * blocks, tl.num_programs(0)):
        row = (tile // blocks) * 2 + tl.arange(0, 2)[None, :]
        column = (tile % blocks) * BLOCK + tl.arange(0, BLOCK)[:, None]
        mask = column < tl.load(lens + row)
        if BOUNDED:
            mask = mask & (column < width)
        tl.store(table + row * width + column, row * 1000 + column, mask=mask)


@triton.jit
def pairs(table, lens, width, rows, blocks, BOUNDED: tl.constexpr, BLOCK: tl.constexpr):
    """A persistent loop over rows, even and odd columns by a store of their own, as rotary embeddings are written."""
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        for block in range(blocks):
            half = block * BLOCK + tl.arange(0, BLOCK // 2) * 2
            put(table, lens, row, half, width, BOUNDED)
            put(table, lens, row, half + 1, width, BOUNDED)


@triton.jit
def blocked_pointers(table, lens, width, rows, blocks, BOUNDED: tl.constexpr, BLOCK: tl.constexpr):
    """A persistent loop over rows by block pointers, of which only bounded ones heed the end of a row."""
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        for block in range(tl.cdiv(tl.load(lens + row), BLOCK)):
            place = tl.make_block_ptr(table, (rows, width), (width, 1), (row, block * BLOCK), (1, BLOCK), (1, 0))
            value = (row * 1000 + block * BLOCK + tl.arange(0, BLOCK)).to(tl.int32)[None, :]
            if BOUNDED:
                tl.store(place, value, boundary_check=(0, 1))
            else:
                tl.store(place, value)
