"""The flashinfer adapter on wrappers that plan and run as flashinfer's do."""

from __future__ import annotations

import ctypes
import gc
from functools import partial
from types import SimpleNamespace
from typing import Any

import planning_wrappers as wrappers
import pytest
import torch
from planning_backend import Backend, ints

import shadowgraph as sg
from shadowgraph.checks.mutation.check import InGraphMutation
from shadowgraph.integrations.flashinfer.adapter import Attachment
from shadowgraph.integrations.flashinfer.hooks import Hooks
from shadowgraph.integrations.flashinfer.planner import MODULE
from shadowgraph.integrations.flashinfer.versions import WRAPPERS
from shadowgraph.model.launch_log_format import RowKind
from shadowgraph.model.launch_log_reader import contents_of
from shadowgraph.tracking import launch_recording

DECODE, MLA = WRAPPERS[0], WRAPPERS[4]


def silent(debugger: sg.Debugger) -> bool:
    assert any(graph.replays > 1 for graph in debugger.graphs), "a silence over nothing"
    assert debugger.monitor.flight_recorder.host_plans.last is not None, "plans were seen"
    return debugger.check() == () and debugger.notes == ()


def only(debugger: sg.Debugger) -> Any:
    assert len(debugger.findings) == 1, [finding.message for finding in debugger.findings]
    return debugger.findings[0]


# -- SG108 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "own"])
def test_a_rebound_indptr(debugger: sg.Debugger, fast: bool) -> None:
    """Fast, the caller fills what it plans from; flashinfer's own way copies onto what the attribute leads to."""
    backend = Backend(debugger)
    backend.capture(fast)
    assert backend.step(3, [4, 5, 6]) == [4, 5, 6]
    with debugger.guard():
        backend.other, source = torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    backend.wrappers[3]._paged_kv_indptr_buf = backend.other[:4]
    given = backend.other if fast else source
    assert backend.step(3, [7, 5, 9], given) == [4, 5, 6], "the graph reads what an older step left"
    assert backend.step(3, [7, 5, 9], given) == [4, 5, 6]
    found = only(debugger)
    assert (found.code, found.severity, found.phase, found.replay) == ("SG108", "error", "prepare", 2)
    assert (found.graph, found.confidence) == (backend.graphs[3].model.name, "high")
    assert (found.detected_at, found.occurrences) == ("replay_begin", 2)
    assert (found.buffer.name, found.buffer.shape) == ("attn.kv_indptr", (4,))
    assert (found.bytes.first, found.bytes.last, found.bytes.count) == (4, 15, 12)
    rebound = found.detail
    assert (rebound.attribute, rebound.moved, rebound.planned) == ("attn.wrappers[3]._paged_kv_indptr_buf", True, True)
    assert rebound.now.name == "attn.other"
    assert (found.culprit.status, found.culprit.stack[0].function) == ("candidate", "plan")
    assert found.culprit.file.endswith("planning_backend.py" if fast else "planning_wrappers.py")
    said = str(debugger.report(quiet=True))
    assert "but attn.wrappers[3]._paged_kv_indptr_buf leads to attn.other since, which host code refreshes" in said
    assert "  0 4 9 15  should be 00 00 00 00 07 00 00 00 0c 00 00 00 15 00 00 00" in said


def test_its_fixed_twins_refresh_in_place_or_capture_again(debugger: sg.Debugger) -> None:
    backend = Backend(debugger)
    backend.capture()
    for lens in ([4, 5, 6], [7, 5, 9], [1, 1, 1], [1, 1, 1]):
        assert backend.step(3, lens) == lens
    with debugger.guard():
        backend.other = torch.zeros(8, dtype=torch.int32)
    backend.wrappers[3]._paged_kv_indptr_buf = backend.other[:4]
    backend.plan(3, [1, 1, 1], backend.other)
    backend.graphs[3].reset()
    with sg.host_graph(backend.graphs[3]):
        backend.wrappers[3].run()
    for lens in ([4, 5, 6], [7, 5, 9]):
        assert backend.step(3, lens, backend.other) == lens
    assert silent(debugger)


