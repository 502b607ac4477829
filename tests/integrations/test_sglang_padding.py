"""What is declared of sglang's inputs, by their names alone."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from shadowgraph.integrations.sglang_padding import declare_padding


class Taker:
    def __init__(self) -> None:
        self.taken: list[tuple[int, str]] = []

    def padding(self, tensor: torch.Tensor, policy: str) -> None:
        self.taken.append((tensor.data_ptr(), policy))


def test_what_sglang_keeps_on_purpose() -> None:
    ids, hidden, starts, slots = (torch.ones(4) for _ in range(4))
    buffers = SimpleNamespace(
        input_ids=ids,
        input_embeds=torch.empty(0, 8),
        req_pool_indices=slots,
        encoder_lens=None,
        pp_proxy_tensors={"hidden_states": hidden},
        ngram_embedding_info=SimpleNamespace(column_starts=starts, width=3),
    )
    taker = Taker()
    declared = declare_padding(taker, buffers)
    assert declared == ("input_ids", "ngram_embedding_info.column_starts", "pp_proxy_tensors.hidden_states")
    assert taker.taken == [(each.data_ptr(), "dont_care") for each in (ids, starts, hidden)]
