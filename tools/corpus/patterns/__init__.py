"""Handwritten programs: what servers, trainers and notebooks do with CUDA graphs."""

from __future__ import annotations

from corpus.patterns import (  # noqa: F401 - each enters its programs
    autograd,
    calls,
    chains,
    compiled,
    declared,
    layers,
    lifetimes,
    serving,
    triton_kernels,
    views,
)
from corpus.patterns.registry import ids, program

__all__ = ["ids", "program"]
