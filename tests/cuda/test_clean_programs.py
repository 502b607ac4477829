"""Real programs captured and replayed 200 times: bit-identical with and without shadowgraph, and nothing reported."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch
from helpers_cuda import only
from programs_cuda import EVERY, PROGRAMS, REPLAYS, Ran, deterministic, run

import shadowgraph as sg
from shadowgraph.demos.device import Unwatched

pytestmark = pytest.mark.gpu

Seen = list[tuple[torch.Tensor, ...]]


@pytest.fixture(scope="module", autouse=True)
def settings() -> Iterator[None]:
    with deterministic():
        yield


def differences(one: Seen, other: Seen) -> list[int]:
    """Replays at which any output differs in any bit (a NaN differs from itself)."""
    assert len(one) == len(other) == REPLAYS // EVERY
    pairs = enumerate(zip(one, other, strict=True), 1)
    return [EVERY * at for at, (a, b) in pairs if not all(torch.equal(x, y) for x, y in zip(a, b, strict=True))]


@cache
def plain(name: str) -> Seen:
    """What a program gives without shadowgraph: twice the same, or a comparison would prove nothing."""
    first, second = (run(PROGRAMS[name], Unwatched()).seen for _ in range(2))
    assert differences(first, second) == [], "the program alone gives other bits at its second run"
    assert not torch.equal(first[0][0], first[-1][0]), "its results depend on its inputs"
    return first


@pytest.mark.parametrize("layout", ["isolate", "faithful"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_two_hundred_replays_are_bit_identical_and_silent(name: str, layout: str) -> None:
    expected = plain(name)
    with sg.debug(backend="cuda", layout=layout) as debugger:
        ran: Ran = run(PROGRAMS[name], debugger)
        facts = debugger.report(quiet=True).facts
    assert differences(ran.seen, expected) == []
    assert [finding.message for finding in facts.findings] == []
    assert [note.message for note in facts.notes] == []
    assert facts.faults == {}
    assert facts.lost is None
    assert facts.coverage.dropped == 0
    assert any(nodes and replays >= REPLAYS for _, nodes, replays in facts.graphs), facts.graphs


@pytest.mark.parametrize("layout", ["isolate", "faithful"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_look_after_every_node_changes_nothing(name: str, layout: str) -> None:
    """Every graph's second replay has its nodes one after the other and all tracked memory compared after each."""
    expected = plain(name)
    with sg.debug(backend="cuda", layout=layout, locate="all") as debugger:
        ran: Ran = run(PROGRAMS[name], debugger)
        facts = debugger.report(quiet=True).facts
        looked = dict(debugger.monitor.locator.write_sets)
    assert differences(ran.seen, expected) == []
    assert [finding.message for finding in facts.findings] == []
    assert facts.faults == {}
    assert looked, "no replay was looked at"
    if name != "compiled":  # what inductor's graphs write lies in its own pool, which is left alone
        assert any(sets.written for sets in looked.values()), "no node was seen to write anything"


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_program_with_a_planted_overflow_is_not_silent(name: str) -> None:
    """The silence above is not blindness."""
    with sg.debug(backend="cuda") as debugger:
        ran = run(PROGRAMS[name], debugger, replays=6, plant=4)
        found = only(debugger.check())
        facts = debugger.report(quiet=True).facts
    size = ran.built.static.numel() * ran.built.static.element_size()
    assert (found.code, found.buffer.name, found.buffer.nbytes) == ("SG101", "static", size)
    assert (found.bytes.side, found.bytes.first, found.bytes.last, found.bytes.count) == ("after", size, size + 3, 4)
    assert (found.past_end, found.bytes.distance, found.occurrences) == (4, 0, 1)
    assert "put" in {culprit.name for culprit in (found.culprit, *found.candidates)}
    if name != "compiled":  # inductor copies its inputs: its graph reads the copy, and counts replays while it warms up
        assert (found.phase, found.replay) == ("prepare", 4)
    assert facts.faults == {}
