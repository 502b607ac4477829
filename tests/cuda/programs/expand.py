"""sglang's own FA3 metadata for EAGLE with pages: a branch needs three columns of a page table that has two."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import torch

from shadowgraph.demos.sglang.load import load

TOPK, PAGE, STEPS = 2, 2, 5


class Backend:
    """As `FlashAttentionBackend` has it for one request at step 0."""

    def __init__(self) -> None:
        self.metadata_expand = SimpleNamespace(
            cache_seqlens_int32=torch.zeros(TOPK, dtype=torch.int32, device="cuda"),
            page_table=torch.zeros(TOPK, 2, dtype=torch.int32, device="cuda"),
        )
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.pages = self.metadata_expand.page_table.sum(1)

    def replay_preparation(self, seq_len: int, steps: int) -> None:
        start = seq_len % PAGE
        slots = [[100 * branch + start + step for step in range(steps)] for branch in range(TOPK)]
        expand(
            cache_seqlens_int32=self.metadata_expand.cache_seqlens_int32,
            page_table=self.metadata_expand.page_table,
            last_page_lens=torch.tensor([start], dtype=torch.int32, device="cuda"),
            decode_length=1,
            cache_loc=torch.tensor(slots, device="cuda"),
            topk=TOPK,
            page_size=PAGE,
        )


if sys.argv[1] == "eager":
    torch.compiler.set_stance("force_eager")
expand = load("sglang.srt.layers.attention.flashattention_backend").draft_decode_set_expand_metadata
backend = Backend()
backend.replay_preparation(8, 2)  # an even length and two steps: one page
backend.graph.replay()
torch.cuda.synchronize()
print("first step done", flush=True)
backend.replay_preparation(7, STEPS)
backend.graph.replay()
torch.cuda.synchronize()
