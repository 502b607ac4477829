"""SG111 from bytes and from a device played on the host: what arrived, what was queued, what was written meanwhile."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
import torch
from support.played_device import PlayedDevice

from shadowgraph.checks.base import Checkpoint, Context, Detection
from shadowgraph.checks.host_write.check import MOST, HostWrites
from shadowgraph.checks.host_write.comparing import Damage, Format, damage_of
from shadowgraph.checks.host_write.kind import HostWriteKind
from shadowgraph.common.settings import Settings
from shadowgraph.model.buffers import Ledger
from shadowgraph.model.device_nodes import DeviceNode, NodeKind, Sureness, Word
from shadowgraph.model.findings import Severity
from shadowgraph.model.graphs import Access, Graph, Launch, LaunchKind, Node, Pointer
from shadowgraph.model.host_copies import (
    COMPARED,
    HostBlock,
    HostCopy,
    HostKind,
    HostWrite,
    QueuedCopy,
    bytes_at,
    pieces_of,
)
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.stacks import Frame
from shadowgraph.model.views import TensorView
from shadowgraph.tracking import host_memory, pending_sources
from shadowgraph.tracking.aliases import NameBook
from shadowgraph.tracking.host_memory import note_device_writes, note_used

LINE = (Frame("/srv/app/runner.py", 12, "prepare"),)
INT32 = Format("int32", "int32", 4)


# -- the bytes -------------------------------------------------------------------------------------------------------


def ints(*values: int, dtype: str = "int32") -> bytes:
    return np.array(values, dtype=dtype).tobytes()


def judged(before: bytes, arrived: bytes, now: bytes | None, *writes: bytes, form: Format = INT32) -> Damage | None:
    pieces = (ByteRange(0, len(before)),)
    return damage_of(pieces, [before], [arrived], None if now is None else [now], [[each] for each in writes], form)


def test_all_arrived() -> None:
    assert judged(ints(1, 1), ints(1, 1), ints(2, 2), ints(2, 2)) is None


def test_the_exact_bytes_and_the_write_that_did_it() -> None:
    found = judged(
        ints(1, 1, 1, 1), ints(1, 2, 1, 3), ints(9, 9, 9, 9), ints(1, 2, 1, 1), ints(1, 2, 1, 3), ints(9, 9, 9, 9)
    )
    assert found is not None
    assert (found.ranges, found.count) == (((4, 4), (12, 12)), 2)
    assert (found.window, found.expected, found.found) == (0, ints(1, 1, 1, 1), ints(1, 2, 1, 3))
    assert found.writer == 1


def test_a_copy_torn_in_two_is_of_the_write_whose_bytes_arrived_where_wrong_ones_did() -> None:
    found = judged(ints(1, 1, 1, 1), ints(1, 1, 2, 2), ints(2, 2, 2, 2), ints(2, 2, 2, 2))
    assert found is not None
    assert (found.writer, found.ranges[0][0]) == (0, 8)


def test_a_write_that_no_one_saw() -> None:
    found = judged(ints(1, 1), ints(2, 2), ints(2, 2))
    assert found is not None
    assert found.writer is None
    later = judged(ints(1, 1), ints(2, 2), ints(3, 3))
    assert later is not None, "it was rewritten once more, in good time"


def test_what_else_wrote_the_target_is_not_told() -> None:
    assert judged(ints(1, 1), ints(7, 7), ints(1, 1)) is None, "the source was never rewritten"
    assert judged(ints(1, 1), ints(7, 7), None) is None, "the source is gone"
    assert judged(ints(1, 1, 1), ints(1, 7, 1), ints(2, 1, 1)) is None, "it was rewritten elsewhere"


@pytest.mark.parametrize(
    ("source", "target", "values"),
    [("int64", "int32", (1, -5, 1 << 40)), ("uint8", "int64", (0, 200)), ("bool", "int32", (1, 0))],
)
def test_integers_that_the_copy_converts(source: str, target: str, values: tuple[int, ...]) -> None:
    before = np.array(values).astype(source)
    form = Format(source, target, before.itemsize)
    wanted = before.astype(target)
    assert judged(before.tobytes(), wanted.tobytes(), before.tobytes(), form=form) is None
    other = before.copy()
    other[1] = not other[1] if source == "bool" else 7
    found = judged(before.tobytes(), other.astype(target).tobytes(), other.tobytes(), form=form)
    assert found is not None
    size = before.itemsize
    assert (found.ranges, found.count) == (((size, 2 * size - 1),), size)
    assert found.found == other.tobytes()


def test_a_large_copy_in_pieces() -> None:
    assert pieces_of(COMPARED) == (ByteRange(0, COMPARED),)
    pieces = pieces_of(10 * COMPARED + 3)
    assert sum(piece.nbytes for piece in pieces) == COMPARED
    assert (pieces[0].start, pieces[-1].stop) == (0, 10 * COMPARED + 3)
    assert all(a.stop <= b.start for a, b in pairwise(pieces))
    before, after = [b"\0" * piece.nbytes for piece in pieces], [b"\0" * piece.nbytes for piece in pieces]
    after[3] = b"\0" * 5 + b"\1" * 2 + after[3][7:]
    found = damage_of(pieces, before, after, after, [], Format("uint8", "uint8", 1))
    assert found is not None
    assert found.ranges == ((pieces[3].start + 5, pieces[3].start + 6),)


# -- the check, on a device that runs when it is told to -----------------------------------------------------------


class Bench:
    """A check over a played device, and what it reported."""

    def __init__(self) -> None:
        self.ledger, self.device = Ledger(), PlayedDevice()
        self.drafts: list[Detection] = []
        self.context = Context(
            Settings(), cast(Any, None), self.ledger, self.device, NameBook(self.ledger), self.drafts.append
        )
        self.check = HostWrites(self.context)

    def copy(self, target: torch.Tensor, source: torch.Tensor, checkpoint: Checkpoint | None = None) -> None:
        """An asynchronous copy of host code."""
        view, pieces = TensorView.of(source), pieces_of(source.nbytes)
        launch = Launch(LaunchKind.ATEN, "aten.copy_.default", (), LINE)
        before = bytes_at(view.address, pieces)
        self.device.copy(target, source)
        storage = weakref.ref(source.untyped_storage())
        queued = QueuedCopy(lambda: launch, view, TensorView.of(target), pieces, before, storage)
        self.check.copy_queued(queued, checkpoint or Checkpoint("copy"))

    def write(self, source: torch.Tensor, value: int) -> None:
        """An operator that is seen."""
        view = TensorView.of(source)
        seen = pending_sources.hit(view.start, view.stop)
        launch = Launch(LaunchKind.ATEN, "aten.fill_.Scalar", (Pointer("self", view, Access.WRITE),), LINE)
        write = HostWrite(launch, (view.hull,))
        if seen:
            self.check.host_write_begins(write)
        source.fill_(value)
        if seen:
            self.check.host_write_ran(write)

    def arrive(self) -> list[Detection]:
        """The device does its work, and what it has read is handed out."""
        self.device.run()
        for result in self.device.poll():
            for key, data in result.fetched:
                assert self.check.owns(key)
                self.check.fetched(key, data, cast(Any, result.tag))
        return self.drafts

    def graph(self, source: torch.Tensor, target: torch.Tensor, *others: Launch, **facts: Any) -> Graph:
        """A graph that copies, with the nodes that were read of it."""
        copies = Launch(
            LaunchKind.ATEN, "aten.copy_.default", (Pointer("self", TensorView.of(target), Access.WRITE),), LINE
        )
        graph = Graph(1, "graph#1", [Node(at, each) for at, each in enumerate((copies, *others))])
        host, device = TensorView.of(source).hull, TensorView.of(target).hull
        graph.host_copies = (HostCopy(0, host, device, False, HostBlock(HostKind.PINNED, 7)),)
        read = [DeviceNode(0, NodeKind.MEMCPY, "memcpy host to device", launch=0)]
        read += [DeviceNode(at, NodeKind.KERNEL, each.name, launch=at) for at, each in enumerate(others, 1)]
        graph.build_device_later(lambda: (*read, *facts.get("nodes", ())))
        self.context.graphs[1] = graph
        return graph

    def replay(self, graph: Graph, work: Callable[[], Any]) -> None:
        graph.replays += 1
        self.check.replay_begins(Checkpoint("replay_begin", None, graph, graph.replays))
        self.device.then(work)
        self.check.replay_ends(Checkpoint("replay_end", Phase.REPLAY, graph, graph.replays))


@pytest.fixture
def bench() -> Iterator[Bench]:
    yield Bench()
    pending_sources.publish(())
    host_memory._written_by_device.clear()


def pair(count: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Pinned and device memory."""
    return torch.zeros(count, dtype=torch.int32), torch.zeros(count, dtype=torch.int32)


