"""SG113 on sglang's own draft runner: the adapter knows each batch, and how large batches can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sglang_runners as runners

import shadowgraph as sg
from shadowgraph.demos.sglang.host import SGLANG_VERSION, load, sglang_version
from shadowgraph.integrations.sglang.hooks import Hooks

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(sglang_version() != SGLANG_VERSION, reason=f"needs sglang {SGLANG_VERSION}"),
]
CTX, MAX_BS, TOPK = 64, 2, 4


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], Hooks]]:
    with runners.hanging(monkeypatch) as hang:
        yield hang


def grown(debugger: sg.Debugger, hang: Callable[[Any], Hooks], context: int, tokens: int, until: int) -> runners.Draft:
    """A draft runner after steps of two requests that grow, one token each in a step."""
    draft = runners.Draft(debugger)
    draft.runner.model_runner.model_config.context_len = context
    draft.runner.model_runner.max_total_num_tokens = tokens
    hang(draft.capture)
    load(runners.DECODE).CudaGraphRunner.capture(draft.runner)
    for length in range(2, until):
        draft.step([length, length + 1], ids=["a", "b"])
    return draft


def test_eagle_overflows_at_a_quarter_of_its_context(hang: Callable[[Any], Hooks]) -> None:
    """sglang 27338, before it happens: its index buffer lacks the factor of the draft's branches."""
    with sg.debug(backend="host") as debugger:
        draft = grown(debugger, hang, CTX, 10 * CTX, 9)
        assert not debugger.check()
        (found,) = debugger.notes
        leads: Any = found.detail
        assert (found.code, found.severity, found.confidence) == ("SG113", "note", "high")
        assert "draft.cuda_graph_kv_indices" in found.message
        assert (leads.capacity, leads.forecast.driver, leads.forecast.exact) == (MAX_BS * CTX, "sum of lengths", True)
        assert (leads.forecast.limit, found.batch.requests) == (MAX_BS * CTX, ("a", "b"))
        length = 9
        while not debugger.check():
            draft.step([length, length + 1])
            length += 1
        (overrun,) = debugger.findings
    assert overrun.code == "SG101"
    assert sum(overrun.batch.lengths) == leads.forecast.overflows_at


@pytest.mark.parametrize(("context", "tokens"), [(CTX // TOPK, 10 * CTX), (CTX, MAX_BS * CTX // TOPK)])
def test_what_the_server_cannot_reach_is_silent(hang: Callable[[Any], Hooks], context: int, tokens: int) -> None:
    """Shorter contexts, and a pool that holds fewer tokens."""
    with sg.debug(backend="host") as debugger:
        draft = grown(debugger, hang, context, tokens, 12)
        assert debugger.check() == ()
        assert debugger.notes == ()
        marks = [mark for mark in debugger.facts().high_water if "cuda_graph_kv_indices" in mark.buffer]
        assert draft.runner.graphs
    assert marks[0].batch is not None
    assert (marks[0].batch.tokens, marks[0].batch.longest, marks[0].steps) == (23, 12, 9)
