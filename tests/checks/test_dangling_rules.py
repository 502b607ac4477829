"""SG104 from ledgers and graphs built by hand: what counts is who was freed when, on either backend."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from test_first_access import graph_of, view

from shadowgraph.checks.base import Checkpoint, Context, Detection
from shadowgraph.checks.dangling.check import Dangling
from shadowgraph.checks.dangling.details import Ended
from shadowgraph.common.errors import FindingsError
from shadowgraph.common.settings import Settings
from shadowgraph.model.buffers import Buffer, Ledger, Role
from shadowgraph.model.findings import Severity
from shadowgraph.model.graphs import Access, Graph
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.aliases import NameBook
from shadowgraph.tracking.foreign import drop_stale, track_foreign

BASE, SIZE = 1 << 30, 64


class Allocator:
    """Says of every range the same."""

    private = False
    asked = 0

    def in_private_pool(self, where: ByteRange) -> bool:
        self.asked += 1
        return self.private


class Bench:
    """A check with a ledger, and what it reported."""

    def __init__(self) -> None:
        self.ledger, self.allocator = Ledger(), Allocator()
        self.drafts: list[Detection] = []
        self.strict = False
        device = cast(Any, SimpleNamespace(asynchronous=True))  # where loads and stores are not known
        self.context = Context(
            Settings(), cast(Any, self.allocator), self.ledger, device, NameBook(self.ledger), self.take
        )
        self.check = Dangling(self.context)

    def take(self, draft: Detection) -> None:
        self.drafts.append(draft)
        if self.strict:
            raise FindingsError("sync")

    def add(self, start: int = BASE, role: Role = Role.STATIC, **facts: Any) -> Buffer:
        made = Buffer(self.ledger.next_serial(), start, SIZE, role, shape=(SIZE,), **facts)
        return self.ledger.add(made)

    def capture(self, *given: Buffer, serial: int = 1, access: Access = Access.READ) -> Graph:
        graph = graph_of(*([(access, view(base=each.start))] for each in given), given=given)
        graph.serial, graph.name = serial, f"graph#{serial}"
        return self.captured(graph)

    def captured(self, graph: Graph) -> Graph:
        self.context.graphs[graph.serial] = graph
        self.check.captured(graph)
        return graph

    def reset(self, graph: Graph) -> None:
        del self.context.graphs[graph.serial]

    def replay(self, graph: Graph, at: str = "replay_begin") -> list[Detection]:
        """What this replay reports."""
        graph.replays += 1
        before = len(self.drafts)
        self.check.replay_begins(Checkpoint(at, None, graph, graph.replays))
        return self.drafts[before:]


@pytest.fixture
def bench() -> Bench:
    return Bench()


# -- what is told ----------------------------------------------------------------------------------------------------


def test_a_buffer_that_was_freed_is_told_at_the_next_replay_and_once(bench: Bench) -> None:
    kept, freed = bench.add(BASE + 4096), bench.add()
    graph = bench.capture(kept, freed)
    assert bench.replay(graph) == []
    bench.ledger.free(freed)
    (draft,) = bench.replay(graph)
    assert (draft.code, draft.buffer, draft.replay, str(draft.phase)) == ("SG104", freed, 2, "replay")
    assert (draft.culprits[-1].node, draft.culprits[-1].opaque) == (1, False)
    assert (draft.severity, draft.confidence) == (Severity.ERROR, "high")
    assert isinstance(draft.facts, Ended)
    assert (draft.facts.live_in, draft.facts.written, draft.facts.moved) == (True, False, False)
    bench.ledger.free(bench.add(BASE + 8192))
    assert bench.replay(graph) == []


@pytest.mark.parametrize(
    ("access", "live_in", "written", "opaque", "confidence"),
    [
        (Access.WRITE, False, True, False, "high"),
        (Access.READ_WRITE, True, True, False, "high"),
        (Access.UNKNOWN, True, True, True, "medium"),
    ],
)
def test_how_the_graph_uses_it(
    bench: Bench, access: Access, live_in: bool, written: bool, opaque: bool, confidence: str
) -> None:
    buffer = bench.add()
    graph = bench.capture(buffer, access=access)
    bench.ledger.free(buffer)
    (draft,) = bench.replay(graph)
    assert isinstance(draft.facts, Ended)
    assert (draft.facts.live_in, draft.facts.written) == (live_in, written)
    assert (draft.culprits[-1].opaque, draft.confidence) == (opaque, confidence)


def test_each_graph_tells_for_itself(bench: Bench) -> None:
    buffer = bench.add()
    one, other = bench.capture(buffer), bench.capture(buffer, serial=2)
    bench.ledger.free(buffer)
    drafts = bench.replay(other) + bench.replay(one)
    assert [(draft.graph, draft.key) for draft in drafts] == [(other, "2"), (one, "1")]


def test_freed_during_the_capture(bench: Bench) -> None:
    buffer = bench.add()
    bench.ledger.free(buffer)
    assert [draft.buffer for draft in bench.replay(bench.capture(buffer))] == [buffer]


def test_a_finding_that_is_raised_loses_no_other(bench: Bench) -> None:
    one, other = bench.add(), bench.add(BASE + 4096)
    graph = bench.capture(one, other)
    bench.strict = True
    bench.ledger.free(one)
    bench.ledger.free(other)
    for _ in range(2):
        with pytest.raises(FindingsError):
            bench.replay(graph)
    assert [draft.buffer for draft in bench.drafts] == [one, other]
    assert bench.replay(graph) == []


# -- who has the bytes -----------------------------------------------------------------------------------------------


def test_who_was_allocated_there_since(bench: Bench) -> None:
    enclosing = bench.add(BASE - 16)  # lived before and lives on: no victim
    buffer = bench.add()
    graph = bench.capture(buffer)
    bench.ledger.free(buffer)
    victim = bench.add(BASE + 32)
    (draft,) = bench.replay(graph)
    assert isinstance(draft.facts, Ended)
    assert draft.facts.victims == (victim,)
    assert enclosing.alive


def test_only_the_bytes_that_the_graph_was_given_count(bench: Bench) -> None:
    buffer = bench.add()
    graph = bench.captured(graph_of([(Access.READ, view(0, 16))], given=(buffer,)))
    bench.ledger.free(buffer)
    bench.add(BASE + 32)
    (draft,) = bench.replay(graph)
    assert isinstance(draft.facts, Ended)
    assert draft.facts.victims == ()
    assert (draft.first, draft.last) == (BASE, BASE + 15)


def test_a_victim_that_comes_later_is_told_once_more(bench: Bench) -> None:
    buffer = bench.add()
    graph = bench.capture(buffer)
    bench.ledger.free(buffer)
    assert len(bench.replay(graph)) == 1
    bench.add(BASE + 4096)
    assert bench.replay(graph) == []
    victim = bench.add()
    (again,) = bench.replay(graph)
    assert isinstance(again.facts, Ended)
    assert (again.buffer, again.facts.victims, again.key) == (buffer, (victim,), "1")
    bench.add(BASE + 8192)
    assert bench.replay(graph) == []


# -- what is no finding ----------------------------------------------------------------------------------------------


def test_an_owner_that_lives_is_silence_whoever_else_is_freed(bench: Bench) -> None:
    graph = bench.capture(bench.add())
    bench.ledger.free(bench.add(BASE + 4096))
    assert bench.replay(graph) == []


def test_what_launches_outside_the_graph_used_is_silence(bench: Bench) -> None:
    graph = bench.captured(graph_of([(Access.READ, view())], given=(bench.add(BASE + 4096),)))
    bench.ledger.free(bench.add())
    assert bench.replay(graph) == []


def test_a_graph_that_was_reset_is_forgotten(bench: Bench) -> None:
    buffer = bench.add()
    old = bench.capture(buffer)
    bench.reset(old)
    new = bench.capture(bench.add(BASE + 4096), serial=2)
    bench.ledger.free(buffer)
    assert bench.replay(new) == []
    assert bench.replay(old) == [], "nobody replays it; it would be told if it were still held"


def test_another_graphs_tensor_ends_with_that_graph(bench: Bench) -> None:
    """The one that allocated it writes it at each replay, and its pool keeps the memory."""
    maker = bench.capture(bench.add(BASE + 4096), serial=2)
    made = bench.add(role=Role.POOL, graph=2, pool=5)
    graph = bench.capture(made)
    bench.ledger.free(made)
    assert bench.replay(graph) == []
    bench.reset(maker)
    assert [draft.buffer for draft in bench.replay(graph)] == [made]
    assert bench.replay(graph) == []


def test_a_tensor_of_a_graph_captured_earlier_is_given_the_benefit_of_the_doubt(bench: Bench) -> None:
    made = bench.add(role=Role.POOL, graph=99, pool=5)
    graph = bench.capture(made)
    bench.ledger.free(made)
    assert bench.replay(graph) == []


def test_on_a_device_a_later_capture_takes_over_a_blocks_entry(bench: Bench) -> None:
    maker = bench.capture(bench.add(BASE + 4096), serial=2)
    entry = bench.add(role=Role.POOL, graph=2)
    graph = bench.capture(entry)
    bench.ledger.free(entry)
    later = bench.add(role=Role.POOL, graph=3)
    bench.reset(maker)
    assert bench.replay(graph) == []
    bench.ledger.free(later)  # the pool is gone
    assert [draft.buffer for draft in bench.replay(graph)] == [entry]


# -- memory that we did not allocate ---------------------------------------------------------------------------------


class Foreign:
    """A bench with a graph that reads a tensor of torch's own."""

    def __init__(self, bench: Bench, tensor: torch.Tensor, part: torch.Tensor | None = None) -> None:
        self.buffer = track_foreign(bench.ledger, tensor)
        where = TensorView.of(tensor if part is None else part)
        self.graph = bench.captured(graph_of([(Access.READ, where)], given=(self.buffer,)))


