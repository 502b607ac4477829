"""What is declared of sglang's inputs: by their names alone, or by what their slots say."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from shadowgraph.common.errors import UnknownBufferError
from shadowgraph.integrations.sglang.padding import declare_padding, declare_registry, judge_padding


class Taker:
    def __init__(self) -> None:
        self.periods: list[tuple[int, str]] = []

    def padding(self, tensor: torch.Tensor, policy: str) -> None:
        if tensor.is_meta:
            raise UnknownBufferError("on another device")
        self.periods.append((tensor.data_ptr(), policy))


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
    assert taker.periods == [(each.data_ptr(), "dont_care") for each in (ids, starts, hidden)]


def test_what_sglang_resets() -> None:
    slots, lens, mask = (torch.ones(4, dtype=torch.int64) for _ in range(3))
    buffers = SimpleNamespace(
        req_pool_indices=slots, seq_lens=lens, out_cache_loc_swa=None, custom_mask=mask, input_ids=mask, positions=None
    )
    taker = Taker()
    assert judge_padding(taker, buffers) == ("req_pool_indices", "seq_lens")
    assert taker.periods == [(slots.data_ptr(), "judged"), (lens.data_ptr(), "judged")]


def test_what_the_slots_of_a_registry_say() -> None:
    """The surface of ``CudaGraphBufferRegistry`` in 0.5.13: names of enabled slots, and each slot by its name."""
    policies = ["KEEP_PAD", "FILL_SENTINEL", "ZERO", "FOREACH_COPY", "FILL_ONCE"]
    slots = {
        name.lower(): SimpleNamespace(buffer=torch.ones(4), padding_policy=SimpleNamespace(name=name))
        for name in policies
    }
    slots["elsewhere"] = SimpleNamespace(
        buffer=torch.ones(4, device="meta"), padding_policy=SimpleNamespace(name="ZERO")
    )
    slots["unallocated"] = SimpleNamespace(buffer=None, padding_policy=SimpleNamespace(name="ZERO"))
    registry = SimpleNamespace(slot_names=lambda: list(slots), get_slot=slots.__getitem__)
    taker = Taker()
    assert declare_registry(taker, registry) == tuple(name.lower() for name in policies)
    said = dict(zip([name.lower() for name in policies], [policy for _, policy in taker.periods], strict=True))
    assert said == {
        "keep_pad": "dont_care",
        "fill_sentinel": "judged",
        "zero": "judged",
        "foreach_copy": "dont_care",
        "fill_once": "dont_care",
    }