def only(drafts: list[Detection]) -> Detection:
    assert len(drafts) == 1
    return drafts[0]


def test_rewritten_at_once_by_an_operator(bench: Bench) -> None:
    pinned, buffer = pair()
    bench.write(pinned, 1)
    bench.copy(buffer, pinned)
    bench.write(pinned, 2)
    found = only(bench.arrive())
    assert buffer.unique().tolist() == [2], "invalid: no damage"
    assert (found.code, found.severity, found.confidence) == ("SG111", Severity.ERROR, "high")
    assert (found.first, found.last) == (pinned.data_ptr(), pinned.data_ptr() + 4 * 63)
    assert (found.count, found.ranges_total) == (64, 64)
    (culprit,) = found.culprits
    assert (culprit.launch.name, culprit.hull) == ("aten.fill_.Scalar", False)
    assert (found.buffer.start, found.buffer.nbytes, found.view) == (pinned.data_ptr(), 256, None)
    detail = HostWriteKind().describe(found, bench.context)
    assert (detail.copy, detail.copied_at, detail.node) == ("aten.copy_.default", LINE, None)  # type: ignore[union-attr]
    assert (detail.target.address, detail.target.nbytes) == (buffer.data_ptr(), 256)  # type: ignore[union-attr]
    assert pending_sources.spans == ()


