"""SG109 where several rules are about the same bytes: what a declared rule tells, no inferred one tells again."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from captures import silent
from playing import played
from programs import guarded, only

import shadowgraph as sg
from shadowgraph.checks.invariants import check as invariants
from shadowgraph.checks.invariants.check import Invariants
from shadowgraph.checks.invariants.precedence import ToldElements
from shadowgraph.checks.invariants.rules import Breach
from shadowgraph.common.internal_errors import internal_errors

WELL = [0, 2, 4, 6, 8, 10, 12, 14, 16]
Rule = Callable[[Any], Any]


class Wrapper:
    """Index pointers whose name implies a rule, and a graph that is captured with the first of them."""

    def __init__(self, debugger: sg.Debugger, *names: str, given: int = 8) -> None:
        self.debugger = debugger
        for name in names or ("kv_indptr",):
            setattr(self, name, guarded(debugger, 9))
            getattr(self, name).copy_(torch.tensor(WELL))
        debugger.name("wrapper", self)
        self.given = given

    def capture(self) -> None:
        self.graph = sg.HostGraph()
        with sg.host_graph(self.graph):
            self.kept = [tensor[: self.given] * 1 for tensor in self.pointers()]

    def pointers(self) -> list[torch.Tensor]:
        return [value for value in vars(self).values() if isinstance(value, torch.Tensor)]

    def step(self, values: list[int]) -> None:
        with self.debugger.prepare(self.graph):
            for tensor in self.pointers():
                tensor.copy_(torch.tensor(values, dtype=torch.int32))
        self.graph.replay()


def broken(*places: int) -> list[int]:
    """Pointers that fall at some places."""
    return [-1 if place in places else value for place, value in enumerate(WELL)]


def told(findings: Iterable[Any]) -> list[tuple[str, str, str]]:
    return [(found.buffer.name, found.detail.rule, found.confidence) for found in findings]


FALL = "nondecreasing: [3] = -1 after [2] = 4"
FURTHER = "nondecreasing: [6] = -1 after [5] = 10"


@pytest.mark.parametrize("first", ["declared first", "inferred first"])
@pytest.mark.parametrize("rows", [5, 8, 9])
def test_one_finding_of_the_declared_rule(rows: int, first: str) -> None:
    with sg.debug() as debugger:
        wrapper = Wrapper(debugger)
        if first == "inferred first":
            wrapper.capture()
        debugger.invariant(wrapper.kv_indptr[:rows], "nondecreasing")
        if first == "declared first":
            wrapper.capture()
        for values in (WELL, broken(3), WELL, broken(3)):
            wrapper.step(values)
    found = only(debugger.findings)
    assert told([found]) == [("wrapper.kv_indptr", FALL, "high")]
    assert (found.replay, found.occurrences, found.phase) == (2, 2, "prepare")
    assert debugger.notes == ()


def test_in_the_steps_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of all rules arrive together, late."""
    with played(monkeypatch) as debugger:
        wrapper = Wrapper(debugger)
        wrapper.capture()
        debugger.invariant(wrapper.kv_indptr[:5], "nondecreasing")
        for values in (WELL, broken(3), WELL, broken(3, 6)):
            wrapper.step(values)
        debugger.check()
        assert told(debugger.findings) == [
            ("wrapper.kv_indptr", FALL, "high"),
            ("wrapper.kv_indptr", FURTHER, "medium"),
        ]


def test_what_the_declared_rule_does_not_cover_is_told_by_the_inferred_one() -> None:
    with sg.debug() as debugger:
        wrapper = Wrapper(debugger)
        wrapper.capture()
        debugger.invariant(wrapper.kv_indptr[:5], "nondecreasing")
        wrapper.step(broken(3, 6))
    first, second = debugger.findings
    assert told([first, second]) == [("wrapper.kv_indptr", FALL, "high"), ("wrapper.kv_indptr", FURTHER, "medium")]
    assert [(each.bytes.first, each.bytes.last, each.bytes.count) for each in (first, second)] == [
        (12, 15, 4),
        (24, 27, 4),
    ]


