"""Which changes none of a node's arguments leads to, from made-up nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from shadowgraph.checks.foreign_writes.check import addresses_of, foreign_hits, had_others
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.device_nodes import DeviceNode, NodeKind, Sureness, Word
from shadowgraph.model.probes import Hit
from shadowgraph.model.ranges import ByteRange

OWN, OTHER, THIRD = ByteRange(1000, 1100), ByteRange(2000, 2100), ByteRange(5000, 5100)
PARTS = {0: OWN, 1: OTHER, 7: THIRD}


def kernel(index: int, *addresses: int, **facts: Any) -> DeviceNode:
    words = tuple(Word(place, 0, "", address) for place, address in enumerate(addresses))
    return DeviceNode(index, facts.pop("kind", NodeKind.KERNEL), "kernel", words=words, **facts)


def hit(node: int, part: int, first: int = 0, count: int = 4) -> Hit:
    start = PARTS[part].start + first
    return Hit(node, part, start, start + count - 1, count)


def found(
    nodes: list[DeviceNode], *hits: Hit, kin: Iterable[ByteRange] = (), tables: Iterable[int] = ()
) -> list[tuple[int, int]]:
    """Node and part of each foreign hit."""
    by_index = {node.index: node for node in nodes}
    return [
        (one.node, one.part) for one in foreign_hits(by_index.get, PARTS, hits, lambda where: kin, lambda node: tables)
    ]


def test_a_buffer_that_no_argument_leads_into() -> None:
    nodes = [kernel(0, OWN.start), kernel(1, OWN.start, OTHER.stop - 1)]
    assert found(nodes, hit(0, 0), hit(0, 1), hit(1, 0), hit(1, 1)) == [(0, 1)]


@pytest.mark.parametrize("address", [OTHER.start - 1, OTHER.stop], ids=["just before", "just after"])
def test_an_argument_beside_a_buffer_does_not_lead_into_it(address: int) -> None:
    assert found([kernel(0, address)], hit(0, 1)) == [(0, 1)]


def test_what_only_looks_like_a_pointer_may_be_one() -> None:
    word = Word(0, 8, "", OTHER.start, Sureness.LOW)
    assert found([DeviceNode(0, NodeKind.KERNEL, "k", words=(word,))], hit(0, 1)) == []


def test_a_buffer_that_shares_bytes_counts() -> None:
    assert found([kernel(0, 1990)], hit(0, 1)) == [(0, 1)]
    assert found([kernel(0, 1990)], hit(0, 1), kin=[ByteRange(1980, 2050)]) == []


def test_addresses_in_the_memory_that_arguments_point_at_count() -> None:
    assert found([kernel(0, OWN.start)], hit(0, 1), tables=[OTHER.start + 8]) == []
    assert found([kernel(0, OWN.start)], hit(0, 1), tables=[OTHER.stop + 8]) == [(0, 1)]


@pytest.mark.parametrize(
    "node",
    [
        kernel(0, OWN.start, note="a parameter could not be read"),
        kernel(0, OWN.start, kind=NodeKind.HOST),
        kernel(0, OWN.start, kind=NodeKind.CONDITIONAL),
        kernel(0, OWN.start, kind=NodeKind.OTHER),
        kernel(0),
        kernel(0, kind=NodeKind.CHILD, inner=(kernel(0, OWN.start), kernel(1, OWN.start, note="stripped"))),
        kernel(0, kind=NodeKind.CHILD, inner=(kernel(0, OTHER.start),)),
    ],
    ids=["note", "host", "conditional", "other", "no pointer", "inner note", "inner pointer"],
)
def test_nodes_that_may_write_there(node: DeviceNode) -> None:
    assert found([node], hit(0, 1)) == []


def test_a_child_graph_of_which_all_is_known() -> None:
    child = kernel(0, kind=NodeKind.CHILD, inner=(kernel(0, OWN.start), kernel(1, THIRD.start)))
    assert found([child], hit(0, 0), hit(0, 1), hit(0, 7)) == [(0, 1)]
    assert addresses_of(child) == [OWN.start, THIRD.start]


def test_a_node_that_is_not_known_disturbs() -> None:
    assert found([kernel(0, OWN.start)], hit(3, 1), hit(0, 1)) == []


@pytest.mark.parametrize(
    "idle",
    [
        kernel(1, kind=NodeKind.EMPTY),
        kernel(1, kind=NodeKind.EVENT),
        DeviceNode(1, NodeKind.MEMSET, "set", writes=(OWN,)),
        DeviceNode(1, NodeKind.MEMCPY, "copy", reads=(OTHER,), writes=(OWN,)),
    ],
    ids=["empty", "event", "memset", "memcpy"],
)
def test_somebody_else_wrote_meanwhile(idle: DeviceNode) -> None:
    """A node that cannot have written a part shows that the part is no node's alone."""
    nodes = [kernel(0, OWN.start), idle]
    assert found(nodes, hit(0, 1), hit(0, 7)) == [(0, 1), (0, 7)]
    assert found(nodes, hit(0, 1), hit(0, 7), hit(1, 1)) == [(0, 7)]


def test_copies_and_sets_write_what_they_say() -> None:
    copy = DeviceNode(0, NodeKind.MEMCPY, "copy", reads=(OWN,), writes=(ByteRange(2010, 2020),))
    assert found([copy], hit(0, 1, 10, 10)) == []
    assert addresses_of(copy) == [OWN.start, 2010]


@pytest.mark.parametrize(
    ("role", "nbytes", "others"),
    [(Role.POOL, 100, False), (Role.POOL, 768, True), (Role.STATIC, 768, False), (Role.FOREIGN, 768, False)],
)
def test_a_block_that_a_capture_gave_to_others_too(role: Role, nbytes: int, others: bool) -> None:
    """The workspace of a library was there before: its kernels find it by addresses of their own."""
    block = Buffer(1, 4096, nbytes, role, "float32", (5, 5), 4)
    assert had_others(block) is others
