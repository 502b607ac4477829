"""SG104 on a device: from the ledger alone, before the replay, whether or not an address was used again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers_cuda import capture, fill, guarded, name_of, only, warm_kernels

import shadowgraph as sg

pytestmark = [pytest.mark.gpu, pytest.mark.parametrize("layout", ["isolate", "faithful"])]


class Owner:
    """Whatever holds a tensor."""

    buf: torch.Tensor
    victim: torch.Tensor


def floats(debugger: Any, *shape: int) -> torch.Tensor:
    return guarded(debugger, *shape, dtype=torch.float32)


def graph_over(body: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """A graph without a reference to what its body returned, which may be an input."""
    return capture(body)[0]


def silent(debugger: Any) -> bool:
    facts = debugger.report(quiet=True).facts
    assert any(nodes and replays for _, nodes, replays in facts.graphs), "a silence over nothing"
    assert facts.faults == {}
    return facts.findings == () and facts.notes == ()


@pytest.mark.parametrize("before", [0, 2], ids=["never replayed", "replayed"])
def test_a_rebound_input(layout: str, before: int) -> None:
    """What a graph was given is noted while it lives: with no replay before, the checks meet the graph too late."""
    with sg.debug(backend="cuda", layout=layout) as debugger:
        owner = Owner()
        owner.buf = floats(debugger, 64)
        debugger.name("owner", owner)
        graph = graph_over(lambda: owner.buf.add_(1))
        for _ in range(before):
            graph.replay()
        assert debugger.check() == ()
        address = owner.buf.data_ptr()
        owner.buf = floats(debugger, 128)
        owner.victim = floats(debugger, 64)
        assert owner.victim.data_ptr() == address, "this allocator hands the block out again"
        graph.replay()
        graph.replay()
        found = only(debugger.check())
        facts = debugger.facts()
    assert (found.code, found.severity, found.phase, found.replay) == ("SG104", "error", "replay", before + 1)
    assert (found.graph, found.detected_at, found.occurrences) == (name_of(graph), "replay_begin", 1)
    assert (found.buffer.name, found.buffer.nbytes, found.buffer.role) == ("owner.buf", 256, "static")
    assert (found.culprit.name, found.culprit.node, found.culprit.status) == ("aten.add_.Tensor", 0, "confirmed")
    assert found.culprit.file.endswith("test_dangling_cuda.py")
    ending = found.detail
    assert (ending.access, ending.writes, ending.fate) == ("live-in", True, "freed")
    assert [(victim.name, victim.address) for victim in ending.victims] == [("owner.victim", address)]
    assert (ending.replaced_by.name, ending.replaced_by.shape) == ("owner.buf", (128,))
    assert owner.victim.unique().tolist() == [2.0], "what was said has happened"
    assert facts.faults == {}


def test_its_fixed_twin_captures_again(layout: str) -> None:
    with sg.debug(backend="cuda", layout=layout) as debugger:
        owner = Owner()
        owner.buf = floats(debugger, 64)
        graph = graph_over(lambda: owner.buf.add_(1))
        graph.replay()
        owner.buf = floats(debugger, 128)
        graph = graph_over(lambda: owner.buf.add_(1))
        owner.victim = floats(debugger, 64)
        graph.replay()
        assert silent(debugger)
    assert not owner.victim.any()


def test_memory_of_torchs_own_allocator(layout: str) -> None:
    """Nobody guards or tracks the victim; an owner leads to it."""
    with sg.debug(backend="cuda", layout=layout) as debugger:
        owner = Owner()
        owner.buf = torch.zeros(1 << 20, device="cuda")
        debugger.name("owner", owner)
        graph = graph_over(lambda: owner.buf.add_(1))
        graph.replay()
        address = owner.buf.data_ptr()
        del owner.buf
        owner.victim = torch.zeros(1 << 20, device="cuda")
        assert owner.victim.data_ptr() == address, "torch's allocator hands the block out again"
        graph.replay()
        found = only(debugger.check())
    assert (found.code, found.replay, found.buffer.role) == ("SG104", 2, "foreign")
    assert found.buffer.name == "owner.buf"
    assert [(victim.name, victim.serial) for victim in found.detail.victims] == [("owner.victim", None)]
    assert found.detail.replaced_by is None


def test_an_output_that_is_only_written(layout: str) -> None:
    with sg.debug(backend="cuda", layout=layout) as debugger:
        source, held = floats(debugger, 64), [floats(debugger, 64)]
        graph = graph_over(lambda: torch.mul(source, 2, out=held[0]))
        graph.replay()
        held.clear()
        graph.replay()
        found = only(debugger.check())
    assert (found.code, found.replay, found.culprit.name) == ("SG104", 2, "aten.mul.out")
    assert (found.detail.access, found.detail.writes) == ("external-out", True)


def test_a_kernel_is_a_candidate(layout: str) -> None:
    warm_kernels()
    with sg.debug(backend="cuda", layout=layout) as debugger:
        held = [guarded(debugger, 64)]
        graph = graph_over(lambda: fill(held[0]))
        graph.replay()
        assert debugger.check() == ()
        held.clear()
        graph.replay()
        found = only(debugger.check())
    assert (found.code, found.replay, found.confidence) == ("SG104", 2, "medium")
    assert (found.culprit.name, found.culprit.status) == ("put", "candidate")
    assert found.detail.access == "live-in"


def test_freed_in_the_middle_of_the_capture(layout: str) -> None:
    with sg.debug(backend="cuda", layout=layout) as debugger:
        held = [floats(debugger, 64)]
        graph = graph_over(lambda: held.pop() * 2)
        graph.replay()
        found = only(debugger.check())
    assert (found.code, found.replay, found.culprit.node) == ("SG104", 1, 0)


def test_a_storage_that_moved(layout: str) -> None:
    with sg.debug(backend="cuda", layout=layout) as debugger:
        tensor = torch.zeros(64, device="cuda")
        debugger.name("tensor", tensor)
        graph = graph_over(lambda: tensor.add_(1))
        graph.replay()
        before = tensor.data_ptr()
        tensor.resize_(1 << 20)
        assert tensor.data_ptr() != before
        graph.replay()
        found = only(debugger.check())
    assert (found.code, found.replay, found.buffer.name, found.detail.fate) == ("SG104", 2, "tensor", "moved")


# -- what only looks like it -----------------------------------------------------------------------------------------


def test_temporaries_of_the_capture_and_its_result(layout: str) -> None:
    with sg.debug(backend="cuda", layout=layout) as debugger:
        source = floats(debugger, 64)
        graph, result = capture(lambda: ((source * 2).exp() + 1).sum())
        graph.replay()
        del result
        graph.replay()
        graph.replay()
        assert silent(debugger)


def test_what_compiled_code_allocates_in_the_capture(layout: str) -> None:
    """No dispatch mode sees these allocations: the tensors are first met as somebody's arguments."""

    @torch.compile
    def step(source: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (source.relu() @ weight).exp() @ weight

    with sg.debug(backend="cuda", layout=layout) as debugger:
        source, weight = torch.ones(64, 64, device="cuda"), torch.ones(64, 64, device="cuda") / 64
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                step(source, weight)
        torch.cuda.current_stream().wait_stream(side)
        graph, result = capture(lambda: step(source, weight))
        graph.replay()
        del result
        for _ in range(2):
            graph.replay()
        assert silent(debugger)


@pytest.mark.parametrize("shared", [True, False])
def test_a_graph_that_reads_what_another_makes(layout: str, shared: bool) -> None:
    with sg.debug(backend="cuda", layout=layout) as debugger:
        pools = [torch.cuda.graph_pool_handle() for _ in range(2)]
        source = floats(debugger, 64)
        source.fill_(3)
        first, made = capture(lambda: [source * 2], pool=pools[0])
        second, out = capture(lambda: made[0] + 1, pool=pools[0] if shared else pools[1])
        made.clear()
        for _ in range(2):
            first.replay()
            second.replay()
        assert silent(debugger)
    assert out.unique().tolist() == [7.0]


def test_numbers_of_the_host(layout: str) -> None:
    """The value of a CPU scalar is part of the launch."""
    with sg.debug(backend="cuda", layout=layout) as debugger:
        source, held = floats(debugger, 64), [torch.tensor(2.0)]
        graph = graph_over(lambda: source * held[0] + 3.5)
        held.clear()
        graph.replay()
        assert silent(debugger)


def test_a_view_that_goes_while_its_storage_stays_and_a_graph_that_was_reset(layout: str) -> None:
    with sg.debug(backend="cuda", layout=layout) as debugger:
        base, foreign, other = floats(debugger, 64), torch.zeros(64, device="cuda"), [floats(debugger, 64)]
        views = [base[8:], foreign[8:]]
        graph = graph_over(lambda: views[0] + views[1])
        gone = graph_over(lambda: other[0] * 2)
        gone.replay()
        gone.reset()
        other.clear()
        views.clear()
        for _ in range(2):
            graph.replay()
        assert silent(debugger)


def test_buffers_freed_after_the_last_replay(layout: str) -> None:
    with sg.debug(backend="cuda", layout=layout) as debugger:
        held = [floats(debugger, 64), torch.zeros(64, device="cuda")]
        graph = graph_over(lambda: held[0] + held[1])
        graph.replay()
        held.clear()
        assert silent(debugger)
    assert debugger.findings == ()
