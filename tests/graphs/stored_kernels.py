"""Kernels that `test_unwritten` compiles in a process of its own, for a GPU that need not be there."""

from __future__ import annotations

import json
import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from shadowgraph.model.kernel_code import KernelTextError, uses_of


@triton.jit
def loop(a, b, c, n, BLOCK: tl.constexpr):
    p = a
    for i in range(n):
        lane = i * BLOCK + tl.arange(0, BLOCK)
        tl.store(c + tl.load(b + lane, mask=lane < n), tl.load(p + lane))
        p += BLOCK


@triton.jit
def written_in_a_loop(a, b, c, n, BLOCK: tl.constexpr):
    p = b
    for _ in range(n):
        tl.store(p + tl.arange(0, BLOCK), tl.load(a + tl.load(c).to(tl.int32)).to(tl.int64))
        p += BLOCK


@triton.jit
def atomics(a, b, c, n, BLOCK: tl.constexpr):
    tl.atomic_add(b + tl.arange(0, BLOCK), tl.full((BLOCK,), 1, tl.int64))
    tl.atomic_xchg(c, tl.load(a))


@triton.jit
def choice(a, b, c, n, BLOCK: tl.constexpr):
    if n > 3:
        p = a
    else:
        p = c
    tl.store(p + tl.load(b), 1.0)


@triton.jit
def block_pointers(a, b, c, n, BLOCK: tl.constexpr):
    source = tl.make_block_ptr(a, (n, BLOCK), (BLOCK, 1), (0, 0), (4, BLOCK), (1, 0))
    target = tl.make_block_ptr(c, (n, BLOCK), (BLOCK, 1), (0, 0), (4, BLOCK), (1, 0))
    for _ in range(n):
        tl.store(target, tl.load(source, boundary_check=(0,)), boundary_check=(0,))
        source, target = tl.advance(source, (4, 0)), tl.advance(target, (4, 0))


@triton.jit
def descriptors(a, b, c, n, BLOCK: tl.constexpr):
    source = tl.make_tensor_descriptor(a, (n, BLOCK), (BLOCK, 1), (4, BLOCK))
    target = tl.make_tensor_descriptor(c, (n, BLOCK), (BLOCK, 1), (4, BLOCK))
    target.store([0, 0], source.load([0, 0]))


@triton.jit
def product(a, b, c, n, BLOCK: tl.constexpr):
    r = tl.arange(0, BLOCK)
    left, right = a + r[:, None] * BLOCK + r[None, :], b + r[:, None] * BLOCK + r[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for _ in range(n):
        total += tl.dot(tl.load(left), tl.load(right).to(tl.float32))
        left += BLOCK
        right += BLOCK
    tl.store(c + r[:, None] * BLOCK + r[None, :], total)


@triton.jit
def addresses(a, b, c, n, BLOCK: tl.constexpr):
    tl.store(tl.load(b).to(tl.pointer_type(tl.float32)), tl.load(a) + tl.load(c))


@triton.jit(noinline=True)
def helper(p):
    tl.store(p, 1.0)


@triton.jit
def called(a, b, c, n, BLOCK: tl.constexpr):
    helper(c)
    tl.load(a)


KERNELS = (
    *(loop, written_in_a_loop, atomics, choice, block_pointers, descriptors, product, addresses),
    called,
)


def compiled(kernel: triton.JITFunction) -> str:
    signature = {"a": "*fp32", "b": "*i64", "c": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    source = ASTSource(kernel, signature=signature, constexprs={"BLOCK": 32})
    text: str = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ttir"]
    return text


def stored_through(ttir: str) -> list[bool] | None:
    """Whether each pointer may be stored through; None where the code is not understood."""
    try:
        uses = uses_of(ttir, ("a", "b", "c", "n"))
    except KernelTextError:
        return None
    return [uses[name].stores for name in ("a", "b", "c")]


if __name__ == "__main__":
    json.dump({kernel.fn.__name__: stored_through(compiled(kernel)) for kernel in KERNELS}, sys.stdout)
