"""What earlier steps tell of writes that were not declared: which graphs read what a line wrote, and in which order
writes and replays came.

Used by `LostPreparations`, under the debugger's lock.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from shadowgraph.model.launches import Launch
from shadowgraph.model.stacks import Stack

_DEPTH = 8  # calling lines that tell writes of one line apart
_SITES = 4096
_BY_SOURCE = 2  # sightings where only the address of the source tells two writes apart


@dataclass(slots=True, eq=False)
class Fed:
    """The graphs that have read what was written from one place, with the number of such replays.

    Attributes
    ----------
    least
        How many replays are needed to conclude something.
    """

    least: int = 1
    graphs: dict[int, int] = field(default_factory=dict)

    @property
    def only(self) -> int | None:
        """The graph that alone has read it, often enough."""
        if len(self.graphs) != 1:
            return None
        ((serial, count),) = self.graphs.items()
        return serial if count >= self.least else None


class Sites:
    """Places of writes: an operator or kernel with its line, alone and with more and more of the lines that called it;
    last, with the addresses of what it read."""

    def __init__(self) -> None:
        self._by_stack: dict[tuple[str, Stack], tuple[Fed, ...]] = {}
        self._by_prefix: dict[tuple[str, Stack], Fed] = {}
        self._by_source: dict[tuple[int, tuple[int, ...]], Fed] = {}

    def of(self, launch: Launch) -> tuple[Fed, ...]:
        """The places of a launch."""
        key = launch.name, launch.stack
        known = self._by_stack.get(key)
        if known is None:
            if len(self._by_stack) >= _SITES:
                self._by_stack.clear()
                self._by_prefix.clear()
                self._by_source.clear()  # its keys are of objects that end here
            depths = range(1, min(len(launch.stack), _DEPTH) + 1)
            prefixes = [(launch.name, launch.stack[:depth]) for depth in depths]
            known = tuple(self._by_prefix.setdefault(prefix, Fed()) for prefix in prefixes)
            self._by_stack[key] = known
        sources = tuple(p.view.start for p in launch.pointers if not p.may_write)
        if not sources or not known:
            return known
        if len(self._by_source) >= _SITES:
            self._by_source.clear()
        fed = self._by_source.setdefault((id(known[-1]), sources), Fed(_BY_SOURCE))
        return (*known, fed)


def told_apart(one: tuple[Fed, ...], other: tuple[Fed, ...]) -> tuple[int, int] | None:
    """The graph that alone read the writes of each of two places, told apart by as few calling lines as possible.

    None where that is the same graph, or where several graphs read them.
    """
    for mine, its in zip(one, other, strict=False):
        first, second = mine.only, its.only
        if mine is not its and first is not None and second is not None:
            return (first, second) if first != second else None
    return None


@dataclass(slots=True, eq=False)
class Turns:
    """How replays of graphs shared writes.

    Attributes
    ----------
    apart
        By two graphs: how often the second one's replay found a write of its own, behind one that the first had read.
    together
        Pairs of graphs that one write was meant for: both read it, and it hid no other.
    own, again
        By graph: replays with writes of their own, and replays without any.
    """

    apart: Counter[tuple[int, int]] = field(default_factory=Counter)
    together: set[frozenset[int]] = field(default_factory=set)
    own: Counter[int] = field(default_factory=Counter)
    again: Counter[int] = field(default_factory=Counter)

    def forget(self, serial: int) -> None:
        """A graph is gone."""
        for pair in [pair for pair in self.apart if serial in pair]:
            del self.apart[pair]
        del self.own[serial], self.again[serial]
        self.together = {pair for pair in self.together if serial not in pair}
