"""Nodes that no edge orders and that changed the same bytes, from made-up nodes and hits."""

from __future__ import annotations

import itertools
import random

import pytest
from msgspec.structs import replace

from shadowgraph.checks.races.check import clashes, early_edges, orders_of
from shadowgraph.model.device_nodes import DeviceNode, NodeKind
from shadowgraph.model.graphs import Graph, Node
from shadowgraph.model.kernel_code import KernelCode
from shadowgraph.model.launches import Launch, LaunchKind
from shadowgraph.model.probes import Hit


def graph(*after: tuple[int, ...]) -> list[DeviceNode]:
    return [DeviceNode(index, NodeKind.KERNEL, f"k{index}", after=edges) for index, edges in enumerate(after)]


FORK = graph((), (0,), (0,), (1, 2))  # two branches between a fork and a join
DENSE = [Hit(node, 0, 100, 199, 100) for node in range(4)]


def pairs(nodes: list[DeviceNode], hits: list[Hit], sure: bool = True) -> list[tuple[int, int]]:
    return [(one.first.node, one.second.node) for one in clashes(nodes, hits) if one.sure is sure]


def test_only_the_branches_of_a_fork_race() -> None:
    assert pairs(FORK, DENSE) == [(1, 2)]
    assert pairs(FORK, DENSE[::-1]) == [(1, 2)], "in whatever order hits come"
    assert pairs(FORK, DENSE, sure=False) == []


def test_a_path_over_other_nodes_orders() -> None:
    chain = graph((), (0,), (1,), (2,))
    assert pairs(chain, [DENSE[0], DENSE[3]]) == []
    assert sorted(pairs(graph((), (), (), ()), DENSE)) == list(itertools.combinations(range(4), 2))


def test_other_parts_and_other_bytes_do_not_race() -> None:
    apart = [Hit(1, 0, 100, 149, 50), Hit(2, 0, 150, 199, 50)]
    assert list(clashes(FORK, apart)) == []
    assert list(clashes(FORK, [Hit(1, 0, 100, 199, 100), Hit(2, 1, 100, 199, 100)])) == []
    assert list(clashes(FORK, DENSE[1:2])) == []


def test_the_bytes_in_common() -> None:
    first, second = Hit(1, 0, 100, 159, 60), Hit(2, 0, 150, 199, 50)
    (clash,) = clashes(FORK, [second, first])
    assert (clash.first, clash.second, clash.sure) == (first, second, True)
    assert (clash.where.start, clash.where.stop) == (150, 160)


@pytest.mark.parametrize(
    ("one", "other", "sure"),
    [
        ((100, 199, 50), (101, 198, 49), False),  # every other byte: they may lie between each other
        ((100, 199, 50), (101, 200, 52), True),  # more bytes than there are
        ((100, 199, 10), (100, 150, 3), True),  # the first of both
        ((100, 199, 10), (150, 199, 3), True),  # the last of both
        ((100, 199, 2), (120, 140, 21), False),  # a gap may hold all of the other
        ((100, 130, 31), (120, 199, 2), True),  # one without gaps reaches over an end of the other
    ],
)
def test_whether_a_byte_is_in_both_for_sure(one: tuple[int, int, int], other: tuple[int, int, int], sure: bool) -> None:
    for first, second in ((one, other), (other, one)):
        (clash,) = clashes(FORK, [Hit(1, 0, *first), Hit(2, 0, *second)])
        assert clash.sure is sure


def test_sureness_against_sets_of_bytes() -> None:
    """What is said to be sure is so for every pair of sets with these extremes and counts."""
    chance = random.Random(5)
    said = set()
    for _ in range(2000):
        sets = [set(chance.sample(range(12), chance.randint(1, 8))) for _ in range(2)]
        hits = [Hit(1 + place, 0, min(each), max(each), len(each)) for place, each in enumerate(sets)]
        for clash in clashes(FORK, hits):
            said.add(clash.sure)
            assert sets[0] & sets[1] or not clash.sure
    assert said == {True, False}