def test_rewritten_by_two_operators_of_which_each_wrote_a_part(bench: Bench) -> None:
    pinned, buffer = pair()
    bench.copy(buffer, pinned)
    bench.write(pinned[:32], 2)
    bench.write(pinned[32:], 3)
    bench.write(pinned[:0], 4)
    found = only(bench.arrive())
    assert [culprit.ranges for culprit in found.culprits] == [
        RangeSet.of([TensorView.of(part).hull]) for part in (pinned[:32], pinned[32:])
    ]
    assert (found.confidence, found.culprits[0].hull) == ("high", False)


def test_rewritten_by_an_operator_and_by_numpy(bench: Bench) -> None:
    """What arrived is what the source had behind the operator, which wrote another part of it."""
    pinned, buffer = pair()
    bench.copy(buffer, pinned)
    pinned.numpy()[:8] = 2
    bench.write(pinned[8:], 3)
    found = only(bench.arrive())
    assert (found.confidence, [culprit.hull for culprit in found.culprits]) == ("medium", [True])
    detail = HostWriteKind().describe(found, bench.context)
    assert detail.written_by_torch is False  # type: ignore[union-attr]


def test_rewritten_by_numpy(bench: Bench) -> None:
    pinned, buffer = pair()
    bench.copy(buffer, pinned)
    pinned.numpy()[3:5] = 9
    found = only(bench.arrive())
    assert (found.first - pinned.data_ptr(), found.count, found.culprits) == (12, 2, ())
    assert found.confidence == "medium"


def test_fixed_twin_waits_for_the_copy(bench: Bench) -> None:
    pinned, buffer = pair()
    for value in range(3):
        bench.write(pinned, value)
        bench.copy(buffer, pinned)
        bench.device.run()  # as the program's wait would
        pinned.numpy()[:] = value + 100  # before the debugger has taken what arrived
        bench.write(pinned, value + 50)
    assert bench.arrive() == []


def test_two_buffers_in_turns(bench: Bench) -> None:
    (one, buffer), (two, _) = pair(), pair()
    for step, pinned in enumerate((one, two, one, two)):
        if step > 1:
            bench.device.run()
        bench.write(pinned, step)
        bench.copy(buffer, pinned)
    assert bench.arrive() == []