def test_a_fall_at_the_edge_of_the_declared_rule() -> None:
    """Its last element and the next one: only the inferred rule sees both."""
    with sg.debug() as debugger:
        wrapper = Wrapper(debugger)
        wrapper.capture()
        debugger.invariant(wrapper.kv_indptr[:6], "nondecreasing")
        wrapper.step(broken(6))
    assert told(debugger.findings) == [("wrapper.kv_indptr", FURTHER, "medium")]


def test_another_declared_rule_about_the_same_bytes() -> None:
    with sg.debug() as debugger:
        wrapper = Wrapper(debugger)
        debugger.invariant(wrapper.kv_indptr, sg.index_range(0, 100))
        wrapper.capture()
        wrapper.step(broken(3))
    assert told(debugger.findings) == [("wrapper.kv_indptr", "index_range(0, 100): [3] = -1", "high")]


def last_is_even(values: Any) -> bool:
    return bool(values[-1] % 2 == 0)


def test_a_callable_does_not_tell_which_element_is_wrong_and_hides_none() -> None:
    with sg.debug() as debugger:
        wrapper = Wrapper(debugger)
        debugger.invariant(wrapper.kv_indptr, last_is_even)
        wrapper.capture()
        odd = [*WELL[:8], 17]
        for values in (odd, odd, odd, [*odd[:4], -1, *odd[5:]], [*odd[:4], -1, *odd[5:]]):
            wrapper.step(values)
        debugger.check()
    assert told(debugger.findings) == [
        ("wrapper.kv_indptr", "last_is_even: last_is_even(values) is false", "high"),
        ("wrapper.kv_indptr", "nondecreasing: [4] = -1 after [3] = 6", "medium"),
    ]
    assert [found.replay for found in debugger.findings] == [1, 4]
    assert debugger.findings[0].bytes.count == 36


def test_a_callable_takes_over_no_finding() -> None:
    with sg.debug() as debugger:
        wrapper = Wrapper(debugger)
        wrapper.capture()
        wrapper.step(broken(3))
        debugger.invariant(wrapper.kv_indptr, lambda values: values.min() >= 0)
        debugger.check()
    assert [confidence for _, _, confidence in told(debugger.findings)] == ["medium", "high"]


class Unhashable:
    """A rule of the user's that tells where values are below zero."""

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, values: Any, base: int) -> Breach | None:
        below = np.flatnonzero(values.reshape(-1) < 0)
        return Breach(int(below[0]), int(below.size), f"[{base + int(below[0])}] is below zero") if below.size else None


def test_a_rule_without_a_hash() -> None:
    before = internal_errors.total
    with sg.debug() as debugger:
        wrapper = Wrapper(debugger)
        wrapper.capture()
        debugger.invariant(wrapper.kv_indptr[:5], sg.Rule("nohash", Unhashable()))
        wrapper.step(broken(3, 6))
        debugger.check()
    assert told(debugger.findings) == [
        ("wrapper.kv_indptr", "nohash: [3] is below zero", "high"),
        ("wrapper.kv_indptr", FURTHER, "medium"),
    ]
    assert internal_errors.total == before


def test_a_declared_rule_that_holds_hides_nothing() -> None:
    with sg.debug() as debugger:
        wrapper = Wrapper(debugger)
        debugger.invariant(wrapper.kv_indptr, sg.index_range(-1, 100))
        wrapper.capture()
        wrapper.step(broken(3))
    assert told(debugger.findings) == [("wrapper.kv_indptr", FALL, "medium")]


def test_two_declared_rules_are_told_both() -> None:
    with sg.debug() as debugger:
        wrapper = Wrapper(debugger)
        debugger.invariant(wrapper.kv_indptr, "nondecreasing")
        debugger.invariant(wrapper.kv_indptr, sg.index_range(0, 100))
        wrapper.capture()
        wrapper.step(broken(3))
    assert [rule for _, rule, _ in told(debugger.findings)] == [FALL, "index_range(0, 100): [3] = -1"]


def test_several_buffers() -> None:
    with sg.debug() as debugger:
        wrapper = Wrapper(debugger, "kv_indptr", "qo_indptr", "cu_seqlens")
        wrapper.capture()
        debugger.invariant(wrapper.kv_indptr, "nondecreasing")
        debugger.invariant(wrapper.qo_indptr[:5], "nondecreasing")
        wrapper.step(WELL)
        wrapper.step(broken(3))
    assert sorted(told(debugger.findings)) == [
        ("wrapper.cu_seqlens", FALL, "medium"),
        ("wrapper.kv_indptr", FALL, "high"),
        ("wrapper.qo_indptr", FALL, "high"),
    ]


