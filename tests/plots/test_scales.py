"""Bars that stand for many spans: what is worked out for all at once is what each span for itself would give."""

from __future__ import annotations

import random

import pytest

from shadowgraph.views.scales import Steps, address_axis, joined, joined_bars, widened

BASE = 0x7F00_0000_0000


def one_by_one(scale: Steps, spans: list[tuple[int, int]], narrowest: float, least: float) -> list[tuple[float, float]]:
    ends = scale.places[0], scale.places[-1]
    return joined((widened(scale.span(*span), narrowest, ends) for span in spans), least)


@pytest.mark.parametrize("seed", range(20))
def test_bars_of_random_spans(seed: int) -> None:
    rng = random.Random(seed)
    starts = [BASE + rng.randrange(1 << rng.choice((12, 20, 34))) for _ in range(rng.choice((1, 2, 50, 400)))]
    spans = [(start, start + rng.choice((1, 16, 4096, 1 << 22))) for start in starts]
    axis = address_axis(spans, 0.3, 11.0)
    for narrowest, least in ((0.01, 0.005), (0.3, 0.1), (0.0, 0.0)):
        bars = joined_bars(axis.scale, spans, narrowest, least)
        wanted = one_by_one(axis.scale, spans, narrowest, least)
        assert len(bars) == len(wanted)
        for bar, want in zip(bars, wanted, strict=True):
            assert bar == pytest.approx(want, abs=1e-9)


def test_no_spans_make_no_bars() -> None:
    assert joined_bars(Steps((0, 10), (0.0, 1.0)), [], 0.1, 0.1) == []


def test_a_span_at_either_end_stays_inside() -> None:
    scale = Steps((100, 200), (1.0, 2.0))
    assert joined_bars(scale, [(100, 101), (199, 200)], 0.5, 0.0) == [(1.0, 1.5), (1.5, 2.0)]