@pytest.mark.parametrize("fixed", [False, True])
def test_a_clone_that_no_plan_fills(debugger: sg.Debugger, fixed: bool) -> None:
    """The captured wrapper has a clone of its own, the fast plan copies nothing, and prepare fills the original."""
    backend = Backend(debugger)
    with debugger.guard():
        backend.clone = backend.kv_indptr.clone()
    if not fixed:
        backend.wrappers[3]._paged_kv_indptr_buf = backend.clone[:4]
    backend.capture()
    for step in ([3, 4, 5], [3, 4, 6], [9, 9, 9]):
        assert backend.step(3, step) == (step if fixed else [16, 16, 16]), "what the graph reads"
    if fixed:
        assert silent(debugger)
        return
    found = only(debugger)
    assert (found.code, found.replay, found.occurrences, found.confidence) == ("SG108", 1, 3, "high")
    assert found.buffer.name == "attn.wrappers[3]._paged_kv_indptr_buf"
    rebound = found.detail
    assert (rebound.attribute, rebound.moved) == ("attn.wrappers[3]._paged_kv_indptr_buf", False)
    assert (rebound.planned, rebound.now.name) == (True, "attn.kv_indptr")
    assert (found.culprit.name, found.culprit.stack[0].function) == ("aten.copy_.default", "plan")
    assert "which host code did not refresh, but attn.kv_indptr, as the plan needs, while pre" in found.message


# -- SG102 -----------------------------------------------------------------------------------------------------------


def overwritten(debugger: sg.Debugger, given: str) -> torch.Tensor:
    """Plans from index pointers, one entry a row, that the graph overwrites; they go up by one, as positions do."""
    backend = Backend(debugger)
    with debugger.guard():
        lens = ints(1, 2, 2)
    pointers, wrapper = backend.kv_indptr[:4], backend.wrappers[3]
    pointers.copy_(torch.arange(4))
    wrapper.begin_forward(pointers, backend.kv_indices[:3], backend.last[:3])
    with sg.host_graph(backend.graphs[3]):
        pointers[1:].copy_(lens.cumsum(0))
        wrapper.run()
    wrappers.plan_fast(wrapper)
    for _ in range(3):
        if given == "nothing":
            pointers.tolist()
        else:
            seen = pointers.to("cpu", copy=True)
            host = seen if given == "read" else ints(0, 7, 8, 9)
            module, workspaces = wrapper._cached_module, wrapper._workspaces()
            wrapper._plan_info = module.plan(*workspaces, host, 3, 8, 8, 1, True)
        backend.graphs[3].replay()
    return pointers


def test_a_planner_that_is_given_what_a_graph_overwrote(debugger: sg.Debugger) -> None:
    overwritten(debugger, "read")
    found = next(each for each in debugger.check() if each.code == "SG102")
    assert (found.buffer.name, found.replay, found.severity) == ("attn.kv_indptr", 1, "error")
    assert (found.reader.name, found.reader.wrote) == ("to", None)


@pytest.mark.parametrize("given", ["nothing", "other values"])
def test_pointers_that_are_read_and_not_planned_from(debugger: sg.Debugger, given: str) -> None:
    overwritten(debugger, given)
    assert "SG102" not in {each.code for each in (*debugger.check(), *debugger.notes)}
    assert {each.code for each in debugger.inferred} == {"SG102"}


