"""SG110 from storages, a ledger, and a driver that is played: what became of the host memory of a copy node."""

from __future__ import annotations

import gc
from typing import Any, cast

import numpy as np
import pytest
import torch
from support.played_device import PlayedDevice

from shadowgraph.checks.base import Checkpoint, Context, Detection
from shadowgraph.checks.host_source.check import HostSources
from shadowgraph.checks.host_source.facts import Fate, HostSourceDetail
from shadowgraph.checks.host_source.kind import HostSourceKind
from shadowgraph.checks.host_source.lifetimes import fate_by_driver, fate_of_storage
from shadowgraph.common.finalizer_safe_lock import run_deferred
from shadowgraph.common.settings import Settings
from shadowgraph.model.buffers import Ledger
from shadowgraph.model.device_nodes import DeviceNode, NodeKind
from shadowgraph.model.findings import Severity
from shadowgraph.model.graphs import Graph
from shadowgraph.model.host_copies import HostBlock, HostCopy, HostKind
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import Frame
from shadowgraph.tracking.aliases import NameBook
from shadowgraph.tracking.host_memory import note_allocated, note_made_in_capture, note_used

LINE = (Frame("/srv/app/runner.py", 12, "capture"),)
PINNED, PAGEABLE = HostBlock(HostKind.PINNED, 7), HostBlock(HostKind.PAGEABLE)
DEVICE = ByteRange(1 << 40, (1 << 40) + 256)


# -- the decision ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("then", "owned", "in_capture", "moved", "taken", "fate"),
    [
        (PINNED, True, False, False, False, Fate.FREED),
        (PINNED, True, False, True, False, Fate.MOVED),
        (PINNED, True, True, False, False, None),  # torch keeps it
        (PAGEABLE, True, True, False, False, Fate.FREED),  # a temporary of the capture
        (PINNED, False, False, False, False, None),  # the driver tells when it is gone
        (PINNED, False, False, False, True, Fate.FREED),
        (PAGEABLE, False, False, False, False, Fate.ENDED),
        (None, True, False, False, False, Fate.FREED),
    ],
)
def test_a_storage_that_is_gone(
    then: HostBlock | None, owned: bool, in_capture: bool, moved: bool, taken: bool, fate: Fate | None
) -> None:
    assert fate_of_storage(then, owned, in_capture, moved, taken) is fate


@pytest.mark.parametrize(
    ("then", "now", "fate"),
    [
        (PINNED, PINNED, None),
        (PINNED, HostBlock(HostKind.PINNED, 8), Fate.RECYCLED),
        (PINNED, HostBlock(HostKind.PINNED), None),  # the driver tells no number
        (PINNED, PAGEABLE, Fate.UNPINNED),
        (PINNED, None, None),  # a lost device
        (PAGEABLE, PAGEABLE, None),
        (None, PINNED, None),
    ],
)
def test_what_the_driver_says(then: HostBlock | None, now: HostBlock | None, fate: Fate | None) -> None:
    assert fate_by_driver(then, now) is fate


# -- the check ---------------------------------------------------------------------------------------------------------


class Bench:
    """A check with a ledger and a driver, and what it reported."""

    def __init__(self) -> None:
        self.ledger, self.device = Ledger(), PlayedDevice()
        self.drafts: list[Detection] = []
        self.context = Context(
            Settings(), cast(Any, None), self.ledger, self.device, NameBook(self.ledger), self.drafts.append
        )
        self.check = HostSources(self.context)

    def allocate(self, count: int = 64) -> torch.Tensor:
        """Pinned memory of torch's."""
        made = torch.zeros(count, dtype=torch.int32)
        note_allocated(self.ledger, made, LINE)
        return made

    def capture(
        self, host: ByteRange, block: HostBlock | None = PINNED, to_host: bool = False, began: int = 0
    ) -> Graph:
        """A graph that copies it; the checks meet it later."""
        graph = Graph(1, "graph#1")
        graph.host_copies = (HostCopy(2, host, DEVICE, to_host, block),)
        began = began or self.ledger.next_serial()
        graph.began, graph.ended = began, self.ledger.next_serial()
        nodes = [DeviceNode(at, NodeKind.KERNEL, "k") for at in range(2)]
        nodes.append(DeviceNode(2, NodeKind.MEMCPY, "memcpy host to device", stack=LINE))
        graph.build_device_later(lambda: tuple(nodes))
        if block is not None:
            self.device.blocks[host.start] = block
        return graph

    def replay(self, graph: Graph) -> list[Detection]:
        """What this replay reports."""
        if not graph.replays:
            self.context.graphs[1] = graph
            self.check.captured(graph)
        graph.replays, before = graph.replays + 1, len(self.drafts)
        self.check.replay_begins(Checkpoint("replay_begin", None, graph, graph.replays))
        return self.drafts[before:]


