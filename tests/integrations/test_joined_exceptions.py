"""A planner's exception is joined with what it was given, who wrote that, and what was found of it before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import planning_wrappers as wrappers
import pytest
import torch

import shadowgraph as sg
from shadowgraph.dumps.redaction import redacted
from shadowgraph.integrations.flashinfer.adapter import Attachment
from shadowgraph.integrations.flashinfer.hooks import Hooks
from shadowgraph.integrations.flashinfer.versions import WRAPPERS
from shadowgraph.model.failures import Failure
from shadowgraph.model.findings import Batch
from shadowgraph.model.host_plans import HostPlan
from shadowgraph.monitor.exception_context import join, kind_of
from shadowgraph.render.text.text import Report

TOKENS = 16
REFUSAL = "kv_indptr[3]15 - kv_indptr[2]32 should be non-negative"


@pytest.fixture(autouse=True)
def attached() -> Iterator[Attachment]:
    made = Attachment(Hooks())
    made.hang([(wrappers.DecodeWrapper, WRAPPERS[0])])
    yield made
    made.take_down()


class Backend:
    """Two batch sizes share the prefix of one buffer, into which each graph writes the sums of its real lengths."""

    def __init__(self, debugger: Any) -> None:
        self.debugger = debugger
        with debugger.guard():
            self.kv_indptr = torch.arange(5, dtype=torch.int32) * TOKENS
            self.lens = torch.full((4,), TOKENS, dtype=torch.int32)
            self.kv_indices, last = torch.zeros(64, dtype=torch.int32), torch.ones(4, dtype=torch.int32)
            self.wrappers = {
                size: wrappers.DecodeWrapper(torch.zeros(64), self.kv_indptr[: size + 1], self.kv_indices, last[:size])
                for size in (4, 2)
            }
        debugger.name("attn", self)
        self.graphs = {size: sg.HostGraph() for size in self.wrappers}
        for size, graph in self.graphs.items():
            self.plan(size)
            with sg.host_graph(graph):
                self.forward(size)
            wrappers.plan_fast(self.wrappers[size])

    def plan(self, size: int) -> None:
        wrapper = self.wrappers[size]
        wrapper.begin_forward(self.kv_indptr[: size + 1], self.kv_indices, wrapper._paged_kv_last_page_len_buf)

    def forward(self, size: int) -> None:
        self.wrappers[size]._paged_kv_indptr_buf[1:].copy_(self.lens[:size].cumsum(0))
        self.wrappers[size].run()

    def step(self, size: int, length: int) -> None:
        with self.debugger.prepare(self.graphs[size]):
            self.lens[:size].fill_(length)
            self.plan(size)
        self.graphs[size].replay()


def crash(debugger: Any) -> Backend:
    """Ends in the planner, as the report of MiniCPM-SALA does."""
    backend = Backend(debugger)
    for size, length in ((4, 5), (2, TOKENS), (4, 5)):
        backend.step(size, length)
    return backend


@pytest.mark.parametrize("layout", ["isolate", "faithful"])
@pytest.mark.parametrize("protected", [True, False])
def test_a_planner_that_refuses(layout: str, protected: bool) -> None:
    with pytest.raises(RuntimeError, match=r"kv_indptr\[3\]15") as raised, sg.debug(layout=layout) as debugger:
        backend = Backend(debugger)
        four, two = (backend.graphs[size].model.name for size in (4, 2))
        debugger.adapter.provide_batches(lambda graph, replay: Batch(3, 4, (replay,), (graph.name,)))
        if protected:
            debugger.protect(backend.kv_indptr)
        for size, length in ((4, 5), (2, TOKENS), (4, 5)):
            backend.step(size, length)
    assert str(raised.value) == REFUSAL
    facts = debugger.facts()
    (failure,) = facts.failures
    assert (failure.kind, failure.error, failure.said) == ("planner", "RuntimeError", REFUSAL)
    assert (failure.graph, failure.replay) == (two, 1), "the last replay that began"
    assert failure.batch == Batch(3, 4, (2,), (four,)), "of the replay that was being planned for"
    plan = failure.plan
    assert plan is not None
    assert (plan.planner, plan.kind, plan.batch_size, plan.entries) == ("DecodeWrapper", "decode", 4, 5)
    assert (plan.indptr, plan.first, plan.broken) == ((0, 16, 32, 15, 20), 0, (3,))
    assert (plan.graph, plan.replay, plan.failed) == (four, 2, True)
    assert plan.buffer == "attn.kv_indptr"
    before, broken = plan.writers
    assert (before.entry, before.graph, before.replay) == (2, two, 1)
    assert (broken.entry, broken.graph, broken.replay) == (3, four, 1)
    for writer in plan.writers:
        assert (writer.culprit.name, writer.culprit.status) == ("aten.copy_.default", "confirmed")
        assert writer.culprit.stack[0].function == "forward"
    earlier = {finding.id: finding for finding in facts.findings}[plan.finding]
    assert earlier.message == plan.found
    assert earlier.buffer.name == "attn.kv_indptr"
    said = str(Report(facts))
    for line in (
        f"shadowgraph: the program's planner refused: RuntimeError: {REFUSAL}",
        f"  last plan  DecodeWrapper (decode), 4 requests for replay 2 of {four}, which failed",
        "  from       5 index pointers of attn.kv_indptr: 0, 16, 32, *15, 20",
        "  broken     [3] = 15 after [2] = 32",
        f" in replay 1 of {two}",
        f"  found      finding #{plan.finding} is about the same memory: SG10",
    ):
        assert line in said, said


def test_host_code_that_wrote_after_the_replay_is_the_last_writer() -> None:
    with pytest.raises(RuntimeError, match=r"kv_indptr\[3\]0"), sg.debug() as debugger:
        backend = Backend(debugger)
        backend.step(4, 5)
        backend.kv_indptr[3:4].fill_(0)
        backend.plan(4)
    (failure,) = debugger.facts().failures
    assert failure.plan is not None
    before, broken = failure.plan.writers
    assert (before.graph, before.replay) == (backend.graphs[4].model.name, 1)
    assert (broken.culprit.name, broken.graph, broken.replay) == ("aten.fill_.Scalar", None, None)


def test_without_an_exception_there_is_nothing_to_join() -> None:
    with sg.debug() as debugger:
        backend = Backend(debugger)
        for length in (TOKENS, TOKENS):
            backend.step(4, length)
    assert debugger.facts().failures == ()
    assert debugger.monitor.flight_recorder.host_plans.last is not None


def test_an_exception_that_is_caught_and_raised_again_is_one() -> None:
    with sg.debug() as debugger:
        Backend(debugger).step(4, TOKENS)
        error = RuntimeError("Error in standard plan: refused")
        assert join(debugger.monitor, error) is not None
        assert join(debugger.monitor, error, "somebody else") is None
        assert join(debugger.monitor, ValueError("nothing of ours")) is None
        assert len(debugger.facts().failures) == 1


def test_nothing_is_said_where_nothing_is_known() -> None:
    with sg.debug() as debugger:
        assert join(debugger.monitor, RuntimeError("CUDA error: out of memory")) is None


class AcceleratorError(RuntimeError):
    """What torch raises for a CUDA error."""


class Unprintable(RuntimeError):
    def __str__(self) -> str:
        raise ValueError("no text")


def test_of_a_long_text_the_line_that_says_it_is_kept() -> None:
    with sg.debug() as debugger:
        Backend(debugger).step(4, TOKENS)
        failure = join(debugger.monitor, RuntimeError(f"Traceback of the planner:\n  scheduler.cuh:529: {REFUSAL}\n"))
    assert failure is not None
    assert failure.said == f"scheduler.cuh:529: {REFUSAL}"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError(f"Error in alternate MLA plan: {REFUSAL}"), "planner"),
        (AcceleratorError("an error"), "device"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "device"),
        (RuntimeError("Triton Error [CUDA]: device-side assert triggered"), "device"),
        (TimeoutError("read timed out"), "timeout"),
        (RuntimeError("shape mismatch"), None),
        (Unprintable(), None),
        (KeyError("kv_indptr"), None),
    ],
)
def test_kinds_of_exceptions(error: Exception, kind: str | None) -> None:
    assert kind_of(error, None) == kind
    outer = ValueError("a step failed")
    outer.__cause__ = error
    assert kind_of(outer, None) == kind


def test_whatever_a_planner_raised_is_its_refusal() -> None:
    plan = HostPlan("W", "decode", 1, b"", "int32", 2, error="no room in the workspace")
    assert kind_of(RuntimeError("no room in the workspace"), plan) == "planner"
    assert kind_of(RuntimeError("something else"), plan) is None


def test_redacted_it_holds_no_values() -> None:
    with pytest.raises(RuntimeError), sg.debug() as debugger:
        debugger.adapter.provide_batches(lambda graph, replay: Batch(3, 4, (41,), ("secret",)))
        crash(debugger)
    (failure,) = redacted(debugger.facts()).failures
    text = msgspec.json.encode(failure).decode()
    assert failure.plan is not None
    assert (failure.said, failure.plan.indptr, failure.plan.found) == ("", (), "")
    assert "secret" not in text
    assert json.loads(text)["batch"]["size"] == 3
    assert msgspec.json.decode(text, type=Failure) == failure
    assert "the program's planner refused: RuntimeError" in str(Report(redacted(debugger.facts())))
