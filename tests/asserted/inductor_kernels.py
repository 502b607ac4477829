"""Kernels as inductor writes them for indices that it asserts, in its own form."""

# ruff: noqa
# fmt: off

from __future__ import annotations

import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers


@triton.jit
def _triton_helper_fn_add0(arg0_0, arg1_0):
    tmp0 = arg0_0 + arg1_0
    return tmp0


@triton.jit
def triton_red_fused_cumsum_scatter_1(in_ptr0, out_ptr1, ks0, ks1, ks2, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    rbase = r0_base
    x0 = xindex
    tmp18 = tl.full([XBLOCK, 1], -1, tl.int64)
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_1 = r0_index
        tmp26 = tl.load(in_ptr0 + (r0_1 + ks0*x0), r0_mask & xmask, eviction_policy='evict_first', other=0.0)
        tmp0 = r0_1
        tmp1 = tl.full([1, 1], 1, tl.int64)
        tmp2 = tmp0 >= tmp1
        tmp3 = tl.load(in_ptr0 + (r0_1 + ks0*x0), r0_mask & tmp2 & xmask, eviction_policy='evict_last', other=0.0)
        tmp4 = tl.broadcast_to(ks1, [XBLOCK, R0_BLOCK])
        tmp5 = tl.where((tmp3 < 0) != (tmp4 < 0), tl.where(tmp3 % tmp4 != 0, tmp3 // tmp4 - 1, tmp3 // tmp4), tmp3 // tmp4)
        tmp6 = tmp5.to(tl.int32)
        tmp7 = tl.load(in_ptr0 + ((-1) + r0_1 + ks0*x0), r0_mask & tmp2 & xmask, eviction_policy='evict_last', other=0.0)
        tmp8 = tl.where((tmp7 < 0) != (tmp4 < 0), tl.where(tmp7 % tmp4 != 0, tmp7 // tmp4 - 1, tmp7 // tmp4), tmp7 // tmp4)
        tmp9 = tmp8.to(tl.int32)
        tmp10 = tmp6 != tmp9
        tmp11 = tl.full(tmp10.shape, 0, tmp10.dtype)
        tmp12 = tl.where(tmp2, tmp10, tmp11)
        tmp13 = tl.full([1, 1], True, tl.int1)
        tmp14 = tl.where(tmp2, tmp12, tmp13)
        tmp15 = tmp14.to(tl.int64)
        tmp16 = tmp15.to(tl.int64)
        tmp17 = tl.broadcast_to(tmp16, [XBLOCK, R0_BLOCK])
        tmp19, = tl.associative_scan((tmp17,), 1, _triton_helper_fn_add0)
        tmp20 = triton_helpers.select_one((tmp19), rbase == (RBLOCK - 1), dim=-1, keep_dims=True)
        tmp21 = tmp18 + tmp20
        tmp22 = tmp18 + tmp19
        tmp23 = tl.where(roffset > 0, tmp22, tmp19)
        tmp18 = tl.where(roffset > 0, tmp21, tmp20)
        tmp24 = tmp23 - tmp1
        tl.device_assert(((0 <= tmp24) & (tmp24 < ks2)) | ~(r0_mask & xmask), "index out of bounds: 0 <= tmp24 < ks2")
        tmp27 = ks1
        tmp28 = tl.where((tmp26 < 0) != (tmp27 < 0), tl.where(tmp26 % tmp27 != 0, tmp26 // tmp27 - 1, tmp26 // tmp27), tmp26 // tmp27)
        tmp29 = tmp28.to(tl.int32)
        tl.store(out_ptr1 + (tl.broadcast_to(tmp24 + ks2*x0, [XBLOCK, R0_BLOCK])), tmp29, r0_mask & xmask)


@triton.jit
def triton_per_fused_cumsum_0(in_ptr0, out_ptr1, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 2
    r0_numel = 5
    R0_BLOCK: tl.constexpr = 8
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (r0_1 + 5*x0), r0_mask & xmask, other=0.0)
    tmp1 = tmp0.to(tl.int64)
    tmp2 = tl.broadcast_to(tmp1, [XBLOCK, R0_BLOCK])
    tmp3, = tl.associative_scan((tmp2,), 1, _triton_helper_fn_add0)
    tmp4 = tl.full([1, 1], 1, tl.int64)
    tmp19 = tmp3 - tmp4
    tl.device_assert(((0 <= tmp19) & (tmp19 < 2)) | ~(r0_mask & xmask), "index out of bounds: 0 <= tmp19 < 2")
    tl.store(out_ptr1 + (tl.broadcast_to(tmp19 + 2*x0, [XBLOCK, R0_BLOCK])), tmp0, r0_mask & xmask)


@triton.jit
def triton_poi_fused_index_0(in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x1 = xindex // 3
    x0 = (xindex % 3)
    x2 = xindex
    tmp0 = tl.load(in_ptr0 + (x1), xmask, eviction_policy='evict_last')
    tmp1 = tl.full([XBLOCK], 10, tl.int32)
    tmp2 = tmp0 + tmp1
    tmp3 = tmp0 < 0
    tmp4 = tl.where(tmp3, tmp2, tmp0)
    tl.device_assert(((0 <= tmp4) & (tmp4 < 10)) | ~(xmask), "index out of bounds: 0 <= tmp4 < 10")
    tmp6 = tl.load(in_ptr1 + (x0 + 3*tmp4), xmask)
    tl.store(out_ptr0 + (x2), tmp6, xmask)


@triton.jit
def triton_poi_fused_whole_0(in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0), None)
    tl.device_assert(tmp0 < 4, "index out of bounds: tmp0 < 4")
    tmp6 = tl.load(in_ptr1 + (tmp0), None)
    tl.store(out_ptr0 + (x0), tmp6, None)


@triton.jit
def triton_poi_fused_sort_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0), xmask)
    tmp1 = tl.sort(tmp0)
    tl.device_assert((tmp1 < 2) | ~(xmask), "index out of bounds: tmp1 < 2")
    tl.store(out_ptr0 + (tmp1), tmp0, xmask)


@triton.jit
def triton_poi_fused_rewritten_0(in_out_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = xindex
    tmp0 = tl.load(in_out_ptr0 + (x0), xmask)
    tl.store(in_out_ptr0 + (x0), tmp0 - 8, xmask)
    tmp1 = tl.load(in_out_ptr0 + (x0), xmask)
    tl.device_assert((tmp1 < 2) | ~(xmask), "index out of bounds: tmp1 < 2")
    tl.store(out_ptr0 + (tmp1), tmp0, xmask)


@triton.jit
def triton_poi_fused_persistent_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    pid = tl.program_id(0)
    xoffset = (pid - 1) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    tmp0 = tl.load(in_ptr0 + (xindex), xmask)
    tl.device_assert((tmp0 < 2) | ~(xmask), "index out of bounds: tmp0 < 2")
    tl.store(out_ptr0 + (tmp0), tmp0, xmask)


@triton.jit
def triton_poi_fused_copy_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0), xmask)
    tl.store(out_ptr0 + (x0), tmp0, xmask)


@triton.jit
def triton_poi_fused_add_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0), xmask)
    tmp1 = tmp0 + 1
    tl.store(out_ptr0 + (x0), tmp1, xmask)
