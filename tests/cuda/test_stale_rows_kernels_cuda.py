"""SG103 in real CUDA graphs where a Triton kernel is given the input: its code tells whether it stores there."""

from __future__ import annotations

import pytest
import torch
from helpers_cuda import capture

import shadowgraph as sg

pytestmark = pytest.mark.gpu

ROWS, DIM = 4, 4


class Runner:
    """Tokens of up to four rows, whose keys a kernel stores at their slots; ids and positions are padded."""

    def __init__(self, debugger: sg.Debugger, marked: bool) -> None:
        self.marked = marked
        with debugger.guard():
            self.input_ids = torch.zeros(ROWS, dtype=torch.int64, device="cuda")
            self.positions = torch.zeros(ROWS, dtype=torch.int64, device="cuda")
            self.slots = torch.full((ROWS,), -1, device="cuda")
            self.cache = torch.zeros(32, DIM, device="cuda")
        self.table = torch.arange(64.0, device="cuda").view(-1, 1).repeat(1, DIM)
        debugger.name("runner", self)
        self.store(torch.zeros(ROWS, DIM, device="cuda"))  # compiles it
        self.graph, self.kept = capture(self.body)

    def store(self, keys: torch.Tensor) -> None:
        from kernels_cuda import store_keys

        store_keys[(ROWS,)](keys, self.slots, self.cache, DIM=DIM, MARKED=self.marked)

    def body(self) -> torch.Tensor:
        keys = self.table[self.input_ids] + self.positions[:, None]
        self.store(keys)
        return keys

    def step(self, ids: list[int], slots: list[int], fixed: bool) -> None:
        count = len(ids)
        if count < ROWS:
            self.input_ids[count:].zero_()
            self.positions[count:].zero_()
            if fixed:
                self.slots[count:].fill_(-1)
        self.input_ids[:count].copy_(torch.tensor(ids))
        self.positions[:count].copy_(torch.tensor(ids) + 1)
        self.slots[:count].copy_(torch.tensor(slots))
        self.graph.replay()
        torch.cuda.synchronize()


@pytest.mark.parametrize(("marked", "fixed"), [(False, False), (False, True), (True, False)])
def test_rows_of_an_input_that_a_kernel_reads(marked: bool, fixed: bool) -> None:
    with sg.debug(backend="cuda") as debugger:
        runner = Runner(debugger, marked)
        for ids, slots in (([5, 6, 7, 8], [11, 12, 13, 14]), ([9], [15])):
            runner.step(ids, slots, fixed)
        debugger.check()
        assert debugger.facts().faults == {}
    stale = runner.cache[12].count_nonzero().item() == 0 or runner.cache[12, 0].item() != 13
    assert stale is (not marked and not fixed), "invalid: padding has done no harm, or in spite of the fix"
    found = [(one.code, one.severity, one.buffer.name) for one in debugger.findings]
    assert found == ([("SG103", "error", "runner.slots")] if not marked and not fixed else [])
