from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from shadowgraph.checks.invariants.rules import Breach, Rule, index_range, nondecreasing, rule_of
from shadowgraph.common.errors import UsageError

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def breach(rule: Rule, values: Any, base: int = 0, dtype: str = "int32") -> Breach | None:
    return rule.breach(np.array(values, dtype=dtype), base)


# -- nondecreasing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [[], [5], [0, 0, 0], [0, 1, 1, 7], [-3, -3, 2]])
def test_values_that_do_not_fall_are_well(values: list[int]) -> None:
    assert breach(nondecreasing, values) is None


@pytest.mark.parametrize(
    ("values", "base", "expected"),
    [
        ([1, 0], 0, Breach(1, 1, "[1] = 0 after [0] = 1")),
        ([0, 5, 4, 9, 2], 0, Breach(2, 2, "[2] = 4 after [1] = 5")),
        ([0, 5, 4], 16, Breach(2, 1, "[18] = 4 after [17] = 5")),
        ([3, 2, 1, 0], 0, Breach(1, 3, "[1] = 2 after [0] = 3")),
    ],
)
def test_the_first_fall_is_shown_and_all_are_counted(values: list[int], base: int, expected: Breach) -> None:
    assert breach(nondecreasing, values, base) == expected


@pytest.mark.parametrize("dtype", INTEGERS)
def test_falls_are_seen_whatever_the_type(dtype: str) -> None:
    """A difference of unsigned numbers, or of the largest ones, would wrap."""
    info = np.iinfo(dtype)
    assert breach(nondecreasing, [info.min, info.max], dtype=dtype) is None
    fall = breach(nondecreasing, [info.max, info.min], dtype=dtype)
    assert fall is not None
    assert fall.index == 1


# -- index_range -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], None),
        ([2, 5, 9], None),
        ([10], Breach(0, 1, "[0] = 10")),
        ([2, 1, 9, 10, -1], Breach(1, 3, "[1] = 1")),
        ([[3, 4], [5, 11]], Breach(3, 1, "[3] = 11")),
    ],
)
def test_the_low_end_belongs_to_a_range_and_the_high_end_does_not(values: Any, expected: Breach | None) -> None:
    assert breach(index_range(2, 10), values) == expected


def test_the_index_counts_from_the_whole() -> None:
    assert breach(index_range(0, 4), [0, 9], base=30) == Breach(1, 1, "[31] = 9")


@pytest.mark.parametrize("dtype", INTEGERS)
def test_bounds_that_a_type_cannot_hold(dtype: str) -> None:
    info = np.iinfo(dtype)
    assert breach(index_range(-(2**70), 2**70), [info.min, info.max], dtype=dtype) is None
    assert breach(index_range(int(info.min), int(info.max)), [info.min, info.max], dtype=dtype) == Breach(
        1, 1, f"[1] = {info.max}"
    )


def test_not_a_number_is_in_no_range() -> None:
    assert breach(index_range(0, 4), [1.0, float("nan")], dtype="float32") == Breach(1, 1, "[1] = nan")


@pytest.mark.parametrize(("low", "high"), [(4, 4), (4, 3)])
def test_a_range_without_values_is_refused(low: int, high: int) -> None:
    with pytest.raises(UsageError, match=rf"index_range\({low}, {high}\) allows no value; use low < high"):
        index_range(low, high)


# -- rules from what a user hands over -------------------------------------------------------------------------------


def test_names_and_rules_are_taken_as_they_are() -> None:
    assert rule_of("nondecreasing") is nondecreasing
    ranged = index_range(0, 8)
    assert rule_of(ranged) is ranged
    assert (ranged.name, ranged.prefix_safe, nondecreasing.prefix_safe) == ("index_range(0, 8)", True, True)


def even(values: Any) -> bool:
    return not (values % 2).any()


def test_a_callable_judges_the_whole() -> None:
    rule = rule_of(even)
    assert (rule.name, rule.prefix_safe) == ("even", False)
    assert breach(rule, [2, 4]) is None
    assert breach(rule, [2, 3, 5]) == Breach(0, 3, "even(values) is false")


@pytest.mark.parametrize("well", [True, np.True_, 1])
def test_whatever_is_true_is_well(well: object) -> None:
    assert breach(rule_of(lambda values: well), [1]) is None  # type: ignore[arg-type, return-value]
    assert breach(rule_of(lambda values: not well), [1]) == Breach(0, 1, "<lambda>(values) is false")


def test_a_callable_without_a_name() -> None:
    assert rule_of(functools.partial(even)).name == "rule"


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            "increasing",
            "no rule 'increasing' (did you mean nondecreasing?); use 'nondecreasing', shadowgraph.index_range(lo, hi) "
            "or a callable",
        ),
        (7, "a rule is a name, a Rule or a callable, not int"),
        (None, "a rule is a name, a Rule or a callable, not NoneType"),
    ],
)
def test_what_is_no_rule_is_refused(rule: object, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        rule_of(rule)  # type: ignore[arg-type]
    assert str(caught.value) == message
