"""The table of guards that check nodes read, and the nodes' kernel, launched without a graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shadowgraph.engines.base import NodeCheck
from shadowgraph.engines.cupy_engine import CupyEngine
from shadowgraph.engines.graph_watches import CheckNode
from shadowgraph.model.guards import Guard, Side
from shadowgraph.model.ranges import ByteRange

pytestmark = pytest.mark.gpu
STRIDE, NEAR, WHOLE = 512, 128, 384


class Nodes:
    """The head and the tail of a graph that does nothing, and guards in a room of their own."""

    def __init__(self, serial: int, count: int, rearm: bool = True) -> None:
        self.engine = CupyEngine()
        self.serial = serial
        self.room = torch.zeros(count * STRIDE + 64, dtype=torch.uint8, device="cuda")
        self.at = -self.room.data_ptr() % 16 + 5  # guards need no alignment
        starts = [self.room.data_ptr() + self.at + i * STRIDE for i in range(count)]
        self.guards = tuple(
            Guard(None, Side.AFTER, ByteRange(a, a + NEAR), ByteRange(a, a + WHOLE), rearm=rearm)  # type: ignore[arg-type]
            for a in starts
        )
        self.engine.write_canaries([guard.whole for guard in self.guards])
        pair = self.engine.watches.begin(serial)
        assert pair is not None
        self.head, self.tail = pair

    def replay(self) -> list[Any]:
        for node in (self.head, self.tail):
            self.launch(node)
        return self.engine.poll(wait=True)

    def launch(self, node: CheckNode) -> None:
        kept: Any = node.kept
        kept.launch(node.blocks, node.threads, torch.cuda.current_stream().cuda_stream)

    def smash(self, index: int, offset: int) -> None:
        self.room[self.at + index * STRIDE + offset] ^= 255


def test_each_listed_guard_is_compared_at_its_unaligned_place() -> None:
    nodes = Nodes(1, 500)
    nodes.engine.list_guards(nodes.guards)
    torch.cuda.synchronize()
    assert nodes.replay() == []
    for replay, index in enumerate((0, 17, 499), start=2):
        nodes.smash(index, replay)
        (result,) = nodes.replay()
        assert result.tag == NodeCheck(1, replay, False)
        (evidence,) = result.evidence
        assert evidence.subject is nodes.guards[index]
        assert evidence.first == evidence.last == nodes.guards[index].whole.start + replay
    assert nodes.replay() == [], "the same damage is reported once"
    assert nodes.engine.watches.counts()[1] == (5, 5)
    assert nodes.engine.dropped == 0


def test_the_table_grows_and_slots_get_other_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    from shadowgraph.engines import listed_guards

    monkeypatch.setattr(listed_guards, "_REST", 0.0)
    nodes = Nodes(2, 5000)
    for count in (10, 900, 1100, 5000):
        nodes.engine.list_guards(nodes.guards[:count])
        torch.cuda.synchronize()
        assert nodes.replay() == []
    nodes.engine.list_guards(nodes.guards[4000:])
    nodes.smash(3999, 1)
    nodes.smash(4000, 1)
    torch.cuda.synchronize()
    (result,) = nodes.replay()
    assert [each.subject for each in result.evidence] == [nodes.guards[4000]]
    nodes.engine.list_guards((*nodes.guards[4000:], *nodes.guards[:3000]))
    nodes.smash(5, 3)
    torch.cuda.synchronize()
    (result,) = nodes.replay()
    assert [each.subject for each in result.evidence] == [nodes.guards[5]]


def test_a_withdrawn_guard_is_compared_no_more() -> None:
    nodes = Nodes(3, 100)
    nodes.engine.list_guards(nodes.guards)
    nodes.engine.withdraw_guards([nodes.guards[40].whole.start, nodes.guards[41].whole.start, 12345])
    torch.cuda.synchronize()
    nodes.smash(40, 0)
    nodes.smash(41, 0)
    assert nodes.replay() == []
    nodes.smash(42, 0)
    assert len(nodes.replay()) == 1


@pytest.mark.parametrize("rearm", [True, False])
def test_evidence_of_a_guard_that_was_withdrawn_meanwhile_is_its_own(rearm: bool) -> None:
    """Where its memory belongs to another allocator, that one may have handed it on: nothing is reported."""

    nodes = Nodes(4, 10, rearm)
    nodes.engine.list_guards(nodes.guards)
    torch.cuda.synchronize()
    nodes.smash(3, 0)
    nodes.launch(nodes.head)
    torch.cuda.synchronize()
    nodes.engine.withdraw_guards([nodes.guards[3].whole.start])
    found = [each.subject for result in nodes.engine.poll() for each in result.evidence]
    assert found == ([nodes.guards[3]] if rearm else [])


def test_far_parts_come_in_turn() -> None:
    nodes = Nodes(5, 100)
    nodes.engine.list_guards(nodes.guards)
    torch.cuda.synchronize()
    nodes.smash(70, NEAR + 200)
    found: list[Any] = []
    replays = 0
    while not found and replays < 200:
        replays, found = replays + 1, nodes.replay()
    (result,) = found
    assert result.evidence[0].subject is nodes.guards[70]
    assert result.tag == NodeCheck(5, replays, True), "the tail compares them"
    assert replays <= 128 // 16 + 1, "sixteen slots at each replay"


def test_paused_nodes_count_replays_only() -> None:
    nodes = Nodes(6, 10)
    nodes.engine.list_guards(nodes.guards)
    nodes.engine.pause(True)
    nodes.smash(2, 0)
    assert nodes.replay() == []
    assert nodes.engine.watches.counts()[6] == (1, 0), "counted, and not checked"
    before = nodes.engine.checked_replays
    nodes.engine.pause(False)
    (result,) = nodes.replay()
    assert result.tag == NodeCheck(6, 2, False)
    assert nodes.engine.watches.counts()[6] == (2, 2)
    assert nodes.engine.checked_replays == before + 1


def test_a_row_is_kept_until_no_replay_of_its_graph_can_be_pending() -> None:
    nodes = Nodes(7, 1)
    log = nodes.engine.watches._memory.log
    first = log.claim(7)
    nodes.engine.watches.end(7)
    assert nodes.engine.watches.live == 0
    assert nodes.engine.watches.begin(8) is not None
    assert log.claim(8) != first


def test_while_halted_nothing_is_compared() -> None:
    nodes = Nodes(9, 10)
    nodes.engine.list_guards(nodes.guards)
    torch.cuda.synchronize()
    nodes.engine.listed.halt()
    nodes.engine.listed.halt()
    nodes.smash(2, 0)
    torch.cuda.synchronize()
    assert nodes.replay() == []
    nodes.engine.listed.go_on()
    torch.cuda.synchronize()
    assert nodes.replay() == []
    nodes.engine.listed.go_on()
    torch.cuda.synchronize()
    (result,) = nodes.replay()
    assert result.tag == NodeCheck(9, 3, False)


def test_where_memory_cannot_be_had_the_table_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(10, 2000)
    nodes.engine.list_guards(nodes.guards[:100])
    with monkeypatch.context() as patch:
        patch.setattr(nodes.engine.device, "zeros", lambda nbytes: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            nodes.engine.list_guards(nodes.guards)
    torch.cuda.synchronize()
    nodes.smash(50, 0)
    nodes.smash(1500, 0)
    (result,) = nodes.replay()
    assert result.evidence[0].subject is nodes.guards[50]
    nodes.engine.list_guards(nodes.guards)
    torch.cuda.synchronize()
    (result,) = nodes.replay()
    assert result.evidence[0].subject is nodes.guards[1500]


def test_where_the_driver_cannot_map_the_log_pinned_memory_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    from shadowgraph.engines import ring

    monkeypatch.setattr(ring, "_mapped", lambda device, log: None)
    nodes = Nodes(11, 10)
    assert not nodes.engine.log_is_mapped
    nodes.engine.list_guards(nodes.guards)
    torch.cuda.synchronize()
    nodes.smash(2, 0)
    (result,) = nodes.replay()
    assert result.evidence[0].subject is nodes.guards[2]
