"""Stacks gathered by torch, for hot paths: a microsecond each, read when somebody asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from shadowgraph.model.stacks import Frame, Stack, cell_label, is_machinery

Trace = Any  # torch's own record of a stack: it holds code objects, no frames and no locals

_gather = torch._C._profiler.gather_traceback


def gather() -> Trace:
    """The calling thread's Python stack in a form that costs about a microsecond; `stacks_of` reads it."""
    return _gather(True, False, False)


def stacks_of(traces: Sequence[Trace], limit: int) -> list[Stack]:
    """What was gathered, as `current_stack` would have given it; many at once share the work."""
    return [_stack_of(frames, limit) for frames in torch._C._profiler.symbolize_tracebacks([*traces])]


def _stack_of(gathered: Sequence[Mapping[str, Any]], limit: int) -> Stack:
    frames: list[Frame] = []
    for entry in gathered:
        if len(frames) >= limit:
            break
        file, function = entry["filename"], entry["name"]
        if not is_machinery(file):
            cell = cell_label(file)
            frames.append(Frame(cell or file, entry["line"], function))
            if cell and function == "<module>":
                break
    return tuple(frames)
