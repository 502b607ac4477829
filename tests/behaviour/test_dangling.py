"""SG104 on real programs: what a graph was captured with and lost."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from captures import graph_over, silent, uses_floats
from programs import guarded, only

import shadowgraph as sg
from shadowgraph.common.errors import FindingsError, FreedInputError
from shadowgraph.tracking import frees

pytestmark = pytest.mark.parametrize("layout", ["isolate", "faithful"])


class Owner:
    """Whatever holds a tensor."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        self.__dict__.update(tensors)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


# -- guarded buffers: the program goes on, as on CUDA ----------------------------------------------------------------


@pytest.mark.parametrize("named", ["object", "dict", "after the capture"])
def test_a_rebound_input(layout: str, named: str) -> None:
    with sg.debug(layout=layout) as debugger:
        owner = Owner(buf=uses_floats(debugger, 64))
        if named == "object":
            debugger.name("owner", owner)
        elif named == "dict":
            debugger.name("owner", {"buf": owner.buf})
        serial = debugger.buffers[-1].serial
        graph = graph_over(lambda: owner.buf.add_(1))
        if named == "after the capture":
            debugger.name("owner", owner)
        graph.replay()
        assert silent(debugger)
        address = owner.buf.data_ptr()
        owner.buf = uses_floats(debugger, 128)
        owner.victim = uses_floats(debugger, 64)
        assert owner.victim.data_ptr() == address, "this allocator hands the block out again"
        graph.replay()
        graph.replay()
        found = only(debugger.findings)
    assert (found.code, found.severity, found.phase, found.replay) == ("SG104", "error", "replay", 2)
    assert (found.graph, found.detected_at, found.occurrences) == (graph.model.name, "replay_begin", 1)
    path = 'owner["buf"]' if named == "dict" else "owner.buf"
    assert (found.buffer.name, found.buffer.serial, found.buffer.role) == (path, serial, "static")
    assert found.buffer.allocated[1].function == "uses_floats"
    assert (found.culprit.name, found.culprit.node, found.culprit.status) == ("aten.add_.Tensor", 0, "confirmed")
    assert found.culprit.file.endswith("test_dangling.py")
    ending = found.detail
    assert (ending.access, ending.writes, ending.fate) == ("live-in", True, "freed")
    assert (ending.first, ending.last) == (0, 255)
    victim = only(ending.victims)
    assert (victim.address, victim.nbytes, victim.shape) == (address, 256, (64,))
    assert victim.allocated[1].function == "uses_floats"
    if named != "dict":
        assert victim.name == "owner.victim"
        assert (ending.replaced_by.name, ending.replaced_by.shape) == ("owner.buf", (128,))
    assert owner.victim.unique().tolist() == [2.0], "what was said has happened"


