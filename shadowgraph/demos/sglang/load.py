"""Imports sglang's modules for the current machine: kernels compiled on a GPU, interpreted without one."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

import torch

from shadowgraph.common.errors import BackendError, MissingPackageError
from shadowgraph.demos.sglang.stub_modules import install_standins

SGLANG_VERSION = "0.5.12.post1"
ITEM_BYTES = 4  # size of int32, the dtype of every index buffer


def sglang_version() -> str | None:
    """Version of the installed sglang, or None when it is not installed. Imports nothing."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


def require_sglang() -> None:
    """Raise `MissingPackageError`, which says how to get it, unless the drivers' sglang version is installed."""
    found = sglang_version()
    if found != SGLANG_VERSION:
        raise MissingPackageError(
            f"sglang {SGLANG_VERSION} is needed and {found or 'none'} is installed: "
            "in a checkout, python3 tools/bootstrap.py demo makes an environment with it"
        )


def enable_interpreter() -> None:
    """Set ``TRITON_INTERPRET=1``, so that Triton kernels defined from now on run on the CPU.

    Does nothing when there is a CUDA device: Triton compiles for it.

    Raises
    ------
    BackendError
        When ``triton.language`` was imported without it: its own functions then stay compiled ones.

    Notes
    -----
    Torch imports Triton by itself, for example at the first operation under a Python ``TorchDispatchMode``: call this
    before any such mode is entered.
    """
    if torch.cuda.is_available():
        return
    language = sys.modules.get("triton.language")
    if language is not None and type(language.cdiv).__name__ != "InterpretedFunction":
        raise BackendError(
            "Triton was imported without TRITON_INTERPRET=1: set it in the environment, or call enable_interpreter() "
            "before the first torch operation under a dispatch mode or torch.compile, which import Triton"
        )
    os.environ["TRITON_INTERPRET"] = "1"


@functools.cache
def load(name: str) -> ModuleType:
    """Import one sglang module, after preparing for a missing GPU and missing packages.

    Parameters
    ----------
    name : str
        Full dotted name, such as ``sglang.srt.speculative.spec_utils``.

    Raises
    ------
    RuntimeError
        When sglang is missing or another version, or when Triton or transformers were imported too early.
    """
    require_sglang()
    enable_interpreter()
    if "torchvision" in install_standins() and "sglang" not in sys.modules:
        transformers = sys.modules.get("transformers")
        if transformers is not None and not transformers.is_torchvision_available():
            raise BackendError("transformers was imported before install_standins(): call it, or load(), first")
    # On import sglang prints and warns about missing accelerators.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(name)


def token_pool(size: int, width: int, device: torch.device | str = "cpu") -> Any:
    """A real ``ReqToTokenPool`` in which every entry is a different value above 0 (row 0 included)."""
    pool = load("sglang.srt.mem_cache.memory_pool").ReqToTokenPool(size, width, str(device), enable_memory_saver=False)
    table = pool.req_to_token
    table.copy_(torch.arange(1, table.numel() + 1, dtype=torch.int32, device=table.device).view_as(table))
    return pool


def check_lengths(seq_lens: Sequence[int], max_bs: int, longest: int) -> None:
    """Raise ``ValueError`` unless there are 1 to ``max_bs`` lengths, each from 1 to ``longest`` tokens."""
    if not 1 <= len(seq_lens) <= max_bs or not all(1 <= length <= longest for length in seq_lens):
        raise ValueError(f"seq_lens must hold 1 to {max_bs} lengths from 1 to {longest}, got {list(seq_lens)}")


def forward_batch(seq_lens: Sequence[int], *, device: torch.device | str = "cpu", **fields: Any) -> Any:
    """A real ``ForwardBatch`` for one decode step; request i sits in slot i + 1 (slot 0 is sglang's padding slot).

    Parameters
    ----------
    device : torch.device or str
        Device of its tensors; ``seq_lens_cpu`` stays on the host.
    fields
        Fields of a ``ForwardBatch`` to set or replace.
    """
    info = load("sglang.srt.model_executor.forward_batch_info")
    lens_cpu = torch.tensor(seq_lens, dtype=torch.int32)
    values = {
        "forward_mode": info.ForwardMode.DECODE,
        "batch_size": len(seq_lens),
        "input_ids": None,
        "req_pool_indices": torch.arange(1, len(seq_lens) + 1, dtype=torch.int64, device=device),
        "seq_lens": torch.tensor(seq_lens, dtype=torch.int32, device=device),
        "seq_lens_cpu": lens_cpu,
        "seq_lens_sum": sum(seq_lens),
        "out_cache_loc": None,
    }
    return info.ForwardBatch(**(values | fields))
