"""SG105 with what is known on a device: no entry in the ledger for each tensor, allocations dated to the end of their
capture, graphs that the checks meet at their first replay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from captures import capture, silent
from msgspec.structs import replace as changed
from playing import played
from pools import ELEMENTS, Cached, Piece, source, weak
from programs import only

import shadowgraph as sg
from shadowgraph.graphs.host.graph import HostGraph
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.device_nodes import DeviceNode, NodeKind, Word
from shadowgraph.model.graphs import Allocation
from shadowgraph.tracking.allocator import host_allocator
from shadowgraph.tracking.pool_watch import borrowers, watch


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    """A debugger over host graphs whose captures leave what those of a device leave."""
    original, begin = HostGraph.capture_end, HostGraph.capture_begin
    since, ledger = list[int](), host_allocator().ledger
    blocks: dict[int, Buffer] = {}  # the ledger's entries, one for each block

    def capture_begin(graph: HostGraph, *args: object, **kwargs: object) -> None:
        since.append(ledger.next_serial())
        begin(graph, *args, **kwargs)  # type: ignore[arg-type]

    def capture_end(graph: HostGraph) -> None:
        now, model = ledger.next_serial(), graph.model
        model.borrowed.clear()
        for made in model.allocations:
            if made.where.start in blocks:
                ledger.free(blocks.pop(made.where.start))
            if made.buffer is None or ledger.at(made.where.start) is not None:
                continue
            entry = changed(made.buffer, serial=ledger.next_serial(), freed_at=None, head_guard=0, tail_guard=0)
            blocks[made.where.start] = ledger.add(entry)
        model._allocations = [
            Allocation(made.before, made.where, now, made.dtype, made.itemsize, made.shape)
            for made in model.allocations
        ]
        borrowers.redate(since.pop(), ledger.next_serial(), model.serial)
        watch.expect(model.serial, [made.where for made in model.allocations])
        original(graph)

    monkeypatch.setattr(HostGraph, "capture_begin", capture_begin)
    monkeypatch.setattr(HostGraph, "capture_end", capture_end)
    with played(monkeypatch, layout="faithful") as debugger:
        yield debugger
    for block in blocks.values():
        ledger.free(block)


def test_a_workspace_that_is_filled_before_the_first_replay(device: sg.Debugger) -> None:
    program = Cached(before=False)
    device.name("cache", program.cache)
    program.workspace.fill_(5)
    assert device.monitor._graphs.waiting, "invalid: the checks know the graph"
    program.graph.replay()
    program.graph.replay()
    found = only(device.findings)
    assert (found.code, found.graph, found.replay) == ("SG105", program.graph.model.name, 1)
    assert (found.culprit.name, found.culprit.node) == ("aten.mul.Tensor", 0)
    assert (found.buffer.name, found.buffer.shape) == ("cache.workspace", (ELEMENTS,))
    assert found.detail.by.name.startswith("float32[64] from pools.py:")
    assert (found.detail.read.node, found.detail.made.name) == (2, "aten.fill_.Scalar")
    assert device.facts().faults == {}


def test_its_fixed_twin(device: sg.Debugger) -> None:
    program = Cached(before=True)
    program.workspace.fill_(5)
    for _ in range(3):
        program.graph.replay()
    assert silent(device)


@pytest.mark.parametrize("inside", [True, False], ids=["made in the capture", "made after it"])
def test_a_weak_output(device: sg.Debugger, inside: bool) -> None:
    pool, given, first = sg.graph_pool_handle(), source(), sg.HostGraph()
    with sg.host_graph(first, pool=pool):
        output = given * 2
        if inside:
            held = weak(output)
            del output
    if not inside:
        held = weak(output)
        del output
    second = Piece(given, 3, pool)
    assert second.output.data_ptr() == held.data_ptr(), "invalid: another block"
    first.replay()
    assert held[1].item() == 2
    second.replay()
    assert second.output[1].item() == 3
    assert device.findings == ()
    assert held[1].item() == 3
    found = only(device.findings)
    assert (found.code, found.graph, found.replay) == ("SG105", second.graph.model.name, 1)
    assert found.detail.owner == first.model.name


def test_names_of_two_weak_outputs_in_one_block(device: sg.Debugger) -> None:
    pool = sg.graph_pool_handle()
    first, second = Piece(source(), 2, pool), Piece(source(), 3, pool)
    assert second.output.data_ptr() == first.output.data_ptr(), "invalid: another block"
    device.name("a", first)
    device.name("second", second)
    first.replay()
    second.replay()
    first.output.tolist()
    found = only(device.findings)
    assert (found.code, found.graph, found.detail.by.name) == ("SG105", second.graph.model.name, "second.output")
    assert not found.buffer.name.startswith("second")
    assert device.facts().faults == {}


def test_a_held_output(device: sg.Debugger) -> None:
    pool, given = sg.graph_pool_handle(), source()
    first, total = capture(lambda: (given * 2).sum(), pool)
    second, output = capture(lambda: given * 3, pool)
    second.replay()
    assert output.clone().sum() == given.sum() * 3
    first.replay()
    assert device.findings == ()
    output.clone()
    found = only(device.findings)
    assert total.numel() == 1
    assert (found.code, found.graph, found.detail.owner) == ("SG105", first.model.name, second.model.name)


def test_a_graph_over_a_weak_output(device: sg.Debugger) -> None:
    pool, result = sg.graph_pool_handle(), torch.zeros(ELEMENTS)
    first = Piece(source(), 2, pool)
    second, _ = capture(lambda: torch.add(first.output, 1, out=result), pool)
    third = Piece(source(), 3, pool)
    for piece in (first, second, third, first, second):
        piece.replay()
    assert silent(device)
    third.replay()
    second.replay()
    found = only(device.findings)
    assert (found.graph, found.detail.read.graph, found.detail.read.replay) == (
        third.graph.model.name,
        second.model.name,
        3,
    )


def test_pieces_in_order(device: sg.Debugger) -> None:
    pool, given = sg.graph_pool_handle(), source()
    pieces = [Piece(given, 2, pool)]
    for factor in (3, 4, 5):
        pieces.append(Piece(pieces[-1].output, factor, pool))
    for step in range(5):
        given.fill_(step)
        for piece in pieces:
            piece.replay()
        assert pieces[-1].output.unique().tolist() == [120 * step]
    assert silent(device)


def test_a_kernel_may_write_all_that_it_is_given(device: sg.Debugger) -> None:
    """On a device it is not seen what a kernel stores: an output that one was given may be its own."""
    from pool_kernels import shifted

    given, graph = source().int(), sg.HostGraph()
    with sg.host_graph(graph):
        total = (given * 2).sum()
        output = torch.empty(ELEMENTS, dtype=torch.int32)
        shifted[(1,)](given, output, BLOCK=ELEMENTS)
        sums = output.sum()
    output.zero_()
    for _ in range(3):
        graph.replay()
        assert output.tolist() == (given + 1).tolist()
        assert sums.item() == (given + 1).sum()
    assert total.numel() == 1
    assert silent(device)


def test_a_node_of_which_no_launch_is_known(device: sg.Debugger) -> None:
    """What a kernel past the dispatcher does to memory that it was given is not known."""
    program = Cached(before=False)
    program.workspace.fill_(5)
    word = Word(0, 0, "", program.workspace.data_ptr())
    node = DeviceNode(0, NodeKind.KERNEL, "attend", (1, 1, 1), (32, 1, 1), (word,))
    program.graph.model.build_device_later(lambda: (node,))
    program.graph.replay()
    assert silent(device)


def test_an_output_over_what_eager_code_wrote_for_another_graph(device: sg.Debugger) -> None:
    """As vLLM's pieces and its whole graphs in one pool: attention between the pieces writes an output of a piece. A
    later capture gave its bytes to a temporary, and then to the output that its own attention fills."""
    pool, given, piece, whole = sg.graph_pool_handle(), source(), sg.HostGraph(), sg.HostGraph()
    with sg.host_graph(piece, pool=pool):
        output = given * 2
        held = weak(output)
        del output
    with sg.host_graph(whole, pool=pool):
        total = (given * 3).sum()
        attended = torch.empty(ELEMENTS)
        assert attended.data_ptr() == held.data_ptr(), "invalid: it lies elsewhere"
        torch.mul(given, 2, out=attended)
        result = attended + total
        del attended
    for _ in range(3):
        piece.replay()
        torch.mul(given, 2, out=held)
        assert held.tolist() == (given * 2).tolist()
        whole.replay()
        assert torch.equal(result, given * 2 + given.sum() * 3)
    assert silent(device)


def test_a_weak_output_that_is_made_after_each_replay(device: sg.Debugger) -> None:
    """Whether the newest tensor there lives is not known: of which graph the memory is, is not certain."""
    pool, given, first = sg.graph_pool_handle(), source(), sg.HostGraph()
    with sg.host_graph(first, pool=pool):
        output = given * 2
    kept = weak(output)
    del output
    second, total = capture(lambda: (given * 3).sum(), pool)
    for _ in range(3):
        first.replay()
        assert weak(kept)[1].item() == 2
        second.replay()
        assert total == given.sum() * 3
    assert silent(device)
