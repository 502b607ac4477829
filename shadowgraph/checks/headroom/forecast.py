"""Where the growth of a buffer's use leads: the relation between use and batch, and the trend over the last steps.

Pure functions over points that the check has kept; a few hundred operations, called only where a buffer has grown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shadowgraph.model.high_water import Driver, Forecast

LAST = 6  # steps over which the use must have grown, without a step back
DISTINCT = 6  # values of a driver that a relation takes, at least
STEADY = 8  # steps in each of which the use must have grown, where no limits are known
_NEARLY = 0.02  # of the range of the uses: how far a point may lie from a relation
_PACE = 0.1  # of the growth: how far a step may lie from a steady pace
_MARGIN = 1 / 16  # of the capacity: what a use at the limits must pass it by; see `_by_limits`
_SHOWN = 6


class Point(NamedTuple):
    """The use of a buffer in one step.

    Attributes
    ----------
    used
        Entries.
    requests, longest, tokens
        The batch: its size, longest length, sum of lengths; 0 where unknown.
    """

    used: int
    requests: int = 0
    longest: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program's configuration allows: requests of a batch, tokens of one, tokens of all; 0 where unknown."""

    requests: int = 0
    longest: int = 0
    tokens: int = 0

    def within(self, other: Limits) -> Limits:
        """The stricter of both, each by each."""
        return Limits(
            _stricter(self.requests, other.requests),
            _stricter(self.longest, other.longest),
            _stricter(self.tokens, other.tokens),
        )

    @property
    def most(self) -> Point:
        """The largest batch; 0 for what it does not bound."""
        tokens = _stricter(self.requests * self.longest, self.tokens)
        return Point(0, self.requests, self.longest, tokens)


def _stricter(one: int, other: int) -> int:
    return min(one, other) if one and other else one or other


@dataclass(frozen=True, slots=True)
class _Relation:
    """``used = slope * driver + base``, to which a second term may add ``each * requests``."""

    driver: Driver
    slope: float
    base: float
    exact: bool
    each: float = 0.0

    def at(self, value: float, requests: int) -> float:
        return self.slope * value + self.each * requests + self.base

    def first_above(self, capacity: int, requests: int) -> int:
        """The smallest value of the driver that takes more than a capacity."""
        return int((capacity - self.each * requests - self.base) / self.slope + 1e-9) + 1


_VALUES: dict[Driver, Callable[[Point], int]] = {
    Driver.TOKENS: lambda point: point.tokens,
    Driver.LONGEST: lambda point: point.longest,
    Driver.REQUESTS: lambda point: point.requests,
    Driver.AREA: lambda point: point.requests * point.longest,
}


def grows(points: Sequence[Point], capacity: int) -> bool:
    """Whether the use has grown over the last steps, without a step back, and is below the end."""
    if len(points) < LAST or points[-1].used >= capacity or points[-1].used <= points[-LAST].used:
        return False
    return all(one.used <= other.used for one, other in zip(points[-LAST:], points[1 - LAST :], strict=False))


def forecast(points: Sequence[Point], capacity: int, limits: Limits) -> Forecast | None:
    """Where the growth leads, if it leads past the end; None too where that is not known.

    Without a batch it is not: a use that grows by one in each step, as the length of a request does, stops as a rule
    where the program's limits are, and these are what the buffer was sized for.

    Parameters
    ----------
    points
        Of consecutive observed steps, oldest first, for which `grows` holds.
    capacity
        Entries.
    """
    last = points[-1]
    if not last.requests:
        return None
    relations = list(_relations(points))
    if any(relation.driver is Driver.REQUESTS for relation in relations) and not limits.requests:
        return None  # the sizes that were captured bound it
    if not relations:
        return None
    if not last.tokens or _bounds(relations, limits):
        return _by_limits(relations, points, capacity, limits)
    return _told(relations[0], points, capacity, Limits()) if _keeps_pace(points, capacity) else None


# -- by the batch ----------------------------------------------------------------------------------------------------


