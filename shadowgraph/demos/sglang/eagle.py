"""Driver for the attention backend of sglang's EAGLE draft steps, on the CPU or on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from shadowgraph.demos.sglang.host_device import host_device
from shadowgraph.demos.sglang.load import ITEM_BYTES, check_lengths, forward_batch, load, token_pool


@dataclass(frozen=True, slots=True, eq=False)
class DraftPlan:
    """Arguments of a plan of one draft step's attention backend.

    Attributes
    ----------
    bs : int
        Number of requests.
    kv_indptr : torch.Tensor
        int32, ``(bs * topk + 1,)``: view of the step's row of ``backend.kv_indptr``.
    kv_indices : torch.Tensor
        int32: view of the step's row of ``backend.cuda_graph_kv_indices``, cut at the end of that row.
    """

    bs: int
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor


class PlanRecorder:
    """Replacement for ``FlashInferAttnBackend``: holds the buffers of one draft step and records the last plan.

    Attributes
    ----------
    cuda_graph_kv_indices : list of torch.Tensor
        The row that was passed in, in a list as in sglang.
    last_plan : DraftPlan or None
        Arguments of the latest capture or replay metadata call.
    """

    def __init__(
        self,
        model_runner: Any,
        skip_prefill: bool,
        kv_indptr_buf: torch.Tensor,
        kv_last_page_len_buf: torch.Tensor,
    ) -> None:
        self.max_context_len: int = model_runner.model_config.context_len
        self.skip_prefill = skip_prefill
        self.kv_indptr = kv_indptr_buf
        self.kv_last_page_len = kv_last_page_len_buf
        self.cuda_graph_kv_indices: list[torch.Tensor] = []
        self.last_plan: DraftPlan | None = None

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int, kv_indices_buf: torch.Tensor) -> None:
        self.cuda_graph_kv_indices = [kv_indices_buf]

    def init_forward_metadata_capture_cuda_graph(self, bs: int, *args: Any, spec_info: Any, **rest: Any) -> None:
        self.last_plan = DraftPlan(bs, spec_info.kv_indptr, spec_info.kv_indices)

    def init_forward_metadata_replay_cuda_graph(self, bs: int, *args: Any, spec_info: Any, **rest: Any) -> None:
        self.last_plan = DraftPlan(bs, spec_info.kv_indptr, spec_info.kv_indices)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1


@contextlib.contextmanager
def _replaced(owner: object, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class EagleDraft:
    """The real ``FlashInferMultiStepDraftBackend``, whose index buffer lacks a factor ``topk``.

    Parameters
    ----------
    max_bs : int
        Maximum number of requests in a batch.
    topk : int
        Draft branches per request.
    ctx : int
        Maximum context length, in tokens.
    steps : int
        Number of draft steps, at least 2.
    page_size : int
        Tokens per KV page.
    device : torch.device or str
        The CPU, where the kernel is interpreted and CUDA device arguments are redirected, or the current CUDA device.

    Attributes
    ----------
    backend : FlashInferMultiStepDraftBackend
        sglang's object. ``backend.cuda_graph_kv_indices`` is int32 ``(steps, row_entries)`` once allocated;
        ``backend.attn_backends`` holds ``steps - 1`` `PlanRecorder`.
    pool : ReqToTokenPool
        sglang's object; every entry of ``pool.req_to_token`` is a different value above 0.
    """

    def __init__(
        self,
        max_bs: int,
        topk: int,
        ctx: int,
        steps: int,
        page_size: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        if min(max_bs, topk, ctx, page_size) < 1 or steps < 2:
            raise ValueError("max_bs, topk, ctx and page_size must be at least 1 and steps at least 2")
        self.max_bs, self.topk, self.ctx, self.steps, self.page_size = max_bs, topk, ctx, steps, page_size
        self.device = torch.device(device)
        flashinfer_backend = load("sglang.srt.layers.attention.flashinfer_backend")
        load("sglang.srt.speculative.eagle_info")
        # A branch reads its own new slots behind the context; with pages each branch starts on its own page.
        pages = -(-(page_size - 1 + steps) // page_size)
        self.pool = token_pool(max_bs, ctx + topk * pages * page_size, self.device)
        runner = SimpleNamespace(
            req_to_token_pool=self.pool,
            page_size=page_size,
            device=str(self.device),
            model_config=SimpleNamespace(context_len=ctx),
        )
        with _replaced(flashinfer_backend, "FlashInferAttnBackend", PlanRecorder):
            self.backend: Any = flashinfer_backend.FlashInferMultiStepDraftBackend(runner, topk, steps)

    def init_cuda_graph_state(self, fixed: bool = False) -> None:
        """Let sglang allocate its static buffers.

        Parameters
        ----------
        fixed : bool
            Allocate ``topk`` times as much, as later versions do. The same line of sglang allocates it, given a
            ``topk`` times longer context.
        """
        longest = self.ctx * (self.topk if fixed else 1)
        redirect = host_device() if self.device.type == "cpu" else contextlib.nullcontext()
        with redirect, _replaced(self.backend, "max_context_len", longest):
            self.backend.init_cuda_graph_state(self.max_bs, self.max_bs * self.topk)

    def use_buffer(self, buffer: torch.Tensor) -> None:
        """Replace the allocated index buffer, and pass the new rows to the draft steps.

        Parameters
        ----------
        buffer : torch.Tensor
            int32, contiguous, ``(steps, n)``: for example a view of the front of a larger tensor.
        """
        if buffer.dtype != torch.int32 or buffer.dim() != 2 or len(buffer) != self.steps or not buffer.is_contiguous():
            shape = tuple(buffer.shape)
            raise ValueError(f"the buffer must be contiguous int32 of {self.steps} rows, got {buffer.dtype} {shape}")
        self.backend.cuda_graph_kv_indices = buffer
        for step, recorder in enumerate(self.backend.attn_backends):
            recorder.init_cuda_graph_state(self.max_bs, self.max_bs * self.topk, kv_indices_buf=buffer[step])

    def prepare(self, seq_lens: Sequence[int]) -> None:
        """Fill the index buffer as sglang does just before a replay; one length, at most ``ctx``, per request.

        Writes `bytes_past_end` bytes past the end of the buffer.
        """
        check_lengths(seq_lens, self.max_bs, self.ctx)
        batch = forward_batch(
            seq_lens,
            device=self.device,
            req_to_token_pool=self.pool,
            positions=torch.tensor(seq_lens, dtype=torch.int64, device=self.device).repeat_interleave(self.topk),
            spec_info=load("sglang.srt.speculative.eagle_info").EagleDraftInput(),
        )
        self.backend.init_forward_metadata_replay_cuda_graph(batch, len(seq_lens))

    @property
    def row_entries(self) -> int:
        """Entries of one row of the index buffer: the allocated width, or the width sglang would allocate."""
        buffer: torch.Tensor | None = getattr(self.backend, "cuda_graph_kv_indices", None)
        return self.max_bs * self.ctx if buffer is None else buffer.shape[1]

    def entries_needed(self, step: int, seq_lens: Sequence[int]) -> int:
        """Entries that the kernel writes from the start of row ``step``."""
        return self.topk * (sum(seq_lens) + len(seq_lens) * (step + 1))

    def bytes_past_end(self, seq_lens: Sequence[int]) -> int:
        """Bytes that `prepare` writes past the end of the whole buffer; computed, not measured."""
        return ITEM_BYTES * max(0, self.entries_needed(self.steps - 1, seq_lens) - self.row_entries)

    def expected_row(self, step: int, seq_lens: Sequence[int]) -> torch.Tensor:
        """The correct contents of row ``step``.

        Returns
        -------
        torch.Tensor
            int32, ``(entries_needed(step, seq_lens),)``: per request and branch the context's tokens, then the tokens
            of the branch's draft steps up to this one.
        """
        parts = []
        for slot, length in enumerate(seq_lens, start=1):
            tokens = self.pool.req_to_token[slot]
            for branch in range(self.topk):
                start = self._branch_start(branch, length)
                parts += [tokens[:length], tokens[start : start + step + 1]]
        return torch.cat(parts)

    def _branch_start(self, branch: int, length: int) -> int:
        if self.page_size == 1 or self.topk == 1:
            return length + branch * self.steps
        used = length % self.page_size
        pages = -(-(used + self.steps) // self.page_size)
        return length - used + branch * pages * self.page_size + used

    def wrong_entries(self, memory: torch.Tensor, seq_lens: Sequence[int]) -> list[int]:
        """Count the entries of each row that read back wrong after `prepare`.

        Parameters
        ----------
        memory : torch.Tensor
            int32, 1-D, on the driver's device: the buffer's memory from its first byte, with at least `bytes_past_end`
            behind the buffer.
        seq_lens : sequence of int
            The lengths passed to that `prepare`.

        Returns
        -------
        list of int
            One count per row; a row is read as far as it was written, across its end.
        """
        counts = []
        for step in range(self.steps):
            expected = self.expected_row(step, seq_lens)
            start = step * self.row_entries
            counts.append(int((memory[start : start + len(expected)] != expected).sum()))
        return counts
