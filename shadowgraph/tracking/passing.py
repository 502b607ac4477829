"""Whether replays pass unobserved, with what prepares them: in the steady state most do.

Hooks ask here before anything else, so that what passes costs a look at one attribute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from time import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from shadowgraph.model.graphs import Graph


class Passed(NamedTuple):
    """A replay that passed, and when it was over."""

    graph: Graph
    replay: int
    time: float


on = False
_most = 0
_known: Container[int] = frozenset()
_due: Callable[[], bool] = bool
_passed: deque[tuple[Graph, int, float]] = deque()  # fields of `Passed`; never another one: a thread may append to it


def let(most: int, known: Container[int] = frozenset(), due: Callable[[], bool] = bool) -> None:
    """Let replays and launches pass from here on, in all threads; or none, for 0.

    Parameters
    ----------
    most
        How many replays pass before one is reported.
    known
        Serials of graphs that pass; a replay of another is reported at once.
    due
        Whether evidence of a check node has arrived, which is reported at once.
    """
    global on, _most, _known, _due
    _most, _known, _due, on = most, known, due, most > 0


def hasten() -> None:
    """Something was found outside of replays: the next one that passes is reported at once."""
    global _most
    _most = 0


def ended(graph: Graph) -> bool:
    """Note a replay that passed; returns whether it is to be reported."""
    _passed.append((graph, graph.replays, time()))
    return len(_passed) >= _most or _due() or graph.serial not in _known


def pending() -> tuple[Passed, ...]:
    """What `taken` would give, left where it is."""
    return tuple(map(Passed._make, _passed.copy()))  # copied at once: other threads go on


def taken() -> list[Passed]:
    """The replays that passed since the last time, oldest first. They count towards the most that may pass."""
    global _most
    found: list[Passed] = []
    while _passed:
        try:
            found.append(Passed(*_passed.popleft()))
        except IndexError:  # another thread was faster
            break
    _most -= len(found)
    return found