def test_orders_are_reachability() -> None:
    chance = random.Random(7)
    for _ in range(50):
        size = 12
        after = [tuple(j for j in range(i) if chance.random() < 0.2) for i in range(size)]
        reach: list[set[int]] = []
        for edges in after:
            reach.append(set(edges).union(*(reach[j] for j in edges)))
        found = orders_of(graph(*after))
        assert [{j for j in range(size) if found[i] >> j & 1} for i in range(size)] == reach


class Code(KernelCode):
    """The code of a kernel of which only this is known."""

    waits: bool | None = None  # type: ignore[assignment]
    releases: bool | None = None  # type: ignore[assignment]
    __slots__ = ("__dict__",)

    def __init__(self, waits: bool | None, releases: bool | None) -> None:
        super().__init__(lambda: None, ())
        self.waits, self.releases = waits, releases


def programmatic(first: Code | None, second: Code | None, port: str = "triggered_by") -> Graph:
    """Two kernels with a programmatic edge, between one before them and one behind them."""
    codes = [None, first, second, None]
    launches = [Launch(LaunchKind.TRITON, f"k{place}", (), code=code) for place, code in enumerate(codes)]
    nodes = [
        replace(node, launch=node.index, **({port: (1,)} if node.index == 2 else {}))
        for node in graph((), (0,), (1,), (2,))
    ]
    made = Graph(1, "graph", [Node(place, launch) for place, launch in enumerate(launches)])
    made.build_device_later(lambda: tuple(nodes))
    return made


RELEASES, WAITS, NEITHER, UNKNOWN = Code(False, True), Code(True, False), Code(False, False), Code(None, None)


@pytest.mark.parametrize(
    ("first", "second", "port", "early"),
    [
        (RELEASES, NEITHER, "triggered_by", True),
        (RELEASES, WAITS, "triggered_by", False),
        (NEITHER, NEITHER, "triggered_by", False),  # it lets the second begin at its end
        (RELEASES, UNKNOWN, "triggered_by", False),
        (RELEASES, None, "triggered_by", False),
        (UNKNOWN, NEITHER, "triggered_by", False),
        (None, NEITHER, "triggered_by", False),
        (UNKNOWN, NEITHER, "begun_after", True),
        (None, WAITS, "begun_after", False),
    ],
)
def test_programmatic_edges(first: Code | None, second: Code | None, port: str, early: bool) -> None:
    """One orders its nodes unless the second is known to run without a wait while the first may still run."""
    made = programmatic(first, second, port)
    edges = early_edges(made)
    assert edges == ({(1, 2)} if early else set())
    found = [(one.first.node, one.second.node) for one in clashes(made.device_nodes, DENSE, edges)]
    assert found == ([(1, 2)] if early else []), "what comes before both, and behind both, is in order"


def test_full_edges_are_no_early_ones() -> None:
    made = programmatic(RELEASES, NEITHER)
    made.build_device_later(lambda: tuple(replace(node, triggered_by=()) for node in graph((), (0,), (1,), (2,))))
    assert early_edges(made) == set()


def test_early_orders_are_reachability_without_the_ends_of_some() -> None:
    """A node begins after the ends of what it fully depends on, and after whatever lay before the rest began."""
    chance = random.Random(9)
    for _ in range(50):
        size = 10
        after = [tuple(j for j in range(i) if chance.random() < 0.3) for i in range(size)]
        early = {(j, i) for i in range(size) for j in after[i] if chance.random() < 0.4}
        begun: list[set[int]] = []
        ended: list[set[int]] = []
        for i in range(size):
            begun.append(set().union(*(begun[j] if (j, i) in early else ended[j] | {j} for j in after[i])))
            ended.append(set().union(*(ended[j] | {j} for j in after[i])))
        found = orders_of(graph(*after), early)
        assert [{j for j in range(size) if found[i] >> j & 1} for i in range(size)] == begun


def test_a_long_chain_over_one_buffer_is_no_quadratic_matter() -> None:
    nodes = graph((), *((index,) for index in range(2999)))
    hits = [Hit(index, 0, 0, 99, 100) for index in range(3000)]
    assert list(clashes(nodes, hits)) == []
