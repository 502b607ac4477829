"""Python stacks gathered by torch's profiler, for hot paths: about a microsecond each, symbolized only when read.

Gathered on the capturing thread; any thread may symbolize.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from shadowgraph.common.lazy_inductor import inductor_stays_out
from shadowgraph.model.stacks import Frame, Stack, cell_label, is_machinery

Trace = Any  # torch's own record of a stack: it holds code objects, no frames and no locals

_gather = torch._C._profiler.gather_traceback


def gather() -> Trace:
    """Gather the calling thread's Python stack in about a microsecond; `stacks_of` symbolizes it."""
    return _gather(True, False, False)


def stacks_of(traces: Sequence[Trace | None], limit: int) -> list[Stack]:
    """Symbolize gathered stacks, as `current_stack` would return them; one call for many shares the work. A missing
    trace, of a thread without Python frames, has an empty stack: torch would read through a null pointer."""
    known = [trace for trace in traces if trace is not None]
    if not known:
        return [()] * len(traces)
    with inductor_stays_out():  # torch asks it for the lines behind code that it generated
        symbolized = iter(torch._C._profiler.symbolize_tracebacks(known))
    return [() if trace is None else _stack_of(next(symbolized), limit) for trace in traces]


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
