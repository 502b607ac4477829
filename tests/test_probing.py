"""What a probed replay is asked to look at, and which argument led to the damage."""

from __future__ import annotations

import pytest

from shadowgraph.checks.culprits import NEAR, leading
from shadowgraph.localize.probing import OTHER_GUARDS, PIECES, Plan, nearest, pieces, tracked
from shadowgraph.model.buffers import Buffer, Ledger, Role
from shadowgraph.model.device_nodes import DeviceNode, NodeKind, Word
from shadowgraph.model.findings import Argument
from shadowgraph.model.graphs import Graph
from shadowgraph.model.guards import Side, guards_of
from shadowgraph.model.probes import Hit, Outcome
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.write_sets import Place, Written, write_sets_of
from shadowgraph.tracking.aliases import NameBook

HOME = ByteRange(10_000, 11_000)


def argument(address: int, sureness: str = "high") -> Argument:
    return Argument(0, 0, "", address, sureness=sureness)


@pytest.mark.parametrize(
    ("addresses", "damage", "led"),
    [
        ((HOME.start, HOME.stop + 8), (HOME.stop + 4, HOME.stop + 16), HOME.start),  # into the buffer goes first
        ((HOME.start, HOME.start + 500), (HOME.stop, HOME.stop + 4), HOME.start + 500),  # the nearer of two
        ((HOME.start - 64, HOME.stop + 200), (HOME.start, HOME.start + 4), HOME.start - 64),
        ((HOME.stop + 200, HOME.start - 5000), (HOME.start + 900, HOME.start + 904), HOME.stop + 200),
        ((HOME.start - NEAR,), (HOME.start, HOME.start + 4), HOME.start - NEAR),
        ((HOME.start - NEAR - 1,), (HOME.start, HOME.start + 4), None),
        ((HOME.stop - 1 + NEAR + 4,), (HOME.stop, HOME.stop + 4), HOME.stop - 1 + NEAR + 4),
        ((HOME.stop + NEAR + 4,), (HOME.stop, HOME.stop + 4), None),
        ((), (HOME.stop, HOME.stop + 4), None),
    ],
)
def test_the_argument_that_leads_to_the_damage(
    addresses: tuple[int, ...], damage: tuple[int, int], led: int | None
) -> None:
    found = leading(tuple(map(argument, addresses)), HOME, ByteRange(*damage))
    assert (found.address if found else None) == led


def test_what_only_looks_like_a_pointer_leads_where_nothing_else_does() -> None:
    doubtful, sure = argument(HOME.start, "low"), argument(HOME.start - 4096, "medium")
    assert leading((doubtful, sure), HOME, HOME) is sure
    assert leading((doubtful,), HOME, HOME) is doubtful


# -- parts -----------------------------------------------------------------------------------------------------------


def buffer(serial: int, start: int, nbytes: int, dtype: str = "int32", guard: int = 0, device: str = "cpu") -> Buffer:
    return Buffer(serial, start, nbytes, Role.STATIC, dtype, device=device, head_guard=guard, tail_guard=guard)


def test_a_part_is_asked_for_once() -> None:
    plan = Plan(room=100)
    assert [plan.add(ByteRange(0, 40)), plan.add(ByteRange(40, 80)), plan.add(ByteRange(0, 40))] == [0, 1, 0]
    assert plan.add(ByteRange(80, 101)) is None
    assert plan.add(ByteRange(80, 80)) is None
    assert (plan.parts, plan.room) == ([ByteRange(0, 40), ByteRange(40, 80)], 20)


def test_a_broken_guard_is_looked_at_whole_where_it_is_near() -> None:
    table = buffer(1, 4096, 64, guard=1024)
    plan = Plan(room=1 << 20)
    plan.add_damaged(table, Side.AFTER, [ByteRange(4160, 4164), ByteRange(4600, 4604)], near=256)
    assert plan.parts == [ByteRange(4160, 4416), ByteRange(4160, 4604)]
    plan = Plan(room=300)
    plan.add_damaged(table, Side.AFTER, [ByteRange(4160, 4164), ByteRange(4600, 4604)], near=256)
    assert plan.parts == [ByteRange(4160, 4416), ByteRange(4160, 4164), ByteRange(4600, 4604)], "no room for the rest"
    plan = Plan(room=1 << 20)
    plan.add_damaged(table, None, [ByteRange(4100, 4104)], near=256)
    assert plan.parts == [ByteRange(4100, 4104)]


