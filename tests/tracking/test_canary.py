from __future__ import annotations

import pytest

from shadowgraph.model.canary import PERIOD, canary


@pytest.mark.parametrize("position", [0, 1, 17, PERIOD - 1, PERIOD, 3 * PERIOD + 5, 2**40 + 3, -1, -PERIOD - 7])
@pytest.mark.parametrize(
    "nbytes", [0, 1, 16, PERIOD - 1, PERIOD, PERIOD + 1, 2 * PERIOD, 2 * PERIOD + 1, 5 * PERIOD + 3]
)
def test_a_byte_depends_on_its_position_alone(position: int, nbytes: int) -> None:
    assert canary(position, nbytes) == b"".join(canary(position + i, 1) for i in range(nbytes))


def test_it_repeats_after_a_period_and_not_before() -> None:
    whole = canary(0, PERIOD)
    assert canary(PERIOD, PERIOD) == whole
    assert not any(canary(shift, PERIOD) == whole for shift in range(1, PERIOD))


def test_bytes_are_odd_and_no_common_high_byte() -> None:
    values = set(canary(0, PERIOD))
    assert min(values) >= 0xA1
    assert max(values) <= 0xBD
    assert all(value % 2 for value in values)
    assert len(values) == 15, "all of the values that are left are used"


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
def test_no_element_repeated_over_and_over_looks_like_a_guard(itemsize: int) -> None:
    whole = canary(0, 2 * PERIOD)
    alike = [
        position
        for position in range(PERIOD)
        if whole[position : position + 64] == whole[position : position + itemsize] * (64 // itemsize)
    ]
    assert alike == []


@pytest.mark.parametrize("distance", [1, 4, 16, 256, 512, 2048])
def test_a_guard_copied_elsewhere_is_seen(distance: int) -> None:
    """By an offset that is no multiple of the period, most bytes of a copy differ."""
    here, there = canary(0, PERIOD), canary(distance, PERIOD)
    assert sum(a != b for a, b in zip(here, there, strict=True)) > PERIOD // 2


@pytest.mark.parametrize("value", range(15))
def test_values_are_spread_evenly(value: int) -> None:
    count = canary(0, PERIOD).count(0xA1 + 2 * value)
    assert PERIOD / 15 / 2 < count < PERIOD / 15 * 2