def test_a_kernel_behind_the_copy_may_write_the_target(bench: Bench) -> None:
    pinned, buffer = pair()
    bench.write(pinned, 4)
    bench.copy(buffer, pinned)
    bench.device.then(lambda: buffer.add_(1))
    bench.device.run()
    bench.write(pinned, 5)
    assert bench.arrive() == []
    assert buffer.unique().tolist() == [5]


def test_the_same_value_again_is_no_damage(bench: Bench) -> None:
    pinned, buffer = pair()
    bench.write(pinned, 1)
    bench.copy(buffer, pinned)
    bench.write(pinned, 1)
    assert bench.arrive() == []


def test_a_copy_from_the_device_that_was_queued_before_is_in_order(bench: Bench) -> None:
    pinned, buffer = pair()
    made = torch.full((64,), 8, dtype=torch.int32)
    note_device_writes(pinned)
    bench.device.copy(pinned, made)
    bench.copy(buffer, pinned)
    assert bench.arrive() == []
    assert buffer.unique().tolist() == [8]
    bench.copy(buffer, pinned)
    bench.write(pinned, 9)
    assert only(bench.arrive()).culprits, "what an operator was seen to write is told all the same"


def test_a_source_that_is_gone_is_not_read(bench: Bench) -> None:
    pinned, buffer = pair()
    bench.copy(buffer, pinned)
    pinned.numpy()[:] = 5
    bench.device.run()
    del pinned
    assert bench.arrive() == []


def test_the_coming_replay_is_that_of_the_graph_that_reads_the_target(bench: Bench) -> None:
    pinned, buffer = pair()
    reads = Launch(LaunchKind.ATEN, "aten.sum.default", (Pointer("self", TensorView.of(buffer), Access.READ),), LINE)
    graphs = [Graph(serial, f"graph#{serial}", [Node(0, reads)]) for serial in (1, 2)]
    bench.context.graphs.update({graph.serial: graph for graph in graphs})
    graphs[1].replays = 5
    bench.copy(buffer, pinned)
    bench.write(pinned, 2)
    graphs[0].replays += 1
    bench.check.replay_begins(Checkpoint("replay_begin", None, graphs[0], 1))
    found = only(bench.arrive())
    assert (found.phase, found.graph, found.replay) == (Phase.PREPARE, graphs[0], 1)
    assert found.reader is not None
    assert (found.reader.name, found.reader.node) == ("aten.sum.default", 0)


def test_without_a_graph(bench: Bench) -> None:
    pinned, buffer = pair()
    bench.copy(buffer, pinned)
    bench.write(pinned, 2)
    assert only(bench.arrive()).phase is Phase.SETUP


def test_no_more_copies_than_the_bound_wait(bench: Bench) -> None:
    pinned, buffer = pair()
    for _ in range(MOST + 10):
        bench.copy(buffer, pinned)
    assert len(bench.device.work) == MOST + MOST + 10
    assert bench.arrive() == []
    bench.copy(buffer, pinned)
    bench.write(pinned, 3)
    assert len(bench.arrive()) == 1


# -- copies that were captured ---------------------------------------------------------------------------------------


def test_a_node_whose_source_is_rewritten_while_the_replay_is_queued(bench: Bench) -> None:
    pinned, buffer = pair()
    note_used(bench.ledger, pinned)
    graph = bench.graph(pinned, buffer)
    for step in range(3):
        bench.write(pinned, step)
        bench.replay(graph, lambda: buffer.copy_(pinned))
        if step < 1:
            bench.device.run()
    found = bench.arrive()
    assert [(each.phase, each.graph, each.replay) for each in found] == [(Phase.REPLAY, graph, 2)]
    assert [culprit.launch.name for culprit in found[0].culprits] == ["aten.fill_.Scalar"]
    detail = HostWriteKind().describe(found[0], bench.context)
    assert (detail.copy, detail.copied_at, detail.node) == ("aten.copy_.default", LINE, 0)  # type: ignore[union-attr]


