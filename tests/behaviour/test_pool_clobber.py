"""SG105 on real programs: memory of a pool that is read as one tensor's after another one was written there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from captures import capture, silent
from pools import ELEMENTS, Cached, Piece, source, weak
from programs import only

import shadowgraph as sg
from shadowgraph.checks.pool_clobber.facts import ClobberDetail
from shadowgraph.render.text.text import Report

pytestmark = pytest.mark.parametrize("layout", ["isolate", "faithful"])
NBYTES = 4 * ELEMENTS


def clobber(debugger: sg.Debugger) -> tuple[Any, ClobberDetail]:
    found = only(debugger.findings)
    assert (found.code, found.severity) == ("SG105", "error")
    assert isinstance(found.detail, ClobberDetail)
    assert debugger.facts().faults == {}
    return found, found.detail


# -- a workspace that is cached inside a capture ---------------------------------------------------------------------


def test_a_workspace_over_a_freed_temporary(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        program = Cached(before=False)
        debugger.name("cache", program.cache)
        program.workspace.fill_(5)
        assert debugger.findings == ()
        program.graph.replay()
        program.graph.replay()
        assert (program.workspace.data_ptr() == program.address) is (layout == "faithful"), "invalid: another block"
        found, detail = clobber(debugger)
    assert (found.phase, found.graph, found.replay) == ("replay", program.graph.model.name, 1)
    assert (found.detected_at, found.occurrences) == ("replay_begin", 2)
    assert found.buffer.name == "cache.workspace"
    assert found.buffer.role == "pool"
    assert (found.bytes.first, found.bytes.last, found.bytes.count) == (0, NBYTES - 1, NBYTES)
    assert (found.culprit.name, found.culprit.node, found.culprit.status) == ("aten.mul.Tensor", 0, "confirmed")
    assert found.culprit.file.endswith("pools.py")
    assert detail.by.allocated[0].line == found.culprit.line
    assert (detail.owner, detail.by_owner, detail.fate) == (found.graph, found.graph, "alive")
    assert (detail.read.name, detail.read.node, detail.read.replay) == ("aten.add.Tensor", 2, 1)
    assert (detail.made.name, detail.made.graph) == ("aten.fill_.Scalar", None)
    assert detail.made.file.endswith("test_pool_clobber.py")
    assert detail.apart is (layout == "isolate")
    assert found.confidence == ("medium" if detail.apart else "high")
    if layout == "faithful":
        assert torch.equal(program.output, source() * 3), "what was said has happened"


@pytest.mark.parametrize("elements", [16, 100, 128])
def test_a_temporary_of_another_size_in_the_block(layout: str, elements: int) -> None:
    with sg.debug(layout=layout) as debugger:
        given, graph = source(elements=128), sg.HostGraph()
        with sg.host_graph(graph):
            total = (given[:elements] * 2).sum()
            workspace = torch.empty(ELEMENTS)
            output = given[:ELEMENTS] + workspace
        workspace.fill_(5)
        graph.replay()
        found, _ = clobber(debugger)
        assert total.item() == (given[:elements] * 2).sum()
        assert output.numel() == ELEMENTS
    assert found.bytes.last == min(elements, ELEMENTS) * 4 - 1


def test_a_workspace_that_only_the_host_reads(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        given, graph = source(), sg.HostGraph()
        with sg.host_graph(graph):
            total = (given * 2).sum()
            workspace = torch.empty(ELEMENTS)
        workspace.zero_()
        graph.replay()
        graph.replay()
        assert debugger.findings == ()
        values = workspace.tolist()
        found, detail = clobber(debugger)
    assert total.shape == ()
    assert (found.replay, found.reader.name, found.detected_at) == (2, "tolist", "host_read")
    assert found.reader.file.endswith("test_pool_clobber.py")
    assert (detail.read.name, detail.read.graph, detail.made.name) == ("tolist", None, "aten.zero_.default")
    if layout == "faithful":
        assert values == (source() * 2).tolist()


def test_a_kernel_that_only_reads_the_workspace(layout: str) -> None:
    from pool_kernels import shifted

    with sg.debug(layout=layout) as debugger:
        given, graph = source().int(), sg.HostGraph()
        output = torch.zeros(ELEMENTS, dtype=torch.int32)
        with sg.host_graph(graph):
            total = (given * 0).sum()
            workspace = torch.empty(ELEMENTS, dtype=torch.int32)
            shifted[(1,)](workspace, output, BLOCK=ELEMENTS)
        workspace.copy_(given)
        graph.replay()
        found, detail = clobber(debugger)
    assert total.shape == ()
    assert (found.replay, detail.read.name, detail.read.node) == (1, "shifted", 2)


def test_a_kernel_in_eager_code_reads_a_held_output(layout: str) -> None:
    from pool_kernels import shifted

    with sg.debug(layout=layout) as debugger:
        pool, given, result = sg.graph_pool_handle(), source(), torch.zeros(ELEMENTS)
        first, total = capture(lambda: (given * 2).sum(), pool)
        second, output = capture(lambda: given * 3, pool)
        second.replay()
        shifted[(1,)](output, result, BLOCK=ELEMENTS)
        first.replay()
        assert debugger.findings == ()
        shifted[(1,)](output, result, BLOCK=ELEMENTS)
        found, detail = clobber(debugger)
    assert total.numel() == 1
    assert (found.graph, detail.owner, detail.read.name) == (first.model.name, second.model.name, "shifted")


def test_it_is_told_from_the_replay_before(layout: str) -> None:
    """The graph reads the workspace before the temporary of another graph is written: the next replay gets that."""
    with sg.debug(layout=layout) as debugger:
        pool, given = sg.graph_pool_handle(), source()
        one, total = capture(lambda: (given * 2).sum(), pool)
        two, workspace = capture(lambda: torch.empty(ELEMENTS), pool)
        three, output = capture(lambda: workspace + 1, pool)
        workspace.fill_(5)
        two.replay()
        three.replay()
        assert debugger.findings == ()
        one.replay()
        assert debugger.findings == ()
        three.replay()
        found, detail = clobber(debugger)
    assert total.shape == ()
    assert (found.graph, found.replay) == (one.model.name, 1)
    assert (detail.read.graph, detail.read.replay) == (three.model.name, 2)
    assert torch.equal(output, source() * 2 + 1)


@pytest.mark.parametrize("before", [True, False], ids=["made before the capture", "never filled"])
def test_its_fixed_twins(layout: str, before: bool) -> None:
    with sg.debug(layout=layout) as debugger:
        program = Cached(before)
        if before:
            program.workspace.fill_(5)
        for _ in range(3):
            program.graph.replay()
        if before:
            assert torch.equal(program.output, source() + 5)
        assert silent(debugger)


def test_a_workspace_that_the_graph_fills_itself(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        given, graph = source(), sg.HostGraph()
        with sg.host_graph(graph):
            total = (given * 2).sum()
            workspace = torch.zeros(ELEMENTS)
            workspace += given
        workspace.fill_(7)
        for _ in range(3):
            graph.replay()
            assert torch.equal(workspace, given)
            assert total.item() == given.sum() * 2
        assert silent(debugger)


def test_a_workspace_in_a_block_of_its_own(layout: str) -> None:
    """The temporary lives as long as the workspace is allocated: they never share a block."""
    with sg.debug(layout=layout) as debugger:
        given, graph = source(), sg.HostGraph()
        with sg.host_graph(graph):
            temporary = given * 2
            workspace = torch.empty(ELEMENTS)
            output = temporary + workspace
            del temporary
        workspace.fill_(5)
        for _ in range(3):
            graph.replay()
            assert torch.equal(output, given * 2 + 5)
            assert workspace.unique().tolist() == [5]
        assert silent(debugger)


# -- outputs of graphs that share a pool -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["tolist", "cpu", "item", "clone", "arithmetic", "an index", "a view"])
def test_a_weak_output_after_another_graphs_replay(layout: str, how: str) -> None:
    reads = {
        "tolist": lambda t: t.tolist(),
        "cpu": lambda t: t.cpu(),
        "item": lambda t: t[3].item(),
        "clone": lambda t: t.clone(),
        "arithmetic": lambda t: t + 1,
        "an index": lambda t: torch.index_select(t, 0, torch.tensor([1, 2])),
        "a view": lambda t: t.view(8, 8)[1:3].sum(),
    }
    names = {"clone": "aten.clone.default", "arithmetic": "aten.add.Tensor", "a view": "aten.sum.default"}
    with sg.debug(layout=layout) as debugger:
        pool = sg.graph_pool_handle()
        first, second = Piece(source(), 2, pool), Piece(source(), 3, pool)
        assert first.output.data_ptr() == second.output.data_ptr(), "invalid: another block"
        first.replay()
        reads[how](first.output)
        second.replay()
        reads[how](second.output)
        assert debugger.findings == ()
        reads[how](first.output)
        found, detail = clobber(debugger)
    assert (found.phase, found.graph, found.replay) == ("replay", second.graph.model.name, 1)
    assert (found.culprit.name, found.culprit.node) == ("aten.mul.Tensor", 0)
    assert (detail.owner, detail.by_owner) == (first.graph.model.name, second.graph.model.name)
    assert (detail.made.graph, detail.made.replay) == (first.graph.model.name, 1)
    assert detail.fate == "freed"
    assert detail.read.name == names.get(how, detail.read.name)
    assert detail.read.file.endswith("test_pool_clobber.py")
    assert not detail.apart


def test_a_held_output_over_a_temporary_of_a_graph_before(layout: str) -> None:
    """No weak reference: the output lives, in a block that the other graph has used and freed in its capture."""
    with sg.debug(layout=layout) as debugger:
        pool, given = sg.graph_pool_handle(), source()
        first, total = capture(lambda: (given * 2).sum(), pool)
        second, output = capture(lambda: given * 3, pool)
        second.replay()
        assert output.tolist() == (given * 3).tolist()
        first.replay()
        assert debugger.findings == ()
        assert total.item() == (given * 2).sum()
        if output.tolist() == (given * 3).tolist():
            pytest.fail("invalid: nothing was overwritten")
        found, detail = clobber(debugger)
    assert (found.graph, detail.owner, detail.fate) == (first.model.name, second.model.name, "alive")


def test_a_weak_output_over_a_later_temporary_of_its_own_graph(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        given, graph = source(), sg.HostGraph()
        with sg.host_graph(graph):
            output = given * 2
            held = weak(output)
            del output
            total = (given * 3).sum()
        graph.replay()
        held.tolist()
        found, detail = clobber(debugger)
    assert total.shape == ()
    assert (found.culprit.node, detail.made.node, detail.apart) == (1, 0, layout == "isolate")


def test_a_graph_that_was_captured_with_a_weak_output(layout: str) -> None:
    """A third graph's capture takes the memory; the second one reads it as the first one's output."""
    with sg.debug(layout=layout) as debugger:
        pool = sg.graph_pool_handle()
        first = Piece(source(), 2, pool)
        output = torch.zeros(ELEMENTS)
        second, _ = capture(lambda: torch.add(first.output, 1, out=output), pool)
        third = Piece(source(), 3, pool)
        assert third.output.data_ptr() == first.output.data_ptr(), "invalid: another block"
        for piece in (first, second, third):
            piece.replay()
        assert debugger.findings == ()
        first.replay()
        third.replay()
        second.replay()
        found, detail = clobber(debugger)
    assert (found.graph, found.replay, found.detected_at) == (third.graph.model.name, 2, "replay_begin")
    assert (detail.read.graph, detail.read.replay, detail.read.node) == (second.model.name, 2, 0)
    assert (detail.made.graph, detail.made.replay) == (first.graph.model.name, 2)
    assert torch.equal(output, source() * 3 + 1)


def test_a_piece_is_replayed_without_the_one_before(layout: str) -> None:
    """Its output has the block of its input: it finds its own."""
    with sg.debug(layout=layout) as debugger:
        pool = sg.graph_pool_handle()
        first = Piece(source(), 2, pool)
        second = Piece(first.output, 3, pool)
        assert second.output.data_ptr() == first.output.data_ptr(), "invalid: another block"
        for _ in range(2):
            first.replay()
            second.replay()
        assert second.output.tolist() == (source() * 6).tolist()
        assert debugger.findings == ()
        second.replay()
        found, detail = clobber(debugger)
    assert (found.graph, found.replay) == (second.graph.model.name, 2)
    assert (detail.read.graph, detail.read.replay, detail.made.graph) == (found.graph, 3, first.graph.model.name)


def test_a_capture_takes_the_memory_of_its_own_weak_input(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        pool = sg.graph_pool_handle()
        given, first, second = source(), Piece(source(), 2, pool), sg.HostGraph()
        with sg.host_graph(second, pool=pool):
            temporary = given * 5
            assert temporary.data_ptr() == first.output.data_ptr(), "invalid: another block"
            output = first.output + 1
        first.replay()
        second.replay()
        found, detail = clobber(debugger)
    assert output.shape == (ELEMENTS,)
    assert (found.graph, found.culprit.node, detail.read.node) == (second.model.name, 0, 1)


def test_a_wrapper_that_died_while_its_graph_goes_on_writing(layout: str) -> None:
    class Wrapper:
        def __init__(self) -> None:
            self.buf = torch.zeros(ELEMENTS)

        def run(self, given: torch.Tensor) -> torch.Tensor:
            self.buf.copy_(given)
            return self.buf.sum()

    with sg.debug(layout=layout) as debugger:
        pool, given, first = sg.graph_pool_handle(), source(), sg.HostGraph()
        with sg.host_graph(first, pool=pool):
            wrapper = Wrapper()
            total = wrapper.run(given)
        address = wrapper.buf.data_ptr()
        first.replay()
        del wrapper
        second, state = capture(lambda: torch.empty(ELEMENTS), pool)
        assert state.data_ptr() == address, "invalid: another block"
        debugger.name("state", {"of": state})
        state.fill_(-1)
        second.replay()
        assert state.tolist() == [-1.0] * ELEMENTS
        first.replay()
        assert state.tolist() != [-1.0] * ELEMENTS
        found, detail = clobber(debugger)
    assert total.item() == given.sum()
    assert (found.buffer.name, found.graph, found.replay) == ('state["of"]', first.model.name, 2)
    assert (found.culprit.name, detail.fate, detail.made.name) == ("aten.copy_.default", "alive", "aten.fill_.Scalar")


def test_eager_code_that_was_handed_the_block(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        pool = sg.graph_pool_handle()
        first = Piece(source(), 2, pool)
        second, state = capture(lambda: torch.empty(ELEMENTS), pool)
        assert state.data_ptr() == first.output.data_ptr(), "invalid: another block"
        first.replay()
        assert first.output[1].item() == 2
        state.fill_(-1)
        assert first.output[1].item() == -1
        found, detail = clobber(debugger)
    assert second.model.replays == 0
    assert (found.phase, found.graph, found.culprit.name) == ("eager", None, "aten.fill_.Scalar")
    assert found.culprit.file.endswith("test_pool_clobber.py")
    assert (detail.made.graph, detail.made.replay) == (first.graph.model.name, 1)


def test_the_report(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        pool = sg.graph_pool_handle()
        first, second = Piece(source(), 2, pool), Piece(source(), 3, pool)
        first.replay()
        second.replay()
        first.output.tolist()
        said = str(Report(debugger.facts()))
    assert "SG105 pool clobber: aten.mul.Tensor (node 0) writes " in said
    assert ", which tolist reads after that, in replay 1 of " in said
    assert f"  made       in replay 1 of {first.graph.model.name}, node 0 aten.mul.Tensor at " in said
    assert f", of the capture of {second.graph.model.name}, has the same bytes\n" in said
    assert "  read by    the host, tolist at " in said
    assert "  bytes      0 to 255 of a 256-byte buffer, 256 overwritten\n" in said
