"""A founding bug after 1,000 quiet replays: the first bad step is dated, and its launch named."""

from __future__ import annotations

import pytest
from programs import only
from steady_state import sampled

from shadowgraph.demos.a2_kv_indices import Draft
from shadowgraph.demos.device import Buffers, HostDevice
from shadowgraph.tracking import passing

QUIET = 1000


@pytest.mark.parametrize("quiet", [QUIET, pytest.param(10 * QUIET, marks=pytest.mark.slow)])
@pytest.mark.parametrize("fixed", [False, True])
def test_draft_rows_that_overflow_with_the_first_long_batch(
    monkeypatch: pytest.MonkeyPatch, fixed: bool, quiet: int
) -> None:
    device = HostDevice()
    with sampled(monkeypatch, (100, 200), 4000) as debugger:
        with debugger.guard():
            draft = Draft(device, Buffers(device.device, 0), fixed)
        debugger.name("draft", draft)
        lens = draft.lens.clone()
        graph = device.graph()
        with device.capture(graph):
            kept = draft.cuda_graph_kv_indices.sum(1)
        draft.lens.fill_(4)
        draft.prepare()
        for _ in range(quiet):
            graph.replay()
        assert passing.on, "invalid: launches are observed still"
        draft.lens.copy_(lens)
        for _ in range(4):
            draft.prepare()
            graph.replay()
        found = debugger.check()
        if fixed:
            assert found == ()
        else:
            first = only(found)
            assert (first.code, first.phase, first.replay) == ("SG101", "prepare", quiet + 1)
            assert (first.buffer.name, first.culprit.name) == ("draft.cuda_graph_kv_indices", "fill_draft_indices")
        del kept