def test_integers_small_and_named_buffers_go_first() -> None:
    ledger = Ledger()
    floats, large, small = buffer(1, 0, 512, "float32"), buffer(2, 1 << 30, 4 << 20), buffer(3, 4096, 600)
    for each in (floats, large, small):
        ledger.add(each)
    plan = Plan(room=5 << 20)
    plan.add_memory(tracked(ledger, "cpu"), NameBook(ledger))
    assert [plan.buffers[place] for place in range(len(plan.parts))] == [small, large, floats]
    plan = Plan(room=1200)
    plan.add_memory(tracked(ledger, "cpu"), NameBook(ledger))
    assert (list(plan.buffers.values()), plan.left_out) == ([small, floats], [large])


def test_buffers_in_each_other_and_elsewhere_are_tracked_once() -> None:
    ledger = Ledger()
    outer, inner = buffer(1, 0, 100), buffer(2, 20, 10)
    across, far, none = buffer(3, 90, 60), buffer(4, 500, 8, device="cuda:1"), buffer(5, 900, 0)
    for each in (inner, outer, across, far, none):
        ledger.add(each)
    assert tracked(ledger, "cpu") == [outer, across]


def test_the_nearest_guards_are_looked_at_too() -> None:
    buffers = [buffer(serial, serial << 16, 512, guard=512) for serial in range(200)]
    guards = [guard for each in buffers for guard in guards_of(each, 256)]
    graph = Graph(1, "graph#1")
    graph._spans = RangeSet.of([buffers[199].range])
    chosen = nearest(guards, graph, [ByteRange(100 << 16, (100 << 16) + 4)])
    serials = {guard.buffer.serial for guard in chosen}
    assert len(chosen) == OTHER_GUARDS
    assert 199 in serials, "the graph was given it"
    assert serials - {199} == set(range(69, 132))


@pytest.mark.parametrize("nbytes", [1, 7, PIECES, PIECES + 1, 10 * PIECES - 3])
def test_pieces_cover_a_range(nbytes: int) -> None:
    where = ByteRange(500, 500 + nbytes)
    made = pieces(where)
    assert len(made) <= PIECES
    assert list(RangeSet.of(made)) == [where]
    assert sum(piece.nbytes for piece in made) == nbytes


# -- write sets ------------------------------------------------------------------------------------------------------


def test_write_sets_are_told_from_the_start_of_each_buffer() -> None:
    places = {1: Place(12, "table", 1000, 64), 3: Place(5, "other", 2000, 8)}
    hits = (Hit(4, 3, 2001, 2007, 3), Hit(4, 1, 1000, 1003, 4), Hit(2, 1, 1060, 1063, 1), Hit(2, 0, 990, 999, 10))
    sets = write_sets_of("graph#1", Outcome(6, hits, dropped=2), places, [Place(9, "cache", 9000, 1 << 30)])
    assert sets.written == (Written(2, 12, 60, 63, 1), Written(4, 5, 1, 7, 3), Written(4, 12, 0, 3, 4))
    assert (sets.replay, sets.dropped, [place.name for place in sets.left_out]) == (6, 2, ["cache"])
    assert sets.of_node(4) == sets.written[1:]
    assert sets.of_buffer(12) == (sets.written[0], sets.written[2])


def test_a_node_without_words_points_by_what_it_copies() -> None:
    from shadowgraph.checks.culprits import culprit_of_node

    ledger = Ledger()
    table = ledger.add(buffer(1, 1000, 64))
    graph = Graph(1, "graph#1")
    copy = DeviceNode(0, NodeKind.MEMCPY, "1 to 2", reads=(ByteRange(5000, 5064),), writes=(ByteRange(1016, 1080),))
    kernel = DeviceNode(1, NodeKind.KERNEL, "k", words=(Word(2, 8, "out", 1032),), grid=(4, 1, 1), block=(64, 1, 1))
    graph.build_device_later(lambda: (copy, kernel))
    damage = ByteRange(1064, 1080)
    found = culprit_of_node(graph, 0, 3, table.range, damage, ledger, NameBook(ledger))
    assert [(one.name, one.address, one.at) for one in found.arguments] == [("to", 1016, 16), ("from", 5000, 0)]
    assert (found.kind, found.name, found.led_by, found.seen_in) == ("memcpy", "1 to 2", found.arguments[0], 3)
    found = culprit_of_node(graph, 1, 3, table.range, damage, ledger, NameBook(ledger))
    assert (found.grid, found.block, found.line, found.kernel) == ((4, 1, 1), (64, 1, 1), None, None)
    assert [(one.argument, one.offset, one.name, one.at) for one in found.arguments] == [(2, 8, "out", 32)]
    unknown = culprit_of_node(graph, 9, 3, table.range, damage, ledger, NameBook(ledger))
    assert (unknown.name, unknown.node) == ("node 9", 9)
