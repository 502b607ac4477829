"""The adapter on real flashinfer: what graphs captured, what plans were made from, what the planner's exception means.

As in `test_flashinfer_cuda`, every length stays below flashinfer's smallest chunk, so that what a graph reads in place
of what was planned is wrong and harmless.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from helpers_cuda import name_of, only
from test_flashinfer_cuda import DTYPE, HEAD_DIM, HEADS, PAGE, ROOM, ROWS, TOKENS, Backend, flashinfer
from test_flashinfer_cuda import pytestmark as pytestmark

import shadowgraph as sg
from shadowgraph.checks.rebound.check import ReboundInputs
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.demos.device import CudaDevice
from shadowgraph.integrations.flashinfer.planner import MODULE, StandIn

SIZE = 8
WHOLE = (HEADS, HEADS, HEAD_DIM, PAGE)


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    return CudaDevice()


@pytest.fixture
def debugger(device: CudaDevice) -> Iterator[sg.Debugger]:
    flashinfer()
    before = internal_errors.total
    with sg.debug(backend=device.name) as made:
        yield made
    assert internal_errors.total == before, internal_errors.counts


class Decode:
    """A decode wrapper after sglang's: prepare fills index pointers that the wrapper has a view of, the fast plan
    copies nothing."""

    def __init__(self, device: CudaDevice, debugger: sg.Debugger, clone: bool = False) -> None:
        place: Any = {"dtype": torch.int32, "device": device.device}
        self.workspace = torch.empty(128 << 20, dtype=torch.uint8, device=device.device)
        self.query = torch.randn(SIZE, HEADS, HEAD_DIM, dtype=DTYPE, device=device.device)
        self.kv = torch.randn(ROWS * ROOM, 2, PAGE, HEADS, HEAD_DIM, dtype=DTYPE, device=device.device)
        with debugger.guard():
            self.kv_indptr, self.other = torch.zeros(SIZE + 1, **place), torch.zeros(SIZE + 1, **place)
            self.kv_indptr[1:] = torch.arange(1, SIZE + 1, **place) * TOKENS
            self.own = self.kv_indptr.clone() if clone else self.kv_indptr
            self.kv_indices = torch.arange(ROWS * ROOM, **place)
            self.last = torch.ones(SIZE, **place)
        self.wrapper = flashinfer().BatchDecodeWithPagedKVCacheWrapper(
            self.workspace,
            "NHD",
            use_cuda_graph=True,
            paged_kv_indptr_buffer=self.own,
            paged_kv_indices_buffer=self.kv_indices,
            paged_kv_last_page_len_buffer=self.last,
        )
        debugger.name("attn", self)
        self.plan(self.own)
        device.warm_up(self.run)
        self.graph = device.graph()
        with device.capture(self.graph):
            self.out = self.run()
        self.wrapper.begin_forward = partial(flashinfer().fast_decode_plan, self.wrapper)

    def run(self) -> torch.Tensor:
        out: torch.Tensor = self.wrapper.run(self.query, self.kv)
        return out

    def plan(self, indptr: torch.Tensor) -> None:
        self.wrapper.begin_forward(indptr, self.kv_indices, self.last, *WHOLE, q_data_type=DTYPE, kv_data_type=DTYPE)

    def step(self, debugger: sg.Debugger, indptr: torch.Tensor, length: int) -> None:
        with debugger.prepare(self.graph):
            indptr[1:] = torch.arange(1, SIZE + 1, dtype=torch.int32, device=indptr.device) * length
            self.plan(indptr)
        self.graph.replay()


def test_the_module_is_watched_and_stays_where_it_was(device: CudaDevice, debugger: sg.Debugger) -> None:
    decode = Decode(device, debugger)
    assert type(decode.wrapper._cached_module) is StandIn
    assert type(vars(decode.wrapper)[MODULE]) is not StandIn
    assert decode.wrapper.begin_forward.func is flashinfer().fast_decode_plan, "servers compare it"


def test_a_rebound_indptr(device: CudaDevice, debugger: sg.Debugger) -> None:
    decode = Decode(device, debugger)
    decode.step(debugger, decode.kv_indptr, 9)
    assert debugger.check() == ()
    decode.wrapper._paged_kv_indptr_buf = decode.other
    for _ in range(2):
        decode.step(debugger, decode.other, 5)
    found = only(debugger.check())
    assert decode.kv_indptr.tolist() == [9 * i for i in range(SIZE + 1)], "what the graph reads"
    assert (found.code, found.phase, found.graph) == ("SG108", "prepare", name_of(decode.graph))
    assert (found.replay, found.confidence) == (2, "medium")
    assert found.buffer.address == decode.kv_indptr.data_ptr()
    assert (found.bytes.first, found.bytes.last) == (4, 4 * SIZE + 3)
    rebound = found.detail
    assert (rebound.attribute, rebound.moved, rebound.planned) == ("attn.wrapper._paged_kv_indptr_buf", True, True)
    assert rebound.now.address == decode.other.data_ptr()
    assert found.culprit.stack[0].function == "step"


def test_a_clone_that_no_plan_fills(device: CudaDevice, debugger: sg.Debugger) -> None:
    decode = Decode(device, debugger, clone=True)
    for length in (9, 5):
        decode.step(debugger, decode.kv_indptr, length)
    found = only(debugger.check())
    assert decode.own.tolist() == [TOKENS * i for i in range(SIZE + 1)], "what the graph reads"
    assert (found.code, found.replay, found.occurrences) == ("SG108", 1, 2), "the plan before the capture is known"
    assert found.buffer.address == decode.own.data_ptr()
    assert (found.detail.moved, found.detail.now.name) == (False, "attn.kv_indptr")


def test_their_fixed_twin_is_silent(device: CudaDevice, debugger: sg.Debugger) -> None:
    decode = Decode(device, debugger)
    for length in (9, 5, 5, 7):
        decode.step(debugger, decode.kv_indptr, length)
    decode.graph.replay()
    assert debugger.check() == ()
    assert debugger.monitor.checks[ReboundInputs].graphs_of(decode.wrapper) == [debugger.graph(decode.graph)]


def test_another_integer_workspace(device: CudaDevice, debugger: sg.Debugger) -> None:
    decode = Decode(device, debugger)
    decode.step(debugger, decode.kv_indptr, 9)
    captured = decode.wrapper._int_workspace_buffer
    decode.wrapper.reset_workspace_buffer(decode.workspace, torch.empty_like(captured))
    decode.step(debugger, decode.kv_indptr, 9)
    found = only(debugger.check())
    assert (found.code, found.replay, found.bytes) == ("SG108", 2, None)
    assert found.buffer.address == captured.data_ptr()
    assert found.detail.attribute == "attn.wrapper._int_workspace_buffer"


def test_the_last_plan(device: CudaDevice, debugger: sg.Debugger) -> None:
    decode = Decode(device, debugger)
    decode.step(debugger, decode.kv_indptr, 9)
    plan = debugger.monitor.flight_recorder.host_plans.last
    assert plan is not None
    assert (plan.planner, plan.kind) == ("BatchDecodeWithPagedKVCacheWrapper", "decode")
    assert torch.frombuffer(bytearray(plan.indptr), dtype=torch.int32).tolist() == [9 * i for i in range(SIZE + 1)]
    assert (plan.graph, plan.replay, plan.error) == (name_of(decode.graph), 1, "")


@pytest.mark.slow
def test_wrappers_for_prefill_are_bound(device: CudaDevice, debugger: sg.Debugger) -> None:
    place: Any = {"dtype": torch.int32, "device": device.device}
    with debugger.guard():
        qo, kv = torch.arange(SIZE + 1, **place), torch.arange(SIZE + 1, **place) * TOKENS
        indices, last = torch.arange(ROWS * ROOM, **place), torch.ones(SIZE, **place)
    wrapper = flashinfer().BatchPrefillWithPagedKVCacheWrapper(
        torch.empty(128 << 20, dtype=torch.uint8, device=device.device),
        "NHD",
        use_cuda_graph=True,
        backend="fa2",
        qo_indptr_buf=qo,
        paged_kv_indptr_buf=kv,
        paged_kv_indices_buf=indices,
        paged_kv_last_page_len_buf=last,
    )
    query = torch.randn(SIZE, HEADS, HEAD_DIM, dtype=DTYPE, device=device.device)
    cache = torch.randn(ROWS * ROOM, 2, PAGE, HEADS, HEAD_DIM, dtype=DTYPE, device=device.device)
    plan = partial(wrapper.plan, indices.new_tensor(range(SIZE + 1)), paged_kv_last_page_len=last)
    plan = partial(plan, paged_kv_indices=indices, q_data_type=DTYPE, kv_data_type=DTYPE)
    sizes = {"num_qo_heads": HEADS, "num_kv_heads": HEADS, "head_dim_qk": HEAD_DIM, "page_size": PAGE}
    plan(paged_kv_indptr=kv.clone(), **sizes)
    device.warm_up(partial(wrapper.run, query, cache))
    graph = device.graph()
    with device.capture(graph):
        wrapper.run(query, cache)
    for length in (9, 5):
        plan(paged_kv_indptr=torch.arange(SIZE + 1, **place) * length, **sizes)
        graph.replay()
    assert debugger.check() == ()
    assert debugger.monitor.checks[ReboundInputs].graphs_of(wrapper) == [debugger.graph(graph)]
    noted = debugger.monitor.flight_recorder.host_plans.last
    assert noted is not None
    assert (noted.kind, noted.batch_size, noted.graph) == ("paged prefill", SIZE, name_of(graph))


@pytest.mark.slow
def test_the_crash_of_the_report_is_joined_with_what_is_known(device: CudaDevice) -> None:
    flashinfer()
    with pytest.raises(Exception, match=r"kv_indptr\[5\]25 - kv_indptr\[4\]64"), sg.debug(backend="cuda") as debugger:
        backend = Backend(device)
        with debugger.guard():
            backend.init_cuda_graph_state(tensor_cores=True)
        debugger.name("attn", backend)
        backend.capture()
        names = {bs: name_of(graph) for bs, graph in backend.graphs.items()}
        for bs, length in ((8, 5), (4, TOKENS), (8, 5)):
            backend.step(debugger, bs, length, real=False)
    (failure,) = debugger.facts().failures
    assert failure.kind == "planner"
    assert "should be non-negative" in failure.said
    assert (failure.graph, failure.replay) == (names[4], 1)
    plan = failure.plan
    assert plan is not None
    assert plan.indptr == tuple([TOKENS * i for i in range(5)] + [5 * i for i in range(5, 9)])
    assert (plan.broken, plan.failed, plan.buffer) == ((5,), True, "attn.wrappers[8]._paged_kv_indptr_buf")
    assert (plan.graph, plan.replay) == (names[8], 2)
    assert [(one.entry, one.graph, one.culprit.name) for one in plan.writers] == [
        (4, names[4], "aten.copy_.default"),
        (5, names[8], "aten.copy_.default"),
    ]
    assert plan.found.startswith("SG102 in-graph mutation: ")


def test_a_plan_tells_how_much_of_the_indices_it_uses(device: CudaDevice, debugger: sg.Debugger) -> None:
    decode = Decode(device, debugger)
    for length in (3, 5, 4):
        decode.step(debugger, decode.kv_indptr, length)
    assert debugger.check() == ()
    assert debugger.notes == ()
    (mark,) = [mark for mark in debugger.facts().high_water if mark.source == "plan"]
    assert (mark.used, mark.least, mark.latest, mark.steps) == (5 * SIZE, 3 * SIZE, 4 * SIZE, 3)
    assert (mark.capacity, mark.graph) == (ROWS * ROOM, name_of(decode.graph))