def test_its_fixed_twin_captures_again(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        owner = Owner(buf=uses_floats(debugger, 64))
        debugger.name("owner", owner)
        graph = graph_over(lambda: owner.buf.add_(1))
        graph.replay()
        owner.buf = uses_floats(debugger, 128)
        graph.reset()
        with sg.host_graph(graph):
            owner.buf.add_(1)
        graph.replay()
        assert silent(debugger)


def test_the_other_fixed_twin_refreshes_in_place(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        owner = Owner(buf=uses_floats(debugger, 64))
        graph = graph_over(lambda: owner.buf.add_(1))
        for step in range(3):
            owner.buf.copy_(torch.full((64,), float(step)))
            graph.replay()
        assert silent(debugger)


def test_an_output_that_is_only_written(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        source, held = uses_floats(debugger, 64), [uses_floats(debugger, 64)]
        graph = graph_over(lambda: torch.mul(source, 2, out=held[0]))
        graph.replay()
        held.clear()
        graph.replay()
        found = only(debugger.findings)
    assert (found.code, found.replay, found.culprit.name) == ("SG104", 2, "aten.mul.out")
    assert (found.detail.access, found.detail.writes, found.detail.victims) == ("external-out", True, ())


def test_freed_in_the_middle_of_the_capture(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        held = [uses_floats(debugger, 64)]
        graph = graph_over(lambda: held.pop() * 2)
        graph.replay()
        found = only(debugger.findings)
    assert (found.code, found.replay, found.culprit.node) == ("SG104", 1, 0)


def test_a_kernel_is_confirmed_by_its_stores(layout: str) -> None:
    from shadowgraph.demos.kernels import fill

    with sg.debug(layout=layout) as debugger:
        held = [guarded(debugger, 8)]
        graph = graph_over(lambda: fill[(1,)](held[0], 0, 8, 1, BLOCK=8))
        graph.replay()
        held.clear()
        graph.replay()
        found = only(debugger.findings)
    assert (found.code, found.replay, found.confidence) == ("SG104", 2, "high")
    assert (found.culprit.name, found.culprit.status) == ("fill", "confirmed")
    assert found.culprit.source is not None
    assert found.detail.known
    assert "fill (node 0) writes " in found.message


def test_a_victim_that_comes_later_is_a_revision(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        owner = Owner(buf=uses_floats(debugger, 64))
        debugger.name("owner", owner)
        graph = graph_over(lambda: owner.buf.add_(1))
        owner.buf = uses_floats(debugger, 128)
        graph.replay()
        first = only(debugger.findings)
        owner.victim = uses_floats(debugger, 64)
        for _ in range(3):
            graph.replay()
        again = only(debugger.findings)
    assert (first.detail.victims, first.revision) == ((), 1)
    assert (again.id, again.revision, again.replay, again.occurrences) == (first.id, 2, 1, 2)
    assert [victim.name for victim in again.detail.victims] == ["owner.victim"]
    assert "owner.victim" in again.message


def test_sync_raises_before_the_replay(layout: str) -> None:
    with sg.debug(layout=layout, sync=True) as debugger:
        held = [uses_floats(debugger, 64)]
        graph = graph_over(lambda: held[0].add_(1))
        graph.replay()
        held.clear()
        victim = uses_floats(debugger, 64)
        with pytest.raises(FindingsError, match="SG104 dangling pointer"):
            graph.replay()
        assert not victim.any()


def test_the_report_and_the_document_tell_all(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        owner = Owner(buf=uses_floats(debugger, 64))
        debugger.name("owner", owner)
        graph = graph_over(lambda: owner.buf[:16].add_(1))
        owner.buf = uses_floats(debugger, 128)
        owner.victim = uses_floats(debugger, 64)
        graph.replay()
        text = str(debugger.report(quiet=True))
        document = only(debugger.findings).to_dict()
    said = "aten.add_.Tensor (node 0) reads and writes owner.buf (float32[64], 256 bytes), freed since the capture"
    assert f"SG104 dangling pointer: {said}, now owner.victim, in replay 1 of {graph.model.name}\n" in text
    assert f"captured   live-in: {graph.model.name} reads it before it writes it; 64 bytes from 0 on\n" in text
    assert "now        owner.victim  float32[64]  256 bytes at 0x" in text
    assert "has these bytes, which the graph overwrites\n" in text
    assert "replaced   by owner.buf  float32[128]  512 bytes at 0x" in text
    assert document["detail"]["victims"][0]["name"] == "owner.victim"
    assert (document["detail"]["access"], document["detail"]["last"]) == ("live-in", 63)


# -- which line let go of it -----------------------------------------------------------------------------------------


def evict(cache: dict[str, torch.Tensor]) -> int:
    cache.pop("slot")
    return sys._getframe().f_lineno - 1


def rebind(cache: dict[str, torch.Tensor]) -> int:
    cache["slot"] = torch.zeros(4)
    return sys._getframe().f_lineno - 1


def in_another_thread(cache: dict[str, torch.Tensor]) -> int:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(evict, cache).result()


@pytest.mark.parametrize("let_go", [evict, rebind, in_another_thread])
@pytest.mark.parametrize("own", [True, False], ids=["guarded", "foreign"])
def test_the_line_that_freed_it(layout: str, own: bool, let_go: Callable[[dict[str, torch.Tensor]], int]) -> None:
    with sg.debug(layout=layout) as debugger:
        cache = {"slot": uses_floats(debugger, 64) if own else torch.zeros(64)}
        graph = graph_over(lambda: cache["slot"].add_(1))
        graph.replay()
        line = let_go(cache)
        with nullcontext() if own else pytest.raises(FreedInputError):
            graph.replay()
        found = only(debugger.findings)
        text = str(debugger.report(quiet=True))
    frame = found.detail.freed_by[0]
    assert (frame.file, frame.line) == (__file__, line)
    named = found.detail.freed_source and '["slot"]' in found.buffer.name
    label = "rebound  " if let_go is rebind and named else "freed    "
    assert f"{label}  tests/behaviour/test_dangling.py:{line} in {frame.function}\n" in text
    assert found.detail.freed_source in text


def test_a_buffer_that_the_garbage_collector_freed_has_no_line(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        owner = Owner(buf=uses_floats(debugger, 64))
        owner.__dict__["itself"] = owner
        graph = graph_over(lambda: owner.buf.add_(1))
        graph.replay()
        owner = Owner()
        assert debugger.findings == (), "precondition: the cycle keeps it"
        gc.collect()
        graph.replay()
        found = only(debugger.findings)
    assert (found.code, found.detail.freed_by) == ("SG104", ())


def test_a_buffer_that_no_graph_was_captured_with_costs_no_stack(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with sg.debug(layout=layout) as debugger:
        graph_over(lambda: uses_floats(debugger, 64).add_(1)).replay()
        eager = uses_floats(debugger, 64)
        monkeypatch.setattr(frees, "current_stack", lambda: pytest.fail("a stack was walked"))
        del eager
    assert silent(debugger)


def test_a_guarded_buffer_that_was_resized_has_moved(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        tensor = uses_floats(debugger, 64)
        graph = graph_over(lambda: tensor.add_(1))
        graph.replay()
        before = tensor.data_ptr()
        tensor.resize_(1 << 16)
        assert tensor.data_ptr() != before, "invalid: it grew in place"
        graph.replay()
        found = only(debugger.findings)
    assert (found.code, found.detail.fate) == ("SG104", "moved")
    assert found.detail.freed_by[0].file == __file__


# -- memory of torch's own: the replay is refused, the finding is there all the same ---------------------------------


def test_a_freed_foreign_input(layout: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "shadowgraph"), sg.debug(layout=layout) as debugger:
        owner = Owner(buf=torch.zeros(64))
        debugger.name("owner", {"buf": owner.buf})
        graph = graph_over(lambda: owner.buf * 2)
        graph.replay()
        owner.buf = torch.zeros(128)
        for _ in range(2):
            with pytest.raises(FreedInputError):
                graph.replay()
        found = only(debugger.findings)
    assert (found.code, found.replay, found.detected_at, found.occurrences) == ("SG104", 2, "replay_refused", 1)
    assert (found.buffer.name, found.buffer.role) == ('owner["buf"]', "foreign")
    assert (found.detail.access, found.detail.fate, found.culprit.node) == ("live-in", "freed", 0)
    assert [record.message for record in caplog.records].count(found.message) == 1
    assert graph.model.replays == 1


@pytest.mark.parametrize(
    "move",
    [lambda t: t.resize_(1 << 20), lambda t: t.untyped_storage().resize_(0), lambda t: t.share_memory_()],
    ids=["grown", "given up", "shared"],
)
def test_a_foreign_input_that_moved(layout: str, move: Callable[[torch.Tensor], object]) -> None:
    with sg.debug(layout=layout) as debugger:
        tensor = torch.zeros(4096)
        debugger.name("tensor", tensor)
        graph = graph_over(lambda: tensor.add_(1))
        graph.replay()
        before = tensor.data_ptr()
        move(tensor)
        assert tensor.data_ptr() != before
        with pytest.raises(FreedInputError):
            graph.replay()
        found = only(debugger.findings)
    assert (found.code, found.detail.fate, found.replay) == ("SG104", "moved", 2)
    assert found.buffer.name == "tensor"
    assert "moved to other memory since the capture" in found.message


def test_sync_raises_the_finding_where_the_replay_is_refused(layout: str) -> None:
    with sg.debug(layout=layout, sync=True) as debugger:
        held = [torch.zeros(64)]
        graph = graph_over(lambda: held[0] * 2)
        held.clear()
        with pytest.raises(FindingsError, match="SG104"):
            graph.replay()
        with pytest.raises(FreedInputError):
            graph.replay()
        assert len(debugger.findings) == 1


def test_a_paused_debugger_says_nothing(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        held = [torch.zeros(64)]
        graph = graph_over(lambda: held[0] * 2)
        held.clear()
        debugger.pause()
        with pytest.raises(FreedInputError):
            graph.replay()
        assert debugger.findings == ()


class Layer:
    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight


@pytest.mark.parametrize("swap", ["data", "attribute"])
def test_a_parameter_that_was_swapped_has_the_name_that_it_had(layout: str, swap: str) -> None:
    """Weights are loaded anew or offloaded: no memory of ours, named before it is freed."""
    with sg.debug(layout=layout, guard_eager="auto") as debugger:
        layer, inputs = Layer(torch.nn.Parameter(torch.ones(64), requires_grad=False)), torch.ones(64)
        graph = graph_over(lambda: layer.weight * inputs)
        graph.replay()
        if swap == "data":
            layer.weight.data = torch.zeros(64)
        else:
            layer.weight = torch.nn.Parameter(torch.zeros(64), requires_grad=False)
        with pytest.raises(FreedInputError):
            graph.replay()
        found = only(debugger.findings)
    assert (found.code, found.buffer.role, found.buffer.name) == ("SG104", "foreign", "layer.weight")