def test_at_a_host_read() -> None:
    with sg.debug() as debugger:
        wrapper = Wrapper(debugger)
        wrapper.capture()
        debugger.invariant(wrapper.kv_indptr[:5], "nondecreasing")
        wrapper.kv_indptr.copy_(torch.tensor(broken(3, 6), dtype=torch.int32))
        wrapper.kv_indptr[:8].tolist()
    assert told(debugger.findings) == [("wrapper.kv_indptr", FALL, "high"), ("wrapper.kv_indptr", FURTHER, "medium")]
    assert {found.detected_at for found in debugger.findings} == {"host_read"}


def test_a_rule_that_an_adapter_keeps() -> None:
    """It stands between the two: declared rules come before it, and it comes before those that follow from names."""
    with sg.debug() as debugger:
        wrapper = Wrapper(debugger)
        wrapper.capture()
        check = debugger._work.checks[Invariants]
        inferred = check.invariants[0]
        check.keep(inferred.buffer, inferred.view, sg.index_range(0, 100), most=20)
        wrapper.step(broken(3, 6))
        assert [rule for _, rule, _ in told(debugger.findings)] == ["index_range(0, 100): [3] = -1", FURTHER]
        debugger.invariant(wrapper.kv_indptr[:5], sg.index_range(0, 50))
        debugger.check()
        assert told(debugger.findings) == [
            ("wrapper.kv_indptr", "index_range(0, 50): [3] = -1", "high"),
            ("wrapper.kv_indptr", FURTHER, "medium"),
        ]


# -- the declared rule is looked at later in the step ------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["nondecreasing", sg.index_range(0, 100)], ids=["the same rule", "another rule"])
def test_the_declared_rule_takes_the_place_of_the_inferred_one(rule: str | sg.Rule) -> None:
    with sg.debug() as debugger:
        wrapper = Wrapper(debugger)
        wrapper.capture()
        wrapper.step(broken(3))
        before = only(debugger.findings)
        assert before.confidence == "medium"
        debugger.invariant(wrapper.kv_indptr[:5], rule)
        debugger.check()
        debugger.check()
        after = only(debugger.findings)
        assert (after.id, after.confidence, after.occurrences) == (before.id, "high", 2)
        assert after.revision > before.revision
        wrapper.step(broken(3))
        assert only(debugger.findings).occurrences == 3
        wrapper.step(broken(6))
    assert [confidence for _, _, confidence in told(debugger.findings)] == ["high", "medium"]
    assert debugger.findings[1].detail.rule == FURTHER


def test_the_rest_of_the_inferred_finding_stays() -> None:
    with sg.debug() as debugger:
        wrapper = Wrapper(debugger)
        wrapper.capture()
        wrapper.step(broken(3, 6))
        assert only(debugger.findings).bytes.count == 8
        debugger.invariant(wrapper.kv_indptr[:5], "nondecreasing")
        debugger.check()
    assert told(debugger.findings) == [("wrapper.kv_indptr", FALL, "high"), ("wrapper.kv_indptr", FURTHER, "medium")]
    assert [found.bytes.count for found in debugger.findings] == [4, 4]


def test_values_that_were_written_since_are_another_finding() -> None:
    with sg.debug() as debugger:
        wrapper = Wrapper(debugger)
        wrapper.capture()
        wrapper.step(broken(3))
        wrapper.kv_indptr.copy_(torch.tensor(broken(3), dtype=torch.int32))
        debugger.invariant(wrapper.kv_indptr[:5], "nondecreasing")
        debugger.check()
    assert [confidence for _, _, confidence in told(debugger.findings)] == ["medium", "high"]


def test_after_a_pause_it_is_not_known_whether_they_were_written() -> None:
    with sg.debug() as debugger:
        wrapper = Wrapper(debugger)
        wrapper.capture()
        wrapper.step(broken(3))
        debugger.pause()
        debugger.resume()
        debugger.invariant(wrapper.kv_indptr[:5], "nondecreasing")
        debugger.check()
    assert [confidence for _, _, confidence in told(debugger.findings)] == ["medium", "high"]


