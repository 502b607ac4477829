"""Rules that a buffer's values must satisfy: declared or inferred invariants, evaluated on a numpy array.

A rule may be the user's callable; it runs in the thread of the event, at a replay under the debugger's lock.
"""

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
    """A violation of a rule: index among the values checked, number of failing elements, the values that show it."""

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
        Whether the rule holds for a prefix whenever it holds for the whole, so that a part can be checked.
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
        The smallest allowed value, and the first that is too large; NaN is outside.

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
    """A rule from its name, a `Rule`, or a callable that is handed a numpy array and returns whether the rule holds.

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
