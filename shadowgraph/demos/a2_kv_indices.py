"""A2: sglang 27338. EAGLE's draft packs topk branches into rows that were sized for one."""

from __future__ import annotations

from typing import Any

import torch

from shadowgraph.demos.case import Case, Expected, require
from shadowgraph.demos.device import Buffers, Unwatched

MAX_BS, TOPK, CTX, STEPS = 2, 4, 64, 3
LENS = (40, 40)
NEEDED = [TOPK * (sum(LENS) + len(LENS) * (step + 1)) for step in range(STEPS)]
PAST_END = 4 * (NEEDED[-1] - MAX_BS * CTX)


class Draft:
    """The draft backend's static buffers."""

    def __init__(self, device: Any, buffers: Buffers, fixed: bool) -> None:
        width = MAX_BS * CTX * (TOPK if fixed else 1)
        self.cuda_graph_kv_indices = buffers.zeros((STEPS, width), torch.int32)
        self.victim = buffers.zeros((1024,), torch.int32)
        self.lens = buffers.of(LENS, torch.int32)
        self.slots = buffers.of(range(1, 65), torch.int32)

    def prepare(self) -> None:
        """Fill the rows for the next replay: an eager launch."""
        from shadowgraph.demos.kernels import fill_draft_indices

        table = self.cuda_graph_kv_indices
        fill_draft_indices[(STEPS, len(LENS), TOPK)](table, self.slots, self.lens, table.shape[1], BLOCK=64)


def program(device: Any, debugger: Any, fixed: bool, carve: int) -> Draft:
    """Two steps over one graph that reads the rows."""
    with debugger.guard():
        draft = Draft(device, Buffers(device.device, carve), fixed)
    debugger.name("draft", draft)
    graph = device.graph()
    with device.capture(graph):
        kept = draft.cuda_graph_kv_indices.sum(1)
    for _ in range(2):
        draft.prepare()
        graph.replay()
    del kept
    return draft


def damage(device: Any) -> bool:
    """The buffer behind the rows is overwritten."""
    draft = program(device, Unwatched(), False, 1 << 14)
    table = draft.cuda_graph_kv_indices
    require(table.data_ptr() + 4 * table.numel() == draft.victim.data_ptr(), "the victim lies behind the rows")
    return int((draft.victim != 0).sum()) == PAST_END // 4


CASES = (
    Case(
        id="A2",
        title="topk branches packed into rows sized for one",
        report="sglang 27338",
        program=program,
        damage=damage,
        expected=(
            Expected(
                "SG101",
                "draft.cuda_graph_kv_indices",
                phase="prepare",
                culprit="fill_draft_indices",
                replay=1,
                past_end=PAST_END,
                side="after",
                launched_in="prepare",
                lost=(NEEDED[0] - MAX_BS * CTX, NEEDED[1] - MAX_BS * CTX, 0),
            ),
        ),
    ),
)
