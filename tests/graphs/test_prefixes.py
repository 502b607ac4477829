"""The search itself, over a graph that is only a list of what each node changes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from shadowgraph.graphs.prefixes import Changed, search
from shadowgraph.model.probes import Hit, Search


class Played:
    """A graph whose nodes change targets: of each target the values that nodes leave, by place in the order."""

    how = "disabled"

    def __init__(self, total: int, *targets: dict[int, int]) -> None:
        self.order: Sequence[int] = [100 + place for place in range(total)]
        self.targets, self.ran = targets, list[int]()

    def run(self, count: int) -> list[Changed | None]:
        assert 0 < count <= len(self.order)
        assert count not in self.ran, "each run tells something new"
        self.ran.append(count)
        found: list[Changed | None] = []
        for writes in self.targets:
            values = [value for place, value in sorted(writes.items()) if place < count]
            found.append(Changed(0, 3, values[-1]) if values and values[-1] else None)
        return found


@pytest.mark.parametrize("total", [1, 2, 3, 129])
def test_every_place_is_found_in_few_runs(total: int) -> None:
    for place in range(total):
        played = Played(total, {place: 4})
        hits, how, left = search(played, [7])
        assert (hits, left) == ((Hit(100 + place, 7, 0, 3, 4),), 0)
        assert how == Search(len(played.ran), total, "disabled")
        assert len(played.ran) <= 1 + math.ceil(math.log2(total)) if total > 1 else len(played.ran) == 1


def test_nothing_changes() -> None:
    played = Played(64, {}, {})
    assert search(played, [0, 1]) == ((), Search(1, 64, "disabled"), 0)


def test_several_targets_share_their_runs() -> None:
    played = Played(64, {10: 1}, {11: 2}, {}, {50: 3})
    hits, how, left = search(played, [0, 1, 2, 3])
    assert [(hit.node, hit.part, hit.count) for hit in hits] == [(110, 0, 1), (111, 1, 2), (150, 3, 3)]
    assert how.runs == len(played.ran) <= 16
    assert left == 0


def test_of_several_nodes_one_that_did_it() -> None:
    for places in ((3, 9), (0, 63), (31, 32, 33)):
        ((node, *_),) = ((hit.node,) for hit in search(Played(64, dict.fromkeys(places, 5)), [0])[0])
        assert node - 100 in places


def test_a_node_that_puts_the_bytes_back() -> None:
    """If all nodes leave nothing changed, it is as if nothing had happened; in between, a change is a change."""
    assert search(Played(64, {3: 5, 9: 0}), [0])[0] == ()
    (hit,) = search(Played(64, {3: 5, 20: 0, 40: 6}), [0])[0]
    assert hit.node in (103, 140)


def test_the_number_of_runs_is_bounded() -> None:
    played = Played(1024, *({64 * place: 1} for place in range(16)))
    hits, how, left = search(played, range(16))
    assert how.runs == len(played.ran) <= 1 + 10 + 8
    assert {hit.node - 100 for hit in hits} <= {64 * place for place in range(16)}
    assert hits
    assert len(hits) + left == 16
