"""A Triton kernel that stores keys at slots. Import after `enable_interpreter`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store_keys(keys, slots, cache, DIM: tl.constexpr):
    """A token a program; no slot is below zero."""
    token = tl.program_id(0)
    slot = tl.load(slots + token)
    lane = tl.arange(0, DIM)
    tl.store(cache + slot * DIM + lane, tl.load(keys + token * DIM + lane), mask=(lane < DIM) & (slot >= 0))
