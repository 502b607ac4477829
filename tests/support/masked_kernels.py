"""Kernels that select rows themselves."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store_live(cache, slots, values, live):  # type: ignore[no-untyped-def]
    """Store a value at the slot of each row that is live."""
    row = tl.program_id(0)
    is_live = row < tl.load(live)
    slot = tl.load(slots + row)
    tl.store(cache + slot, tl.load(values + row).to(tl.float32), mask=is_live)
