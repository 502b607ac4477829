"""Rules that values must keep: what a declared or inferred invariant says, evaluated on a numpy array."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shadowgraph.common.errors import UsageError

Values = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Breach:
    """Where a rule fails: index among the values judged, how many elements in all, the values that show it."""

    index: int
    count: int
    shown: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A named predicate; ``breach(values, base)`` gives the first element that breaks it, or None.

    `base` is the index of the first value in the whole.

    Attributes
    ----------
    prefix_safe
        The rule holds for a prefix whenever it holds for the whole, so it can be judged on a part.
    """

    name: str
    breach: Callable[[Values, int], Breach | None]
    prefix_safe: bool = True


def _nondecreasing(values: Values, base: int) -> Breach | None:
    flat = values.reshape(-1)
    falls = np.flatnonzero(flat[1:] < flat[:-1])
    if not falls.size:
        return None
    at = int(falls[0]) + 1
    return Breach(at, int(falls.size), f"[{base + at}] = {flat[at]} after [{base + at - 1}] = {flat[at - 1]}")


nondecreasing = Rule("nondecreasing", _nondecreasing)


def index_range(low: int, high: int) -> Rule:
    """Every element in ``[low, high)``, as an index into something of `high` rows must be.

    Parameters
    ----------
    low, high
        The smallest value that is well, and the first that is too large; NaN is outside.

    Raises
    ------
    UsageError
        When the range is empty.
    """
    if high <= low:
        raise UsageError(f"index_range({low}, {high}) allows no value; use low < high")

    def breach(values: Values, base: int) -> Breach | None:
        flat = values.reshape(-1)
        outside = np.flatnonzero(~((flat >= low) & (flat < high)))  # this way round, NaN is outside
        if not outside.size:
            return None
        at = int(outside[0])
        return Breach(at, int(outside.size), f"[{base + at}] = {flat[at]}")

    return Rule(f"index_range({low}, {high})", breach)


def rule_of(rule: str | Rule | Callable[[Values], bool]) -> Rule:
    """A rule from its name, a `Rule`, or a callable that is handed a numpy array and returns whether it is well.

    Raises
    ------
    UsageError
        For a name that does not exist.
    """
    if isinstance(rule, Rule):
        return rule
    if isinstance(rule, str):
        if rule == nondecreasing.name:
            return nondecreasing
        raise UsageError(f"no rule {rule!r}; use 'nondecreasing', shadowgraph.index_range(lo, hi) or a callable")
    if not callable(rule):
        raise UsageError(f"a rule is a name, a Rule or a callable, not {type(rule).__name__}")
    name = getattr(rule, "__name__", "rule")

    def breach(values: Values, base: int) -> Breach | None:
        return None if bool(rule(values)) else Breach(0, int(values.size), f"{name}(values) is false")

    return Rule(name, breach, prefix_safe=False)
