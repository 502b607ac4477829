"""A4: sglang 26292. A batch of one is padded to a graph of four; one input's padded rows keep the last step's values.

Lengths and cache slots are padded before they are copied, the requests' pool indices are not. The graph gathers with
them, so that its padded rows read the tokens of finished requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shadowgraph.demos.case import Case, Expected, require
from shadowgraph.demos.device import Buffers, Unwatched

ROWS, REQUESTS, TOKENS = 4, 8, 4
FULL, ONE = (2, 3, 5, 7), (6,)


class Runner:
    """Static inputs of a decode step, and a graph over all four rows."""

    def __init__(self, device: Any, buffers: Buffers, fixed: bool) -> None:
        tokens = [[request * 10 + token if request else 0 for token in range(TOKENS)] for request in range(REQUESTS)]
        self.req_to_token = buffers.of(tokens, torch.int32)  # slot 0 belongs to no request: all zeros
        self.req_pool_indices = buffers.zeros((ROWS,), torch.int64)
        self.seq_lens = buffers.of([1] * ROWS, torch.int64)
        self.out_cache_loc = buffers.zeros((ROWS,), torch.int64)
        self._device, self._fixed = device, fixed
        self.graph = device.graph()

    def capture(self) -> None:
        with self._device.capture(self.graph):
            self.gathered = self.req_to_token[self.req_pool_indices[:ROWS]]
            self.read = self.seq_lens[:ROWS] + self.out_cache_loc[:ROWS]

    def prepare(self, requests: Sequence[int]) -> None:
        """Refresh the inputs for some requests, padded to the captured batch size."""
        count = len(requests)
        if count < ROWS:
            self.seq_lens.fill_(1)
            self.out_cache_loc.zero_()
            if self._fixed:
                self.req_pool_indices.zero_()
        source = torch.tensor(requests, device=self._device.device)
        self.seq_lens[:count].copy_(source + 10)
        self.out_cache_loc[:count].copy_(source * 2)
        self.req_pool_indices[:count].copy_(source)


def program(device: Any, debugger: Any, fixed: bool, carve: int) -> Runner:
    """A replay with four requests, then one with a single request padded to four."""
    with debugger.guard():
        runner = Runner(device, Buffers(device.device, carve), fixed)
    debugger.name("runner", runner)
    runner.capture()
    for requests in (FULL, ONE):
        with debugger.prepare(runner.graph):
            runner.prepare(requests)
        runner.graph.replay()
    return runner


def damage(device: Any) -> bool:
    """The padded rows of the second step gather the tokens of the first step's requests."""
    runner = program(device, Unwatched(), False, 1 << 12)
    require(runner.seq_lens.tolist() == [16, 1, 1, 1], "the other inputs are padded")
    rows = runner.gathered[:, 0].tolist()
    require(rows[0] == 60, "the real row is right")
    return bool(rows[1:] == [request * 10 for request in FULL[1:]])


CASES = (
    Case(
        id="A4",
        title="a padded row that keeps the last step's request",
        report="sglang 26292",
        program=program,
        damage=damage,
        expected=(
            Expected(
                "SG103",
                "runner.req_pool_indices",
                phase="prepare",
                culprit="aten.copy_.default",
                replay=2,
                launched_in="prepare",
                stale=((1, 3, 1),),
            ),
        ),
    ),
)
