"""What is declared of sglang's inputs: by their names alone, or by what their slots say."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import shadowgraph as sg
from shadowgraph.common.errors import UnknownBufferError
from shadowgraph.integrations.sglang.padding import (
    declare_draft_padding,
    declare_padding,
    declare_registry,
    judge_padding,
)


class Taker:
    def __init__(self) -> None:
        self.periods: list[tuple[int, str]] = []

    def padding(self, tensor: torch.Tensor, policy: str) -> None:
        if tensor.is_meta:
            raise UnknownBufferError("on another device")
        self.periods.append((tensor.data_ptr(), policy))

    def keeps_rows(self, tensor: torch.Tensor) -> None:
        self.periods.append((tensor.data_ptr(), "kept"))


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
    assert taker.periods == [(each.data_ptr(), "kept") for each in (ids, starts, hidden)]


def test_what_drafts_keep_on_purpose() -> None:
    """Of the inputs of ``EAGLEDraftExtendCudaGraphRunner`` in 0.5.12; lengths and slots are not declared."""
    ids, hidden, slots, lens = (torch.ones(4) for _ in range(4))
    buffers = SimpleNamespace(input_ids=ids, hidden_states=hidden, out_cache_loc=slots, seq_lens=lens, positions=lens)
    taker = Taker()
    assert declare_draft_padding(taker, buffers) == ("input_ids", "hidden_states")
    assert taker.periods == [(each.data_ptr(), "kept") for each in (ids, hidden)]
    assert declare_padding(Taker(), buffers) == ("input_ids",), "of a target model they are left to be judged"


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
        "keep_pad": "kept",
        "fill_sentinel": "judged",
        "zero": "judged",
        "foreach_copy": "kept",
        "fill_once": "kept",
    }


class DraftExtension:
    """The inputs of ``EAGLEDraftExtendCudaGraphRunner`` (0.5.12), refreshed as its ``replay`` does."""

    def __init__(self, debugger: sg.Debugger, forgotten: str = "") -> None:
        self.forgotten = forgotten
        with debugger.guard():
            self.input_ids, self.positions, self.out_cache_loc = (torch.zeros(8, dtype=torch.int64) for _ in range(3))
            self.hidden_states = torch.zeros(8, 4, dtype=torch.bfloat16)
        debugger.name("draft_extend.buffers", self)
        self.graph = sg.HostGraph()
        with sg.host_graph(self.graph):
            ids = self.input_ids + self.positions + self.out_cache_loc
            self.out = self.hidden_states.sum(1) + ids

    def replay(self, tokens: int) -> None:
        for name in ("out_cache_loc", "positions"):
            if tokens < 8 and name != self.forgotten:
                getattr(self, name).zero_()
        source = torch.arange(tokens) + 40
        for buffer in (self.input_ids, self.out_cache_loc, self.positions):
            buffer[:tokens].copy_(source)
        self.hidden_states[:tokens].copy_(source[:, None] * torch.ones(4))
        self.graph.replay()


@pytest.mark.parametrize("forgotten", ["", "out_cache_loc", "positions"])
@pytest.mark.parametrize("declared", [False, True])
def test_padded_tokens_of_a_draft(forgotten: str, declared: bool) -> None:
    with sg.debug() as debugger:
        runner = DraftExtension(debugger, forgotten)
        if declared:
            declare_draft_padding(debugger.adapter, runner)
        for tokens in (8, 3):
            runner.replay(tokens)
        names = {found.buffer.name.removeprefix("draft_extend.buffers.") for found in debugger.findings}
        assert {found.code for found in debugger.findings} <= {"SG103"}
    kept = set() if declared else {"input_ids", "hidden_states"}
    assert names == kept | ({forgotten} if forgotten else set())


@pytest.mark.parametrize("whole", [True, False])
def test_kept_rows_still_count_where_they_hold_requests(whole: bool) -> None:
    """That no value of the whole input matters says too much: a result of its first rows depends on them."""
    with sg.debug(undefined=True) as debugger:
        with debugger.guard():
            embeds = torch.zeros(8, 4)
        debugger.name("decode.buffers", {"input_embeds": embeds})
        buffers = SimpleNamespace(input_embeds=embeds)
        if whole:
            debugger.padding(embeds, "dont_care")
        else:
            assert declare_padding(debugger.adapter, buffers) == ("input_embeds",)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            sums = embeds.sum(1)
        for _ in range(3):
            embeds[:3].fill_(2)
            graph.replay()
            sums[:3].tolist()
        assert [found.code for found in debugger.findings] == (["SG107"] if whole else [])
