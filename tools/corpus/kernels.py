"""Triton kernels of the programs: none writes outside of what it is given, but `overrun` where it is told to."""

import triton
import triton.language as tl


@triton.jit
def axpy(x, y, out, n, scale, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < n
    tl.store(out + at, tl.load(x + at, mask=keep) * scale + tl.load(y + at, mask=keep), mask=keep)


@triton.jit
def softmax_rows(x, out, stride_x, stride_out, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    keep = at < cols
    v = tl.load(x + row * stride_x + at, mask=keep, other=-float("inf"))
    v = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * stride_out + at, v / tl.sum(v, axis=0), mask=keep)


@triton.jit
def fill_indices(indptr, table, out, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    first = tl.load(indptr + row)
    count = tl.load(indptr + row + 1) - first
    for start in range(tl.cdiv(count, BLOCK)):
        at = start * BLOCK + tl.arange(0, BLOCK)
        keep = at < count
        tl.store(out + first + at, tl.load(table + row * stride + at, mask=keep), mask=keep)


@triton.jit
def store_kv(k, cache, slots, width, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    at = tl.arange(0, BLOCK)
    keep = at < width
    tl.store(cache + slot * stride + at, tl.load(k + row * width + at, mask=keep), mask=keep)


@triton.jit
def count_up(counter, hits, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(hits + at, mask=at < n, other=0)
    tl.atomic_add(counter, tl.sum(v, axis=0))


@triton.jit
def transpose(x, out, rows, cols, B: tl.constexpr):
    r = tl.program_id(0) * B + tl.arange(0, B)
    c = tl.program_id(1) * B + tl.arange(0, B)
    keep = (r[:, None] < rows) & (c[None, :] < cols)
    v = tl.load(x + r[:, None] * cols + c[None, :], mask=keep)
    tl.store(out + c[None, :] * rows + r[:, None], v, mask=keep)


@triton.jit(do_not_specialize=["start"])
def overrun(target, start, extra, BLOCK: tl.constexpr):
    """Store as many bytes behind ``target[:start]`` as memory says: with 0 it is as clean as the rest."""
    lane = tl.arange(0, BLOCK)
    tl.store(target + start + lane, (lane * 37 + 91).to(tl.uint8), mask=lane < tl.load(extra))
