"""Block tables whose slots a Triton kernel maps, launched and padded as vLLM's."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
import vllm_runner as fakes


class BlockTable(fakes.BlockTable):
    def compute_slot_mapping(self, num_reqs: int, query_start_loc: torch.Tensor, positions: torch.Tensor) -> None:
        _compute_slot_mapping_kernel[(num_reqs + 1,)](
            positions.shape[0],
            self.slot_mapping.gpu.numel(),
            query_start_loc,
            positions,
            self.block_table.gpu,
            self.block_table.gpu.stride(0),
            self.block_size,
            self.slot_mapping.gpu,
            PAD_ID=-1,
            BLOCK_SIZE=1024,
        )


@triton.jit
def _compute_slot_mapping_kernel(
    num_tokens, max_num_tokens, starts, positions, table, stride, block_size, slots, PAD_ID: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0)
    if request == tl.num_programs(0) - 1:
        for i in range(num_tokens, max_num_tokens, BLOCK_SIZE):
            offsets = i + tl.arange(0, BLOCK_SIZE)
            tl.store(
                slots + offsets,
                PAD_ID,
                mask=offsets < max_num_tokens,
            )
        return
    start = tl.load(starts + request)
    end = tl.load(starts + request + 1)
    for i in range(start, end, BLOCK_SIZE):
        offsets = i + tl.arange(0, BLOCK_SIZE)
        position = tl.load(positions + offsets, mask=offsets < end, other=0)
        block = tl.load(table + request * stride + position // block_size).to(tl.int64)
        tl.store(slots + offsets, block * block_size + position % block_size, mask=offsets < end)
