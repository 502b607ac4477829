"""Wrappers with the attributes and the call paths of flashinfer's, whose planner and kernels are torch operators.

The planner refuses what the real one refuses, with its words.
"""

from __future__ import annotations

import ctypes
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch


def planner(*args: Any) -> list[int]:
    """What a compiled planner does with its leading arguments: it reads the host's copy of the index pointers."""
    workspace, tensors = args[1], [a for a in args[3:6] if isinstance(a, torch.Tensor)]
    values = (tensors[0] if len(tensors) == 1 else tensors[1]).tolist()
    for at, (low, high) in enumerate(pairwise(values)):
        if high < low:
            raise RuntimeError(f"kv_indptr[{at + 1}]{high} - kv_indptr[{at}]{low} should be non-negative")
    source = torch.tensor(values, dtype=workspace.dtype)
    ctypes.memmove(workspace.data_ptr(), source.data_ptr(), source.nbytes)  # which no dispatch mode sees
    return values


def kernel(indptr: torch.Tensor, out: torch.Tensor) -> None:
    """A kernel that reads index pointers."""
    torch.sub(indptr[1:], indptr[:-1], out=out)


class DecodeWrapper:
    """After ``BatchDecodeWithPagedKVCacheWrapper``."""

    def __init__(
        self, workspace: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor, last: torch.Tensor
    ) -> None:
        self._float_workspace_buffer = workspace
        self._int_workspace_buffer = torch.zeros(64, dtype=torch.int32)
        self._pin_memory_int_workspace_buffer = torch.zeros(64, dtype=torch.int32)
        self._paged_kv_indptr_buf, self._paged_kv_indices_buf = indptr, indices
        self._paged_kv_last_page_len_buf = last
        self._use_cuda_graph = True
        self._plan_info: Any = None
        self.out = torch.zeros(len(last), dtype=torch.int32)

    def plan(self, indptr: torch.Tensor, indices: torch.Tensor, last: torch.Tensor) -> None:
        self._paged_kv_indptr_buf.copy_(indptr)
        self._paged_kv_last_page_len_buf.copy_(last)
        self._paged_kv_indices_buf[: len(indices)].copy_(indices)
        host = indptr.to("cpu", copy=True)
        self._cached_module = SimpleNamespace(plan=planner, run=self._launch)
        self._plan_info = self._cached_module.plan(*self._workspaces(), host, len(last), 8, 8, 1, True)

    begin_forward = plan

    def run(self) -> torch.Tensor:
        own = self._paged_kv_indptr_buf, self._paged_kv_indices_buf, self._paged_kv_last_page_len_buf
        self._cached_module.run(*self._workspaces()[:2], self._plan_info, *own, self.out)
        return self.out

    def _workspaces(self) -> tuple[torch.Tensor, ...]:
        return self._float_workspace_buffer, self._int_workspace_buffer, self._pin_memory_int_workspace_buffer

    @staticmethod
    def _launch(*args: Any) -> None:
        kernel(args[3], args[6])


def fast_plan(self: DecodeWrapper, indptr: torch.Tensor, indices: torch.Tensor, last: torch.Tensor) -> None:
    """After ``fast_decode_plan``: it copies nothing onto the wrapper's buffers."""
    host = indptr.to("cpu", copy=True)
    self._plan_info = self._cached_module.plan(*self._workspaces(), host, len(last), 8, 8, 1, True)


def plan_fast(wrapper: DecodeWrapper) -> None:
    """Have a wrapper plan the fast way from now on, as servers do after the capture."""
    wrapper.begin_forward = partial(fast_plan, wrapper)  # type: ignore[method-assign]


class MlaWrapper:
    """After ``BatchMLAPagedAttentionWrapper``, whose kernels are given the plan and the indices, no index pointers."""

    def __init__(self, workspace: torch.Tensor, **buffers: torch.Tensor) -> None:
        self._float_workspace_buffer = workspace
        self._int_workspace_buffer = torch.zeros(64, dtype=torch.int32)
        self._pin_memory_int_workspace_buffer = torch.zeros(64, dtype=torch.int32)
        self._use_cuda_graph = True
        self._qo_indptr_buf, self._kv_indptr_buf = buffers["qo_indptr"], buffers["kv_indptr"]
        self._kv_indices_buf, self._kv_len_arr_buf = buffers["kv_indices"], buffers["kv_len_arr"]
        self.out = torch.zeros(len(self._kv_len_arr_buf), dtype=torch.int32)

    def plan(self, qo: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, lens: torch.Tensor) -> None:
        self._cached_module = SimpleNamespace(plan=planner, run=self._launch)
        host = [each.to("cpu", copy=True) for each in (qo, kv, lens)]
        self._qo_indptr_buf.copy_(qo)
        self._kv_indptr_buf.copy_(kv)
        self._kv_indices_buf[: len(indices)].copy_(indices)
        self._kv_len_arr_buf.copy_(lens)
        self._plan_info = self._cached_module.plan(*self._workspaces(), *host, 8, 512, False)

    def run(self) -> torch.Tensor:
        self._cached_module.run(*self._workspaces()[:2], self._plan_info, self._kv_indices_buf, self.out)
        return self.out

    def _workspaces(self) -> tuple[torch.Tensor, ...]:
        return self._float_workspace_buffer, self._int_workspace_buffer, self._pin_memory_int_workspace_buffer

    @staticmethod
    def _launch(*args: Any) -> None:
        torch.mul(args[3][: len(args[4])], 1, out=args[4])


def fast_mla_plan(
    self: MlaWrapper, qo: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, lens: torch.Tensor
) -> None:
    """After sglang's ``fast_mla_decode_plan``: it is given host tensors and copies nothing."""
    self._cached_module.plan(*self._workspaces(), qo, kv, lens, 8, 512, False)