def hull(tensor: torch.Tensor) -> ByteRange:
    return ByteRange(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def only(drafts: list[Detection]) -> Detection:
    assert len(drafts) == 1
    return drafts[0]


def detail_of(draft: Detection, bench: Bench) -> HostSourceDetail:
    found = HostSourceKind().describe(draft, bench.context)
    assert isinstance(found, HostSourceDetail)
    return found


def forget() -> None:
    """A storage's finalizer has run."""
    gc.collect()
    run_deferred()


@pytest.mark.parametrize("before", [0, 2], ids=["never replayed", "replayed"])
def test_freed_and_told_once_with_the_node_and_its_line(bench: Bench, before: int) -> None:
    pinned = bench.allocate()
    graph, where = bench.capture(hull(pinned)), hull(pinned)
    for _ in range(before):
        assert bench.replay(graph) == []
    del pinned
    forget()
    found = only(bench.replay(graph))
    assert bench.replay(graph) == []
    assert (found.code, found.severity, found.phase, found.replay) == (
        "SG110",
        Severity.ERROR,
        Phase.REPLAY,
        before + 1,
    )
    assert (found.buffer.range, found.buffer.stack, found.buffer.dtype) == (where, LINE, "int32")
    (culprit,) = found.located
    assert (culprit.name, culprit.node, culprit.line, culprit.seen_in) == ("memcpy host to device", 2, 12, None)
    detail = detail_of(found, bench)
    assert (detail.fate, detail.to_host, detail.pinned, detail.node) == ("freed", False, True, 2)
    assert (detail.first, detail.last, detail.victims) == (0, 255, ())
    assert detail.device.address == DEVICE.start


def test_fixed_twin_keeps_it(bench: Bench) -> None:
    pinned = bench.allocate()
    graph = bench.capture(hull(pinned))
    for step in range(3):
        pinned.fill_(step)
        other = bench.allocate()
        assert bench.replay(graph) == []
        del other


def test_the_tensor_that_took_the_block(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the block comes to another tensor by hand: a cached block of torch's is one allocation to the driver."""
    room = np.zeros(64, dtype=np.int32)
    pinned = torch.from_numpy(room)
    note_allocated(bench.ledger, pinned, LINE)
    graph = bench.capture(hull(pinned))
    del pinned
    forget()
    assert only(bench.replay(graph)).facts.victims == ()  # type: ignore[union-attr]
    victim = torch.from_numpy(room)
    note_allocated(bench.ledger, victim, LINE)
    found = only(bench.replay(graph))
    (taken,) = detail_of(found, bench).victims
    assert (taken.address, taken.nbytes, taken.allocated) == (victim.data_ptr(), 256, LINE)
    assert bench.replay(graph) == []


def test_a_part_of_a_pinned_tensor(bench: Bench) -> None:
    pinned = bench.allocate()
    start = pinned.data_ptr() + 64
    graph = bench.capture(ByteRange(start, start + 32))
    assert bench.replay(graph) == []
    del pinned
    forget()
    detail = detail_of(only(bench.replay(graph)), bench)
    assert (detail.first, detail.last) == (64, 95)


def test_freed_in_the_capture(bench: Bench) -> None:
    pinned = bench.allocate()
    began, where = bench.ledger.next_serial(), hull(pinned)
    del pinned
    forget()
    assert only(bench.replay(bench.capture(where, began=began))).facts.fate is Fate.FREED  # type: ignore[union-attr]


def test_a_tenant_of_the_block_before_the_capture_counts_for_nothing(bench: Bench) -> None:
    room = np.zeros(64, dtype=np.int32)
    for _ in range(3):
        tenant = torch.from_numpy(room)
        note_allocated(bench.ledger, tenant, LINE)
        kept = tenant
        del tenant
        forget()
    graph = bench.capture(hull(kept))
    assert bench.replay(graph) == []


def test_pinned_memory_that_the_capture_allocated_is_kept_by_torch(bench: Bench) -> None:
    began = bench.ledger.next_serial()
    pinned = torch.zeros(64, dtype=torch.int32)
    note_made_in_capture(bench.ledger, pinned, 1)
    graph = bench.capture(hull(pinned), began=began)
    del pinned
    forget()
    assert bench.replay(graph) == []


def test_pinned_memory_that_was_first_seen_in_the_capture(bench: Bench) -> None:
    """It was allocated before there was a debugger."""
    began, pinned = bench.ledger.next_serial(), torch.zeros(64, dtype=torch.int32)
    note_used(bench.ledger, pinned)
    graph = bench.capture(hull(pinned), began=began)
    del pinned
    forget()
    assert only(bench.replay(graph)).facts.fate is Fate.FREED  # type: ignore[union-attr]


def test_a_pageable_temporary_of_the_capture(bench: Bench) -> None:
    began = bench.ledger.next_serial()
    temporary = torch.zeros(64, dtype=torch.int32)
    note_made_in_capture(bench.ledger, temporary, 1)
    graph = bench.capture(hull(temporary), PAGEABLE, began=began)
    del temporary
    forget()
    found = only(bench.replay(graph))
    assert (found.severity, detail_of(found, bench).pinned) == (Severity.ERROR, False)


def test_a_pageable_tensor_that_lives(bench: Bench) -> None:
    tensor = torch.zeros(64, dtype=torch.int32)
    note_used(bench.ledger, tensor)
    graph = bench.capture(hull(tensor), PAGEABLE)
    assert bench.replay(graph) == bench.replay(graph) == []


def over_an_array(bench: Bench, block: HostBlock) -> Graph:
    """A graph that copies from an array, whose tensor is gone."""
    room = np.zeros(64, dtype=np.int32)
    tensor = torch.from_numpy(room)
    note_used(bench.ledger, tensor)
    graph = bench.capture(hull(tensor), block)
    del tensor
    forget()
    graph.room = room  # type: ignore[attr-defined]
    return graph


def test_a_tensor_over_an_array_that_is_registered_may_go(bench: Bench) -> None:
    graph = over_an_array(bench, PINNED)
    assert bench.replay(graph) == bench.replay(graph) == []
    bench.device.blocks[graph.host_copies[0].host.start] = PAGEABLE
    assert only(bench.replay(graph)).facts.fate is Fate.UNPINNED  # type: ignore[union-attr]


def test_a_tensor_over_a_pageable_array_that_is_gone_is_a_note(bench: Bench) -> None:
    graph = over_an_array(bench, PAGEABLE)
    found = only(bench.replay(graph))
    assert (found.severity, found.facts.fate) == (Severity.NOTE, Fate.ENDED)  # type: ignore[union-attr]
    assert bench.replay(graph) == []


def test_memory_of_the_drivers(bench: Bench) -> None:
    where = ByteRange(1 << 45, (1 << 45) + 64)
    graph = bench.capture(where)
    assert bench.replay(graph) == []
    bench.device.blocks[where.start] = HostBlock(HostKind.PINNED, 8)
    found = only(bench.replay(graph))
    assert (found.severity, found.confidence, found.facts.fate) == (Severity.ERROR, "high", Fate.RECYCLED)  # type: ignore[union-attr]
    assert bench.replay(graph) == []
    assert (found.buffer.start, found.buffer.nbytes, found.buffer.device) == (where.start, 64, "cpu")


def test_memory_that_the_driver_does_not_know_any_more(bench: Bench) -> None:
    where = ByteRange(1 << 45, (1 << 45) + 64)
    graph = bench.capture(where, to_host=True)
    bench.device.blocks[where.start] = PAGEABLE
    found = only(bench.replay(graph))
    assert found.facts.fate is Fate.UNPINNED  # type: ignore[union-attr]
    assert detail_of(found, bench).to_host


def test_pageable_memory_of_which_nothing_is_known_is_a_note(bench: Bench) -> None:
    graph = bench.capture(ByteRange(1 << 45, (1 << 45) + 64), PAGEABLE)
    found = only(bench.replay(graph))
    assert (found.severity, found.facts.fate) == (Severity.NOTE, Fate.PAGEABLE)  # type: ignore[union-attr]
    assert bench.replay(graph) == []


def test_a_graph_whose_nodes_cannot_be_read(bench: Bench) -> None:
    pinned = bench.allocate()
    graph = bench.capture(hull(pinned))
    graph.build_device_later(lambda: None)
    del pinned
    forget()
    (culprit,) = only(bench.replay(graph)).located
    assert (culprit.name, culprit.node, culprit.file) == ("memcpy host to device", 2, None)


def test_the_name_that_it_had(bench: Bench) -> None:
    class Runner:
        pass

    runner: Any = Runner()
    runner.pinned = bench.allocate()
    bench.context.names.add("runner", runner)
    graph = bench.capture(hull(runner.pinned))
    assert bench.replay(graph) == []
    runner.pinned = bench.allocate(128)
    forget()
    found = only(bench.replay(graph))
    bench.context.names.refresh()
    assert bench.context.names.name_of(found.buffer)[0] == "runner.pinned"
