"""The wrapper of captured callables, of the adapter's tests."""

from __future__ import annotations

from vllm_runner import CUDAGraphWrapper

__all__ = ["CUDAGraphWrapper"]
