"""Kernels that access their arguments in various ways. Run as a script, it compiles them for a Hopper GPU, which that
needs not, and prints their code and their arguments.
"""

from __future__ import annotations

import json
from typing import Any

import triton
import triton.language as tl

POINTERS = {"x", "y", "out", "indices", "cache", "rows", "values", "length", "told", "counts", "table"}  # to int32


def add(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


def gather(x, indices, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    places = tl.load(indices + at, mask=at < n)
    tl.store(out + at, tl.load(x + places, mask=at < n), mask=at < n)


def store_rows(cache, rows, values, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.load(rows + tl.program_id(0))
    at = tl.arange(0, BLOCK)
    tl.store(cache + row * n + at, tl.load(values + tl.program_id(0) * n + at))


def fill_from(out, start, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + start + at, at, mask=at < n)


def fill_to_length(out, length, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    tl.store(out + at, at, mask=at < tl.load(length))


def fill_if_told(out, told, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    if tl.load(told) > 0:
        tl.store(out + tl.arange(0, BLOCK), 1)


def count(counts, values, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.atomic_add(counts + tl.load(values + tl.arange(0, BLOCK)), 1)


def sums(x, out, n, stride, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    place = x + row * stride + at
    for _ in range(0, n, BLOCK):
        total += tl.load(place)
        place += BLOCK
    tl.store(out + row, tl.sum(total))


def chain(x, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Each place is loaded from the one before."""
    place = tl.program_id(0)
    for _ in range(n):
        place = tl.load(x + place)
    tl.store(out + tl.program_id(0), place)


def waiting(out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.extra.cuda.gdc_wait()
    tl.store(out + tl.arange(0, BLOCK), 1)


def releasing(out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.extra.cuda.gdc_launch_dependents()
    tl.store(out + tl.arange(0, BLOCK), 1)


def early(x, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    if tl.program_id(0) >= n:
        return
    tl.store(out + tl.program_id(0) * BLOCK + at, tl.load(x + at))


def early_by_value(x, out, length, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    if tl.program_id(0) >= tl.load(length):
        return
    tl.store(out + tl.program_id(0) * BLOCK + at, tl.load(x + at))


def early_twice(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The first returns in a branch, with a loop; the second one in both halves of another."""
    place, at = x, tl.arange(0, BLOCK)
    if tl.program_id(0) == 0:
        for begin in range(0, n, BLOCK):
            tl.store(out + begin + at, 0)
        return
    if n > 3:
        place = y
        if tl.program_id(0) == 1:
            return
    tl.store(out + tl.program_id(0) * BLOCK + at, tl.load(place + at))


def bisect(x, counts, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Finds a row by a while loop, as attention over sequences of several lengths does."""
    left, right = 0, n
    while left < right:
        middle = (left + right) // 2
        if tl.load(counts + middle) <= tl.program_id(0):
            left = middle + 1
        else:
            right = middle
    tl.store(out + tl.program_id(0), tl.load(x + left))


def halve(x, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """A while loop that carries a pointer, and depends on no loaded value."""
    place, left = x, n
    total = tl.zeros((BLOCK,), tl.int32)
    while left > 0:
        total += tl.load(place + tl.arange(0, BLOCK))
        place += BLOCK
        left = left // 2
    tl.store(out + tl.arange(0, BLOCK), total)


def written_in_while(x, out, length, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place, left = out, tl.load(length)
    while left > 0:
        tl.store(place + tl.arange(0, BLOCK), tl.load(x + tl.arange(0, BLOCK)))
        place += BLOCK
        left -= 1


def while_from(out, start, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = start
    while at < n:
        tl.store(out + at + tl.arange(0, BLOCK), 1)
        at += BLOCK


def chosen_start(out, start, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.where(n > 3, start, tl.program_id(0) * BLOCK)
    tl.store(out + at + tl.arange(0, BLOCK), 1)


def for_from(out, start, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    for at in range(start + tl.program_id(0), n, 8):
        tl.store(out + at, 1)


def described(x, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    source = tl.make_tensor_descriptor(x, (n, BLOCK), (BLOCK, 1), (4, BLOCK))
    target = tl.make_tensor_descriptor(out, (n, BLOCK), (BLOCK, 1), (4, BLOCK))
    target.store([tl.program_id(0) * 4, 0], source.load([tl.program_id(0) * 4, 0]))


def described_at(out, rows, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    target = tl.make_tensor_descriptor(out, (n, BLOCK), (BLOCK, 1), (4, BLOCK))
    target.store([tl.load(rows), 0], tl.zeros((4, BLOCK), tl.int32))


def told_in_assembly(x, out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = x + tl.arange(0, BLOCK)
    text: tl.constexpr = "mov.b32 $0, 0; st.global.b32 [$1], 1; // a loc(b)"
    done = tl.inline_asm_elementwise(text, "=r,l", [place], tl.int32, False, 1)
    tl.store(out + tl.arange(0, BLOCK), done)


def from_a_table(x, out, table, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Stores to an argument, or to an address that was loaded."""
    place = tl.where(n > 3, x, tl.load(table).to(tl.int64).to(tl.pointer_type(tl.int32)))
    tl.store(place, 1)
    tl.store(out, 1)


@triton.jit(noinline=True)
def store_far(address):  # type: ignore[no-untyped-def]
    tl.store(address.to(tl.pointer_type(tl.int32)), 1)


def in_a_function(out, table, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    store_far(tl.load(table).to(tl.int64))
    tl.store(out, 1)


KERNELS = (
    add, gather, store_rows, fill_from, fill_to_length, fill_if_told, count, sums, chain, waiting, releasing,
    early, early_by_value, early_twice, bisect, halve, written_in_while, while_from, chosen_start, for_from, described,
    described_at, told_in_assembly, from_a_table, in_a_function,
)  # fmt: skip


def compiled(function: Any) -> tuple[dict[str, str], dict[str, str]]:
    """The code of a kernel, by stage, and the types of its arguments."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    kernel = JITFunction(function)
    names = [each for each in kernel.arg_names if each != "BLOCK"]
    signature = {name: "*i32" if name in POINTERS else "i32" for name in names} | {"BLOCK": "constexpr"}
    made = triton.compile(ASTSource(kernel, signature, {"BLOCK": 64}), target=GPUTarget("cuda", 90, 32))
    return {stage: made.asm[stage] for stage in ("ttir", "ptx")}, made.src.signature


if __name__ == "__main__":
    print(json.dumps({function.__name__: compiled(function) for function in KERNELS}))