def test_another_graph_replays_before_the_rest_is_told_again() -> None:
    with sg.debug() as debugger:
        wrapper = Wrapper(debugger)
        wrapper.capture()
        small = sg.HostGraph()
        with sg.host_graph(small):
            kept = wrapper.kv_indptr[:4] * 1
        wrapper.step(broken(3, 6))
        debugger.invariant(wrapper.kv_indptr[:6], sg.index_range(0, 100))
        small.replay()
        debugger.check()
        debugger.check()
        assert kept.numel() == 4
    assert told(debugger.findings) == [
        ("wrapper.kv_indptr", "index_range(0, 100): [3] = -1", "high"),
        ("wrapper.kv_indptr", FURTHER, "medium"),
    ]


def test_several_threads_check_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them takes the finding over."""
    both, since = threading.Barrier(2), Invariants._written_since

    def met(*args: Any) -> bool:
        with suppress(threading.BrokenBarrierError):
            both.wait(timeout=0.5)
        return since(*args)

    before = internal_errors.total
    with sg.debug() as debugger:
        wrapper = Wrapper(debugger)
        wrapper.capture()
        wrapper.step(broken(3))
        debugger.invariant(wrapper.kv_indptr[:5], "nondecreasing")
        monkeypatch.setattr(Invariants, "_written_since", met)
        threads = [threading.Thread(target=debugger.check) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert told(debugger.findings) == [("wrapper.kv_indptr", FALL, "high")]
    assert internal_errors.total == before


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_a_broken_rule_keeps_no_values() -> None:
    with sg.debug() as debugger:
        wrapper = Wrapper(debugger)
        wrapper.kv_indptr = torch.arange(500_000)
        wrapper.given = 499_999
        wrapper.capture()
        wrapper.step([0])
        tracemalloc.start()
        try:
            with debugger.prepare(wrapper.graph):
                wrapper.kv_indptr.copy_(torch.arange(500_000).flip(0))
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            wrapper.graph.replay()
            gc.collect()
            kept = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert only(debugger.findings).bytes.count == 499_998 * 8
        assert kept < 1_000_000


def test_nothing_is_kept_of_rules_that_hold_again_and_of_dead_buffers() -> None:
    with sg.debug() as debugger:
        wrapper = Wrapper(debugger, "kv_indptr", "qo_indptr")
        wrapper.capture()
        check = debugger._work.checks[Invariants]
        wrapper.step(broken(3))
        assert len(check._latest) == 2
        wrapper.kv_indptr.copy_(torch.tensor(WELL))
        wrapper.graph.replay()
        assert [seen.view.start for seen in check._latest] == [wrapper.qo_indptr.data_ptr()]
        del wrapper.qo_indptr, wrapper.kept
        wrapper.capture()
        wrapper.graph.replay()
        assert not check._latest


def test_the_work_grows_with_the_number_of_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    names, looks = [f"indptr_{number}" for number in range(40)], 0
    there = invariants.still_there

    def counted(*args: Any) -> bool:
        nonlocal looks
        looks += 1
        return there(*args)

    with sg.debug() as debugger:
        wrapper = Wrapper(debugger, *names)
        wrapper.capture()
        monkeypatch.setattr(invariants, "still_there", counted)
        wrapper.step(broken(3))
        assert len(debugger.findings) == len(names)
        assert looks <= 3 * len(names)


def test_elements_are_told_where_they_overlap() -> None:
    told = ToldElements()
    told.add(np.array([], dtype=np.int64), 4)
    told.add(np.array([100, 108]), 4)
    told.add(np.array([200]), 8)
    assert told.have(np.array([96, 100, 104, 108, 204]), 4).tolist() == [False, True, False, True, True]
    assert not told.have(np.array([300]), 8).any()
    assert not told.have(np.array([], dtype=np.int64), 8).size


def test_the_fixed_twin() -> None:
    with sg.debug() as debugger:
        wrapper = Wrapper(debugger)
        wrapper.capture()
        debugger.invariant(wrapper.kv_indptr[:5], "nondecreasing")
        for length in (1, 5, 3):
            wrapper.step([place * length for place in range(9)])
        debugger.check()
        assert silent(debugger)