class Mla:
    """An MLA wrapper over buffers of a backend, and a graph of it."""

    def __init__(self, debugger: sg.Debugger) -> None:
        with debugger.guard():
            self.kv_indptr, self.lens = torch.zeros(4, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
            self.cuda_graph_kv_indptr, self.qo = self.kv_indptr.clone(), torch.arange(4, dtype=torch.int32)
            self.indices, self.other = torch.zeros(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
            self.wrapper = wrappers.MlaWrapper(
                torch.zeros(64),
                qo_indptr=self.qo,
                kv_indptr=self.cuda_graph_kv_indptr,
                kv_indices=self.indices,
                kv_len_arr=self.lens,
            )
        debugger.name("mla", self)
        self.wrapper.plan(self.qo, ints(0, 1, 2, 3), ints(7, 8, 9), ints(1, 1, 1))
        self.graph = sg.HostGraph()
        with sg.host_graph(self.graph):
            self.wrapper.run()
        self.wrapper.plan = partial(wrappers.fast_mla_plan, self.wrapper)  # type: ignore[method-assign]

    def step(self, indices: torch.Tensor, *values: int) -> list[int]:
        """Fill indices, and the index pointers that the captured wrapper does not have; plan from host tensors."""
        self.kv_indptr.copy_(ints(0, 1, 2, 3))
        indices[:3] = ints(*values)
        self.wrapper.plan(ints(0, 1, 2, 3), ints(0, 1, 2, 3), indices, ints(1, 1, 1))
        self.graph.replay()
        out: list[int] = self.wrapper.out.tolist()
        return out


def test_indices_of_an_mla_wrapper(debugger: sg.Debugger) -> None:
    mla = Mla(debugger)
    assert mla.step(mla.indices, 4, 5, 6) == [4, 5, 6]
    assert debugger.check() == (), "its kernels are given no index pointers, whatever becomes of these"
    mla.wrapper._kv_indices_buf = mla.other
    mla.other[3:] = 41  # beyond what the plan uses
    assert mla.step(mla.other, 4, 3, 6) == [4, 5, 6]
    found = only(debugger)
    assert (found.code, found.replay, found.buffer.name) == ("SG108", 2, "mla.indices")
    assert (found.bytes.first, found.bytes.last, found.bytes.count) == (4, 7, 4)
    assert (found.detail.attribute, found.detail.moved) == ("mla.wrapper._kv_indices_buf", True)
    assert found.detail.now.name in ("mla.other", "mla.wrapper._kv_indices_buf")


def test_an_mla_wrapper_that_keeps_its_indices_is_silent(debugger: sg.Debugger) -> None:
    mla = Mla(debugger)
    for values in ((4, 5, 6), (4, 5, 6), (1, 1, 1)):
        assert mla.step(mla.indices, *values) == list(values)
    assert silent(debugger)


def test_another_integer_workspace_is_planned_into(debugger: sg.Debugger) -> None:
    backend = Backend(debugger)
    backend.capture()
    backend.step(3, [4, 5, 6])
    wrapper = backend.wrappers[3]
    captured = wrapper._int_workspace_buffer
    wrapper._int_workspace_buffer = torch.zeros_like(captured)
    backend.step(3, [4, 5, 6])
    found = only(debugger)
    assert (found.code, found.replay, found.bytes) == ("SG108", 2, None)
    assert found.buffer.address == captured.data_ptr()
    assert found.detail.attribute.endswith("attn.wrappers[3]._int_workspace_buffer")
    assert found.detail.now.address == wrapper._int_workspace_buffer.data_ptr()


# -- what must stay silent -------------------------------------------------------------------------------------------


def test_sizes_that_share_a_prefix(debugger: sg.Debugger) -> None:
    backend = Backend(debugger, sizes=(4, 2))
    backend.capture()
    for lens in ([4, 5, 6, 7], [3, 3], [1, 2, 3, 4], [9, 9], [9, 9], [1, 2, 3, 4]):
        assert backend.step(len(lens), lens) == lens
    assert silent(debugger)


def test_a_rebound_attribute_of_equal_values_and_a_replay_without_a_plan(debugger: sg.Debugger) -> None:
    backend = Backend(debugger)
    backend.capture()
    backend.step(3, [4, 5, 6])
    wrapper = backend.wrappers[3]
    kept = wrapper._paged_kv_last_page_len_buf
    wrapper._paged_kv_last_page_len_buf = kept.clone()
    backend.step(3, [7, 5, 6])
    assert kept.tolist() == [1, 1, 1], "they hold the same"
    wrapper._paged_kv_indptr_buf = ints(0, 1, 2, 3)
    backend.graphs[3].replay()
    assert silent(debugger), "nobody planned for that replay"


def test_a_refresh_by_code_that_nobody_sees(debugger: sg.Debugger) -> None:
    backend = Backend(debugger)
    backend.capture()
    backend.step(3, [4, 5, 6])
    wrapper = backend.wrappers[3]
    own = wrapper._paged_kv_indptr_buf
    for step, lens in enumerate(([7, 5, 9], [1, 2, 3])):
        given = ints(0, lens[0], lens[0] + lens[1], sum(lens))
        ctypes.memmove(own.data_ptr(), given.data_ptr(), given.nbytes)
        if step:  # an upper bound: the plan's values are not the graph's, which are refreshed all the same
            given[3] += 8
        wrapper.begin_forward(given, backend.kv_indices, backend.last[:3])
        backend.graphs[3].replay()
        assert wrapper.out.tolist() == lens
    assert silent(debugger)


def test_index_pointers_that_the_graph_computes(debugger: sg.Debugger) -> None:
    """Prepare fills the lengths, and the graph the index pointers: they hold the last step's when it begins."""
    backend = Backend(debugger)
    with debugger.guard():
        lens = torch.full((3,), 16, dtype=torch.int32)
    wrapper = backend.wrappers[3]
    backend.plan(3, [16, 16, 16])
    with sg.host_graph(backend.graphs[3]):
        wrapper._paged_kv_indptr_buf[1:].copy_(lens.cumsum(0))
        wrapper.run()
    wrappers.plan_fast(wrapper)
    for step in ([4, 5, 6], [4, 5, 6], [7, 8, 9]):
        lens.copy_(ints(*step))
        wrapper.begin_forward(ints(0, step[0], step[0] + step[1], sum(step)), backend.kv_indices, backend.last[:3])
        backend.graphs[3].replay()
        assert wrapper.out.tolist() == step
    assert silent(debugger)


def test_a_wrapper_that_is_gone_and_one_that_is_made_anew(debugger: sg.Debugger) -> None:
    backend = Backend(debugger)
    backend.capture()
    backend.step(3, [4, 5, 6])
    kept = dict(vars(backend.wrappers[3]))
    backend.wrappers[3] = backend.wrapper(3)
    backend.wrappers[3].plan(backend.kv_indptr[:4], backend.kv_indices, backend.last[:3])
    gc.collect()
    backend.graphs[3].replay()
    backend.graphs[3] = sg.HostGraph()
    backend.capture()
    for lens in ([7, 5, 9], [1, 1, 1]):
        assert backend.step(3, lens) == lens
    assert kept["out"].tolist() == [4, 5, 6], "the old graph was replayed, over memory that lives"
    assert silent(debugger)


def test_prefill_by_a_wrapper_without_graphs(debugger: sg.Debugger) -> None:
    backend = Backend(debugger)
    backend.capture()
    eager = backend.wrapper(3)
    eager._use_cuda_graph = False
    for lens in ([4, 5, 6], [7, 5, 9]):
        eager.plan(ints(0, 1, 2, 3), backend.kv_indices[:3], backend.last[:3])
        eager._paged_kv_indptr_buf = backend.kv_indptr[:4].clone()
        backend.step(3, lens)
    assert silent(debugger)


# -- names, phases, plans --------------------------------------------------------------------------------------------


def test_wrappers_are_named_where_the_program_is_not(debugger: sg.Debugger) -> None:
    backend = Backend(debugger, named=False)
    backend.capture()
    names = {owner.path.split("#")[0] + owner.path[owner.path.index(".") :] for owner in debugger.names.living()}
    assert "DecodeWrapper._paged_kv_indptr_buf" in names
    assert "DecodeWrapper._int_workspace_buffer" in names


def test_a_named_program_keeps_its_names(debugger: sg.Debugger) -> None:
    backend = Backend(debugger)
    backend.capture()
    assert not [owner.path for owner in debugger.names.living() if owner.path.startswith("DecodeWrapper")]
    assert "attn.wrappers[3]._paged_kv_indptr_buf" in {owner.path for owner in debugger.names.living()}


def test_the_last_plan_is_kept(debugger: sg.Debugger) -> None:
    backend = Backend(debugger, sizes=(4, 2))
    backend.capture()
    backend.step(4, [4, 5, 6, 7])
    backend.step(2, [3, 3])
    plan = debugger.monitor.flight_recorder.host_plans.last
    assert plan is not None
    assert (plan.planner, plan.kind, plan.batch_size, plan.entries) == ("DecodeWrapper", "decode", 2, 3)
    assert torch.frombuffer(bytearray(plan.indptr), dtype=torch.int32).tolist() == [0, 3, 6]
    assert (plan.graph, plan.replay) == (backend.graphs[2].model.name, 1)
    assert plan.into is not None
    assert (plan.into.start, plan.error) == (backend.kv_indptr.data_ptr(), "")
    log = launch_recording.current
    assert log is not None
    row = contents_of(log.memory).last(RowKind.PLAN)
    assert row is not None
    assert (row.graph, row.replay) == (backend.graphs[2].model.serial, 1)
    assert row.text == "DecodeWrapper (decode): 2 requests, 6 entries"


def test_what_a_plan_launches_prepares_its_graphs_replay(debugger: sg.Debugger) -> None:
    backend = Backend(debugger)
    backend.capture(fast=False)
    backend.step(3, [4, 5, 6], torch.zeros(8, dtype=torch.int32))
    ran = [entry for entry in debugger.monitor.flight_recorder.taken()[0] if entry.phase == "prepare"]
    assert {entry.launch.name for entry in ran} >= {"aten.copy_.default"}
    assert not debugger.monitor.preparing.anywhere


def test_a_host_read_is_the_plans(debugger: sg.Debugger) -> None:
    """A planner of compiled code reads index pointers where no method of the tensor is called."""
    backend = Backend(debugger)
    backend.capture()
    seen: list[str] = []
    debugger.monitor.checks[InGraphMutation].host_read = lambda view, how, *_: seen.append(how)  # type: ignore[method-assign,misc]
    wrapper = backend.wrappers[3]
    workspaces = wrapper._workspaces()
    quiet = SimpleNamespace(plan=lambda *args: None)
    wrapper._cached_module = quiet
    wrapper._cached_module.plan(*workspaces, backend.kv_indptr[:4], 3)
    assert seen == ["plan"]


# -- attached and not ------------------------------------------------------------------------------------------------


def test_while_nobody_watches_it_is_as_if_not_there(attached: Attachment) -> None:
    workspace, last = torch.zeros(8), torch.ones(3, dtype=torch.int32)
    wrapper = wrappers.DecodeWrapper(workspace, ints(0, 0, 0, 0), torch.zeros(9, dtype=torch.int32), last)
    assert not hasattr(wrapper, MODULE)
    wrapper.plan(ints(0, 1, 2, 3), ints(1, 2, 3), last)
    assert type(wrapper._cached_module) is SimpleNamespace
    assert vars(wrapper)[MODULE] is wrapper._cached_module
    with sg.debug():
        assert type(vars(wrapper)[MODULE]) is SimpleNamespace
        assert type(wrapper._cached_module) is not SimpleNamespace
        assert wrapper._cached_module.run is not vars(wrapper)[MODULE].run
        wrapper._cached_module = wrapper._cached_module
        assert type(vars(wrapper)[MODULE]) is SimpleNamespace, "a proxy is never stored"
    del wrapper._cached_module
    with pytest.raises(AttributeError):
        wrapper._cached_module  # noqa: B018


def test_taken_down_the_classes_are_as_before() -> None:
    before = dict(vars(wrappers.DecodeWrapper))
    made = Attachment(Hooks())
    made.hang([(wrappers.DecodeWrapper, DECODE)])
    assert dict(vars(wrappers.DecodeWrapper)) != before
    made.take_down()
    assert dict(vars(wrappers.DecodeWrapper)) == before


def test_a_planners_exception_is_the_programs(debugger: sg.Debugger) -> None:
    backend = Backend(debugger)
    backend.capture()
    with pytest.raises(RuntimeError, match=r"kv_indptr\[2\]1 - kv_indptr\[1\]5 should be non-negative"):
        backend.wrappers[3].begin_forward(ints(0, 5, 1, 9), backend.kv_indices, backend.last[:3])
    plan = debugger.monitor.flight_recorder.host_plans.last
    assert plan is not None
    assert plan.error == "kv_indptr[2]1 - kv_indptr[1]5 should be non-negative"
    assert not debugger.monitor.preparing.anywhere


# -- SG113 -----------------------------------------------------------------------------------------------------------


def test_a_plan_tells_how_much_of_the_indices_it_uses(debugger: sg.Debugger) -> None:
    """Its wrapper's indices are filled by what is not seen; the plan for each replay has their number."""
    backend = Backend(debugger)
    backend.capture()
    wrapper = backend.wrappers[3]
    wrapper._paged_kv_indices_buf = backend.kv_indices[:48]
    for length in range(3, 37, 3):
        backend.step(3, [length, 1, 1])
    assert debugger.notes == ()  # no adapter knows the batch
    told = {mark.source: mark for mark in debugger.facts().high_water if mark.capacity == 48}
    assert (told["plan"].used, told["plan"].least, told["plan"].steps) == (38, 5, 12)
