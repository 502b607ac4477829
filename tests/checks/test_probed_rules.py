"""What a probed replay shows, judged over made-up nodes and hits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
import torch

import shadowgraph as sg
from shadowgraph.checks.base import Context, Detection
from shadowgraph.checks.foreign_writes.check import ForeignWrites
from shadowgraph.checks.probed import Change, Probed, report_all
from shadowgraph.checks.races.check import Races
from shadowgraph.common.errors import FindingsError
from shadowgraph.localize.probing import PIECES, cut
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.device_nodes import DeviceNode, NodeKind, Word
from shadowgraph.model.graphs import Access, Graph, Launch, LaunchKind, Node, Pointer
from shadowgraph.model.probes import Hit
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.tracking.aliases import buffer_view


class Judged:
    """A buffer, and what checks say of hits on it."""

    def __init__(self, context: Context, buffer: Buffer) -> None:
        self.drafts: list[Detection] = []
        self.buffer = buffer
        self.context = replace(context, report=self.drafts.append)

    def seen(
        self,
        nodes: list[DeviceNode],
        *hits: Hit,
        launches: tuple[Launch, ...] = (),
        meanwhile: tuple[ByteRange, ...] = (),
    ) -> Probed:
        graph = Graph(90_001, "graph", [Node(index, launch) for index, launch in enumerate(launches)])
        graph.build_device_later(lambda: tuple(nodes))
        return Probed(graph, 3, tuple(Change(self.buffer, hit) for hit in hits), RangeSet.of(meanwhile))

    def hit(self, node: int, first: int = 0, last: int = 255, count: int = 256) -> Hit:
        return Hit(node, 0, self.buffer.start + first, self.buffer.start + last, count)


@pytest.fixture
def judged() -> Iterator[Judged]:
    with sg.debug() as debugger:
        with debugger.guard():
            table = torch.zeros(64, dtype=torch.int32)
        (buffer,) = [buffer for buffer in debugger.buffers if buffer.start == table.data_ptr()]
        yield Judged(debugger.monitor.context, buffer)


def node(index: int, kind: NodeKind = NodeKind.KERNEL, address: int = 0, launch: int | None = None) -> DeviceNode:
    words = (Word(0, 0, "", address),) if address else ()
    return DeviceNode(index, kind, f"k{index}", words=words, launch=launch)


@pytest.mark.parametrize(("kind", "races"), [(NodeKind.KERNEL, 1), (NodeKind.EMPTY, 0), (NodeKind.EVENT, 0)])
def test_memory_that_somebody_else_writes_is_no_race(judged: Judged, kind: NodeKind, races: int) -> None:
    """A node that writes nothing seems to have: what the kernels beside it seem to write may be another's as well."""
    nodes = [node(0), node(1, kind), node(2)]
    hits = [judged.hit(1), judged.hit(2)]
    Races(judged.context).probed(judged.seen(nodes, *hits))
    assert [draft.code for draft in judged.drafts] == ["SG112"] * races


@pytest.mark.parametrize("given", [True, False])
def test_memory_that_a_launch_was_given_before_it_was_anothers(judged: Judged, given: bool) -> None:
    """The launch's tensor was freed, its bytes were handed out in other pieces: a dangling pointer, no far write."""
    whole = buffer_view(judged.buffer)
    before = 4096 if given else 8192
    view = msgspec.structs.replace(
        whole, address=whole.address - before, storage_address=whole.address - before, storage_nbytes=4096 + 256,
        shape=((4096 + 256) // 4,),
    )  # fmt: skip
    launch = Launch(LaunchKind.ATEN, "aten.add_.Tensor", (Pointer("self", view, Access.READ_WRITE),))
    seen = judged.seen([node(0, address=view.start, launch=0)], judged.hit(0), launches=(launch,))
    ForeignWrites(judged.context).probed(seen)
    assert [draft.code for draft in judged.drafts] == ([] if given else ["SG106"])


@pytest.mark.parametrize("told", [True, False])
def test_what_launches_outside_the_graph_wrote_meanwhile_is_nobodys_fault(judged: Judged, told: bool) -> None:
    start = judged.buffer.start
    elsewhere, there = ByteRange(start + 256, start + 512), ByteRange(start + 100, start + 101)
    nodes = [node(0, address=4096), node(1, address=4096)]
    seen = judged.seen(nodes, judged.hit(0), judged.hit(1), meanwhile=(elsewhere if told else there,))
    ForeignWrites(judged.context).probed(seen)
    Races(judged.context).probed(seen)
    assert [draft.code for draft in judged.drafts] == ["SG106", "SG106", "SG112"] * told


def test_bytes_that_many_nodes_dispute_are_looked_at_once(judged: Judged) -> None:
    """Forty branches, each with a column of its own of one table: as many pieces as for two of them."""
    nodes = [node(index) for index in range(40)]
    races = Races(judged.context)
    races.probed(judged.seen(nodes, *(judged.hit(index, index, 215 + index, 6) for index in range(40))))
    assert judged.drafts == []
    assert 90_001 in races.pending
    ((buffer, where),) = races.pieces_wanted(90_001)
    assert (buffer, where.start, where.stop) == (judged.buffer, judged.buffer.start + 1, judged.buffer.start + 254)
    assert len(list(cut(races.pieces_wanted(90_001)))) <= PIECES


@pytest.mark.parametrize("ranges", [1, 3, 100, 20_000])
def test_pieces_of_one_replay_are_bounded(judged: Judged, ranges: int) -> None:
    disputed = [(judged.buffer, ByteRange(at << 20, (at << 20) + (1 << 19))) for at in range(ranges)]
    made = list(cut(disputed))
    assert min(ranges * PIECES, 8 * PIECES) // 2 <= len(made) <= 8 * PIECES
    assert {where.start >> 20 for _, where in made} == set(range(min(ranges, 8 * PIECES)))


def test_every_draft_is_handed_over_before_one_is_raised(judged: Judged) -> None:
    taken: list[Detection] = []

    def take(draft: Detection) -> None:
        taken.append(draft)
        raise FindingsError(f"number {len(taken)}")

    nodes = [node(index) for index in range(3)]
    Races(judged.context).probed(judged.seen(nodes, *map(judged.hit, range(3))))
    assert len(judged.drafts) == 3
    with pytest.raises(FindingsError, match="number 1"):
        report_all(replace(judged.context, report=take), judged.drafts)
    assert taken == judged.drafts