def _bounds(relations: Sequence[_Relation], limits: Limits) -> bool:
    """Whether the limits bound each driver."""
    return all(_VALUES[relation.driver](limits.most) for relation in relations)


def _by_limits(
    relations: Sequence[_Relation], points: Sequence[Point], capacity: int, limits: Limits
) -> Forecast | None:
    """The forecast, if the largest batch overflows by every relation that the points allow.

    It must do so by its lengths or sizes alone as well: what a step adds to each request (draft tokens, the token that
    comes next) is mostly taken from the limit, so that the two do not add up.
    """
    most = limits.most
    for relation in relations:
        limit = _VALUES[relation.driver](most)
        requests = most.requests if relation.each > 0 else 1
        least = min(relation.slope * limit, relation.at(limit, requests))
        if not limit or least <= capacity * (1 + _MARGIN):
            return None
    return _told(relations[0], points, capacity, limits)


def _told(relation: _Relation, points: Sequence[Point], capacity: int, limits: Limits) -> Forecast | None:
    value, last = _VALUES[relation.driver], points[-1]
    at, limit = relation.first_above(capacity, last.requests), value(limits.most)
    if at <= value(last) or (limit and at > limit):
        return None
    return Forecast(
        driver=relation.driver,
        now=value(last),
        overflows_at=at,
        limit=limit,
        at_limit=round(relation.at(limit, max(last.requests, limits.requests))) if limit else 0,
        exact=relation.exact,
        points=tuple((value(point), point.used) for point in points[-_SHOWN:]),
        steps=len(points),
    )


def _relations(points: Sequence[Point]) -> Iterator[_Relation]:
    """The relations that hold for all points, the likeliest first."""
    if any(not point.requests for point in points):
        return
    found = False
    for driver, value in _VALUES.items():
        line = _line([(value(point), point.used) for point in points])
        if line is not None:
            found = True
            yield _Relation(driver, *line)
    plane = _plane(points) if not found else None
    if plane is not None:
        yield plane


def _line(pairs: Sequence[tuple[int, int]]) -> tuple[float, float, bool] | None:
    """Slope and base of the line through all pairs, and whether it is exact; None where there is none that rises."""
    (low, least), (high, most) = min(pairs), max(pairs)
    if most <= least or len({value for value, _ in pairs}) < DISTINCT:
        return None
    slope = (most - least) / (high - low)
    base = least - slope * low
    worst = max(abs(slope * value + base - used) for value, used in pairs)
    return (slope, base, worst < 1e-6) if worst <= _NEARLY * (most - least) else None


def _plane(points: Sequence[Point]) -> _Relation | None:
    """The relation with both the sum of lengths and the batch size."""
    given = np.array([(point.tokens, point.requests, 1) for point in points], dtype=np.float64)
    used = np.array([point.used for point in points], dtype=np.float64)
    if not given[:, 0].any() or len(np.unique(given, axis=0)) < DISTINCT:
        return None
    found, _, rank, _ = np.linalg.lstsq(given, used, rcond=None)
    slope, each, base = (float(number) for number in found)
    worst = float(np.abs(given @ found - used).max())
    if rank < given.shape[1] or slope <= 1e-9 or worst > _NEARLY * float(np.ptp(used)):
        return None
    return _Relation(Driver.TOKENS, slope, base, worst < 1e-6 * max(1.0, float(used.max())), each)


# -- by the pace of steps --------------------------------------------------------------------------------------------


def _keeps_pace(points: Sequence[Point], capacity: int) -> bool:
    """Whether the use grew in each of the last steps by much the same, and as many more of them pass the end."""
    run = 1
    while run < len(points) and points[-run - 1].used < points[-run].used:
        run += 1
    if run <= STEADY:
        return False
    used = [point.used for point in points[-run:]]
    pace = (used[-1] - used[0]) / (run - 1)
    worst = max(abs(used[0] + pace * step - each) for step, each in enumerate(used))
    left = int((capacity - used[-1]) / pace + 1e-9) + 1
    return worst <= _PACE * (used[-1] - used[0]) and left <= run
