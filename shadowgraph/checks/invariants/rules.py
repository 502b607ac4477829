"""Rules that a buffer's values must satisfy: declared or inferred invariants, evaluated on a numpy array.

A rule may be the user's callable; it runs in the thread of the event, at a replay under the debugger's lock.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shadowgraph.common.errors import UsageError
from shadowgraph.common.option_kinds import shown
from shadowgraph.common.suggestions import did_you_mean

Values = npt.NDArray[Any]
Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Breach:
    """A violation of a rule: index among the values checked, number of failing elements, the values that show it.

    Attributes
    ----------
    failing
        Indices of all failing elements, ascending; None where the rule tells of the first one alone, empty where it
        tells of no element, but of all values together.
    show
        The values that show one of them.
    """

    index: int
    count: int
    shown: str
    failing: Indices | None = field(default=None, compare=False, repr=False)
    show: Callable[[int], str] | None = field(default=None, compare=False, repr=False)

    @property
    def elements(self) -> Indices:
        """Indices of the failing elements that are known."""
        return self.failing if self.failing is not None else np.array([self.index], dtype=np.intp)

    def only(self, elements: Indices) -> Breach | None:
        """The violation by some of its elements; None without any."""
        if not elements.size:
            return None
        first = int(elements[0])
        shown = self.show(first) if self.show is not None else self.shown
        return replace(self, index=first, count=int(elements.size), shown=shown, failing=elements)


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

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not callable(self.breach):
            raise UsageError("a Rule is a name and a function; a function of your own is a rule as it is")


def _nondecreasing(values: Values, base: int) -> Breach | None:
    flat = values.reshape(-1)
    falls = np.flatnonzero(~(flat[1:] >= flat[:-1])) + 1  # this way round, NaN is neither above nor below

    def shown(at: int) -> str:
        return f"[{base + at}] = {flat[at]} after [{base + at - 1}] = {flat[at - 1]}"

    return Breach(-1, 0, "", falls, shown).only(falls)


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
        When the range is empty, or its ends are no numbers.
    """
    for end in (low, high):
        if not _is_number(end):
            raise UsageError(f"index_range() takes two numbers, not {shown(end)}")
    if high <= low:
        raise UsageError(f"index_range({low}, {high}) allows no value; use low < high")

    def breach(values: Values, base: int) -> Breach | None:
        flat = values.reshape(-1)
        outside = np.flatnonzero(~((flat >= low) & (flat < high)))  # this way round, NaN is outside

        def shown(at: int) -> str:
            return f"[{base + at}] = {flat[at]}"

        return Breach(-1, 0, "", outside, shown).only(outside)

    return Rule(f"index_range({low}, {high})", breach)


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real)


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
        near = did_you_mean(rule, [nondecreasing.name])
        raise UsageError(f"no rule {rule!r}{near}; use 'nondecreasing', shadowgraph.index_range(lo, hi) or a callable")
    if not callable(rule):
        raise UsageError(f"a rule is a name, a Rule or a callable, not {type(rule).__name__}")
    name = getattr(rule, "__name__", "rule")

    def breach(values: Values, base: int) -> Breach | None:
        if bool(rule(values)):
            return None
        return Breach(0, int(values.size), f"{name}(values) is false", np.empty(0, dtype=np.intp))

    return Rule(name, breach, prefix_safe=False)