def test_unseen_writes_of_a_nodes_source(bench: Bench) -> None:
    pinned, buffer = pair()
    note_used(bench.ledger, pinned)
    graph = bench.graph(pinned, buffer)
    bench.replay(graph, lambda: buffer.copy_(pinned))
    pinned.numpy()[:] = 3
    assert only(bench.arrive()).culprits == ()


def test_memory_of_another_library_is_read_as_long_as_the_driver_knows_it(bench: Bench) -> None:
    pinned, buffer = pair()
    graph = bench.graph(pinned, buffer)
    bench.device.blocks[pinned.data_ptr()] = HostBlock(HostKind.PINNED, 7)
    for _ in range(2):
        bench.replay(graph, lambda: buffer.copy_(pinned))
        pinned.numpy()[:] += 1
        assert len(bench.arrive()) == graph.replays
    assert bench.drafts[0].buffer is bench.drafts[1].buffer
    bench.device.blocks[pinned.data_ptr()] = HostBlock(HostKind.PINNED, 8)
    bench.replay(graph, lambda: buffer.copy_(pinned))
    pinned.numpy()[:] += 1
    assert len(bench.arrive()) == 2


def kernel(buffer: torch.Tensor, access: Access) -> Launch:
    kind = LaunchKind.TRITON if access is Access.UNKNOWN else LaunchKind.ATEN
    return Launch(kind, "step", (Pointer("x", TensorView.of(buffer), access),), LINE)


@pytest.mark.parametrize("access", [Access.READ_WRITE, Access.UNKNOWN])
def test_what_the_graph_adds_itself_is_not_taken_for_the_hosts_next_value(bench: Bench, access: Access) -> None:
    """positions: the host writes n, the graph copies them and adds 1, the host writes n + 1."""
    pinned, buffer = pair()
    note_used(bench.ledger, pinned)
    graph = bench.graph(pinned, buffer, kernel(buffer, access))
    for step in range(4):
        bench.write(pinned, step)
        bench.replay(graph, lambda: buffer.copy_(pinned).add_(1))
        bench.device.run()
    bench.write(pinned, 4)
    assert bench.arrive() == []


def test_with_such_a_kernel_a_write_must_have_been_seen_in_flight(bench: Bench) -> None:
    pinned, buffer = pair()
    note_used(bench.ledger, pinned)
    graph = bench.graph(pinned, buffer, kernel(buffer, Access.UNKNOWN))
    bench.replay(graph, lambda: buffer.copy_(pinned))
    pinned.numpy()[:] = 6
    assert bench.arrive() == []
    bench.replay(graph, lambda: buffer.copy_(pinned))
    bench.write(pinned, 7)
    assert only(bench.arrive()).replay == 2


def unseen_kernel(*addresses: int) -> DeviceNode:
    words = tuple(Word(at, 0, "", address, Sureness.HIGH) for at, address in enumerate(addresses))
    return DeviceNode(1, NodeKind.KERNEL, "k", words=words)


def test_a_kernel_that_no_operator_launched(bench: Bench) -> None:
    pinned, buffer = pair()
    other = torch.zeros(8)
    for addresses, found in (((buffer.data_ptr() + 8,), 0), ((pinned.data_ptr(),), 0), ((other.data_ptr(),), 1)):
        note_used(bench.ledger, pinned)
        graph = bench.graph(pinned, buffer, nodes=[unseen_kernel(*addresses)])
        bench.replay(graph, lambda: buffer.copy_(pinned))
        pinned.numpy()[:] += 1
        assert len(bench.arrive()) == found


def test_a_replay_in_good_order(bench: Bench) -> None:
    pinned, buffer = pair()
    note_used(bench.ledger, pinned)
    graph = bench.graph(pinned, buffer)
    for step in range(4):
        bench.write(pinned, step)
        bench.replay(graph, lambda: buffer.copy_(pinned))
        bench.device.run()
        pinned.numpy()[:] = 50
    assert bench.arrive() == []


def test_a_nodes_source_that_is_gone_is_not_read(bench: Bench) -> None:
    pinned, buffer = pair()
    note_used(bench.ledger, pinned)
    graph = bench.graph(pinned, buffer)
    del pinned
    bench.replay(graph, lambda: None)
    assert len(bench.device.work) == 1
