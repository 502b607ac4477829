"""Decode-time buffers of sglang: aiter's index buffer, and the graph runner's static inputs on the CPU or on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shadowgraph.demos.sglang.load import ITEM_BYTES, check_lengths, forward_batch, load, token_pool


class AiterKvIndices:
    """The decode index buffer of the real ``AiterAttnBackend``: allocated by pages, filled by tokens.

    The backend is created without its ``__init__``, which needs a process group and a model; the attributes that its
    graph methods read are set directly. Both methods then run unmodified.

    Parameters
    ----------
    max_bs : int
        Maximum number of requests in a batch.
    ctx : int
        Maximum context length, in tokens.
    page : int
        Tokens per KV page.
    device : torch.device or str
        The CPU or a CUDA device; the backend is AMD's, but neither its sizes nor its kernel depend on that.

    Attributes
    ----------
    backend : AiterAttnBackend
        sglang's object. ``backend.cuda_graph_kv_indices`` is int32, 1-D, once allocated.
    """

    def __init__(self, max_bs: int, ctx: int, page: int, device: torch.device | str = "cpu") -> None:
        if min(max_bs, ctx, page) < 1:
            raise ValueError("max_bs, ctx and page must be at least 1")
        self.max_bs, self.ctx, self.page, self.device = max_bs, ctx, page, torch.device(device)
        cls = load("sglang.srt.layers.attention.aiter_backend").AiterAttnBackend
        self.backend: Any = cls.__new__(cls)
        vars(self.backend).update(
            device=str(self.device),
            page_size=page,
            max_context_len=ctx,
            skip_prefill=True,
            use_mla=False,
            use_sliding_window_kv_pool=False,
            use_triton_unified_attention=False,
            req_to_token=token_pool(max_bs, ctx, self.device).req_to_token,
            kv_indptr=torch.zeros(max_bs + 1, dtype=torch.int32, device=self.device),
        )

    @property
    def page_entries(self) -> int:
        """Number of entries that sglang allocates: one per page."""
        return self.max_bs * -(-self.ctx // self.page)

    def allocate(self, fixed: bool = False) -> None:
        """Let sglang allocate its static buffers; with ``fixed``, the index buffer has one entry per token instead."""
        entries = self.page_entries * self.page
        buffer = torch.zeros(entries, dtype=torch.int32, device=self.device) if fixed else None
        self.backend.init_cuda_graph_state(self.max_bs, self.max_bs, kv_indices_buf=buffer)

    def fill(self, seq_lens: Sequence[int]) -> None:
        """Fill the index buffer as sglang does just before a replay; one length, at most ``ctx``, per request.

        Writes `bytes_past_end` bytes past the end of the buffer.
        """
        check_lengths(seq_lens, self.max_bs, self.ctx)
        batch = forward_batch(seq_lens, device=self.device)
        self.backend.init_forward_metadata_replay_cuda_graph(
            batch.batch_size,
            batch.req_pool_indices,
            batch.seq_lens,
            batch.seq_lens_sum,
            encoder_lens=None,
            forward_mode=batch.forward_mode,
            spec_info=None,
            seq_lens_cpu=batch.seq_lens_cpu,
        )

    def bytes_past_end(self, seq_lens: Sequence[int]) -> int:
        """Bytes that `fill` writes past the end of the buffer; computed, not measured."""
        buffer: torch.Tensor | None = getattr(self.backend, "cuda_graph_kv_indices", None)
        entries = self.page_entries if buffer is None else buffer.numel()
        return ITEM_BYTES * max(0, sum(seq_lens) - entries)

    def expected(self, seq_lens: Sequence[int]) -> torch.Tensor:
        """The correct contents of the buffer: int32, ``(sum(seq_lens),)``, the tokens of each request in turn."""
        return torch.cat([self.backend.req_to_token[slot, :n] for slot, n in enumerate(seq_lens, start=1)])


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """One request of a decode step: the input token, the request's pool slot, and its length with that token."""

    input_id: int
    req_pool_index: int
    seq_len: int


class PaddedDecode:
    """The real ``DecodeInputBuffers`` of sglang's graph runner, refreshed before each replay.

    Parameters
    ----------
    max_bs : int
        Number of rows of every buffer.
    fixed : bool
        Zero the inputs that later versions zero before a padded step: ``req_pool_indices`` and ``positions``.
    device : torch.device or str
        Device of the buffers; ``seq_lens_cpu`` stays on the host.

    Attributes
    ----------
    buffers : DecodeInputBuffers
        sglang's object. ``input_ids``, ``req_pool_indices``, ``positions`` and ``out_cache_loc`` are int64 and
        ``seq_lens`` is int32, all ``(max_bs,)``.
    """

    def __init__(self, max_bs: int, *, fixed: bool = False, device: torch.device | str = "cpu") -> None:
        self.max_bs, self.fixed, self.device = max_bs, fixed, torch.device(device)
        cls = load("sglang.srt.model_executor.cuda_graph_runner").DecodeInputBuffers
        self.buffers: Any = cls.create(
            device=self.device,
            max_bs=max_bs,
            max_num_token=max_bs,
            hidden_size=8,
            vocab_size=16,
            dtype=torch.float32,
            dp_size=1,
            pp_size=1,
            is_encoder_decoder=False,
            require_mlp_tp_gather=False,
            seq_len_fill_value=1,
            encoder_len_fill_value=0,
            num_tokens_per_bs=1,
            cache_loc_dtype=torch.int64,
            enable_mamba_track=False,
        )

    def prepare(self, rows: Sequence[DecodeRow], padded_to: int | None = None) -> None:
        """Refresh the buffers for a replay of ``rows``, padded to a captured batch size (by default not padded).

        Rows ``len(rows)`` to ``padded_to - 1`` take part in the replay with the current contents of the buffers.
        """
        count = len(rows)
        padded = count if padded_to is None else padded_to
        if not 1 <= count <= padded <= self.max_bs:
            raise ValueError(f"{count} rows padded to {padded} do not fit a maximum of {self.max_bs}")
        batch = forward_batch(
            [row.seq_len for row in rows],
            device=self.device,
            input_ids=torch.tensor([row.input_id for row in rows], device=self.device),
            req_pool_indices=torch.tensor([row.req_pool_index for row in rows], device=self.device),
            positions=torch.tensor([row.seq_len - 1 for row in rows], device=self.device),
            out_cache_loc=torch.arange(1, count + 1, device=self.device),
        )
        if self.fixed and padded != count:
            self.buffers.req_pool_indices.zero_()
            self.buffers.positions.zero_()
        self.buffers.populate_from_forward_batch(
            forward_batch=batch,
            raw_bs=count,
            raw_num_token=count,
            bs=padded,
            seq_len_fill_value=1,
            require_gathered_buffer=False,
            num_tokens_per_bs=1,
            nsa_enable_prefill_cp=False,
            enable_num_token_non_padded_flag=False,
        )