def test_foreign_memory_ends_with_its_storage(bench: Bench) -> None:
    tensor = torch.zeros(64)
    foreign = Foreign(bench, tensor)
    part = tensor[8:]
    del tensor
    assert bench.replay(foreign.graph) == []
    del part
    (draft,) = bench.replay(foreign.graph)
    assert (draft.buffer, draft.severity, isinstance(draft.facts, Ended) and draft.facts.moved) == (
        foreign.buffer,
        Severity.ERROR,
        False,
    )


def test_a_storage_that_moved(bench: Bench) -> None:
    tensor = torch.zeros(64)
    foreign = Foreign(bench, tensor)
    before = tensor.data_ptr()
    tensor.resize_(1 << 20)
    assert tensor.data_ptr() != before
    drop_stale(bench.ledger)
    (draft,) = bench.replay(foreign.graph)
    assert isinstance(draft.facts, Ended)
    assert draft.facts.moved


def test_a_storage_of_another_size_at_its_old_place_is_silence(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.zeros(64)
    foreign = Foreign(bench, tensor, tensor[:32])
    where = foreign.buffer.range
    bench.ledger.free(foreign.buffer)  # as `drop_stale` does when the size has changed
    shorter, shortest = ByteRange(where.start, where.start + 128), ByteRange(where.start, where.start + 127)
    monkeypatch.setattr("shadowgraph.checks.dangling.check.whereabouts", lambda buffer: shorter)
    assert bench.replay(foreign.graph) == []
    assert bench.replay(foreign.graph) == []
    monkeypatch.setattr("shadowgraph.checks.dangling.check.whereabouts", lambda buffer: shortest)
    assert len(bench.replay(foreign.graph)) == 1


def test_in_a_pool_of_its_own_the_end_of_foreign_memory_means_nothing(bench: Bench) -> None:
    """What compiled code allocates in a capture is first seen as somebody's input."""
    tensor = torch.zeros(64)
    foreign = Foreign(bench, tensor)
    bench.allocator.private = True
    del tensor
    assert bench.replay(foreign.graph) == []
    bench.allocator.private = False
    assert bench.replay(foreign.graph) == []
    assert bench.allocator.asked == 1


def test_borrowed_memory_is_a_note_unless_the_replay_is_refused(bench: Bench) -> None:
    array = torch.zeros(64).numpy()
    tensor = torch.from_numpy(array)
    assert not tensor.untyped_storage().resizable()
    one, other = Foreign(bench, tensor), Foreign(bench, tensor)
    other.graph.serial = 2
    bench.captured(other.graph)
    bench.captured(one.graph)
    del tensor
    (note,) = bench.replay(one.graph)
    (error,) = bench.replay(other.graph, at="replay_refused")
    assert (note.severity, error.severity) == (Severity.NOTE, Severity.ERROR)
    assert {note.confidence, error.confidence} == {"medium"}


def test_who_gets_the_bytes_is_not_looked_for_for_ever(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowgraph.checks.dangling.check._LOOKS", 3)
    for before, told in ((2, 1), (3, 0)):
        buffer = bench.add(BASE + (before << 20))
        graph = bench.capture(buffer, serial=before)
        bench.ledger.free(buffer)
        assert len(bench.replay(graph)) == 1
        for step in range(before):
            bench.add(BASE + (before << 20) + 8192 * (step + 1))
            assert bench.replay(graph) == []
        bench.add(buffer.start)
        assert len(bench.replay(graph)) == told
