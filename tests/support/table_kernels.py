"""A kernel that is given the addresses of what it writes."""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = 16


@triton.jit
def fill_behind(addresses, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Number the first elements of the buffer whose address is a word of the table."""
    out = tl.load(addresses + tl.program_id(0)).to(tl.pointer_type(tl.int32))
    at = tl.arange(0, BLOCK)
    tl.store(out + at, at, mask=at < count)
