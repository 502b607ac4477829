"""A3: sglang 27360. A page table's rows are too short for the pages of a step, and the store has no column mask."""

from __future__ import annotations

from typing import Any

import torch

from shadowgraph.demos.case import Case, Expected, require
from shadowgraph.demos.device import Buffers, Unwatched

ROWS, WIDTH, COUNT, BLOCK = 4, 4, 6, 8


class Metadata:
    """The draft-decode metadata: a page table and the source of its pages."""

    def __init__(self, buffers: Buffers) -> None:
        self.page_table = buffers.zeros((ROWS, WIDTH), torch.int32)
        self.victim = buffers.zeros((64,), torch.int32)
        self.pages = buffers.of([[100 * row + c + 1 for c in range(BLOCK)] for row in range(ROWS)], torch.int32)

    def set_pages(self, fixed: bool, rows: int) -> None:
        from shadowgraph.demos.kernels import scatter_pages

        scatter_pages[(rows,)](self.page_table, self.pages, WIDTH, COUNT, BOUNDED=fixed, BLOCK=BLOCK)


def program(device: Any, debugger: Any, fixed: bool, carve: int, rows: int = ROWS) -> Metadata:
    """Prepare, then replay a graph that reads the table."""
    with debugger.guard():
        metadata = Metadata(Buffers(device.device, carve))
    debugger.name("fa3", metadata)
    graph = device.graph()
    with device.capture(graph):
        kept = metadata.page_table.sum(1)
    for _ in range(2):
        with debugger.prepare(graph):
            metadata.set_pages(fixed, rows)
        graph.replay()
    del kept
    return metadata


def inner_rows(device: Any, debugger: Any, fixed: bool, carve: int) -> Metadata:
    """Fill only rows before the last, so that no store leaves the table."""
    return program(device, debugger, fixed, carve, rows=ROWS - 1)


def damage(device: Any) -> bool:
    """Two entries behind the table are overwritten."""
    metadata = program(device, Unwatched(), False, 1 << 12)
    table = metadata.page_table
    require(table.data_ptr() + 4 * table.numel() == metadata.victim.data_ptr(), "the victim lies behind the table")
    return metadata.victim[:3].tolist() == [305, 306, 0]


def damage_inside(device: Any) -> bool:
    """Row 3, which no launch filled, holds the overflow of row 2."""
    metadata = inner_rows(device, Unwatched(), False, 1 << 12)
    require(metadata.victim.count_nonzero().item() == 0, "nothing leaves the table")
    return metadata.page_table[3].tolist() == [205, 206, 0, 0]


_LOST = (COUNT - WIDTH,) * (ROWS - 1) + (0,)

CASES = (
    Case(
        id="A3",
        title="a page-table store without a column mask, last row",
        report="sglang 27360",
        program=program,
        damage=damage,
        expected=(
            Expected(
                "SG101",
                "fa3.page_table",
                phase="prepare",
                culprit="scatter_pages",
                replay=1,
                past_end=8,
                side="after",
                launched_in="set_pages",
                lost=_LOST,
            ),
        ),
    ),
    Case(
        id="A3-rows",
        title="the same in the inner rows only, inside one flat allocation",
        report="sglang 27360",
        program=inner_rows,
        damage=damage_inside,
        carved=True,
        host_only=True,
        expected=(
            Expected(
                "SG101",
                "fa3.page_table",
                phase="prepare",
                culprit="scatter_pages",
                replay=1,
                side="row",
                lost=(2, 2, 0),
            ),
        ),
    ),
)
