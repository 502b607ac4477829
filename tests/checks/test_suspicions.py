"""A suspicion lives for one replay: else every later one would be looked at closely for nothing."""

from __future__ import annotations

from shadowgraph.checks.pending_confirmation import Suspicions
from shadowgraph.model.buffers import Buffer, Role

BUFFER = Buffer(1, 4096, 64, Role.STATIC)
FOUND = {(3, 1): BUFFER}


def test_what_two_replays_show_counts_and_is_suspected_no_longer() -> None:
    suspicions = Suspicions(doubtful=True)
    assert suspicions.settle(7, FOUND) == set()
    assert suspicions.buffers(7) == [BUFFER]
    assert suspicions.settle(7, FOUND) == {(3, 1)}
    assert not suspicions.by_graph
    assert suspicions.settle(7, FOUND) == set(), "told: from here on it takes two again"


def test_what_the_next_replay_does_not_show_is_dropped() -> None:
    suspicions = Suspicions(doubtful=True)
    suspicions.settle(7, FOUND)
    assert suspicions.settle(7, {}) == set()
    assert not suspicions.by_graph


def test_where_nobody_else_can_write_one_replay_is_enough() -> None:
    suspicions = Suspicions(doubtful=False)
    assert suspicions.settle(7, FOUND) == {(3, 1)}
    assert not suspicions.by_graph
