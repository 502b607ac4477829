"""The pieces of a step in their order: which of them are checked, and what a check tells of damage that it finds.

Pure; `shadowgraph.tracking.steps` learns the orders, and changes them in the thread that replays them. Other threads
only read, or set `Order.full_until`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from shadowgraph.model.graphs import Graph
from shadowgraph.model.phases import Phase
from shadowgraph.model.steps import StepFacts

PATIENCE = 4  # observed steps in a row before all pieces are checked again; a window of observed replays is shorter
_SWITCHES = 16  # of one piece that are remembered
_LOOKED = 64  # replays of one piece with a check by launches that are


class PieceReplay(NamedTuple):
    """One replay of a piece."""

    graph: Graph
    replay: int


class Date(NamedTuple):
    """What the check at one end of a piece's replay tells of damage that it finds.

    Attributes
    ----------
    phase
        None where it is that of any check before a replay: the step's preparation.
    pieces
        In phase `Phase.STEP` the piece with the last check before, and those after it that may have done it.
    """

    phase: Phase | None
    step: StepFacts
    pieces: tuple[PieceReplay, ...] = ()


class Piece:
    """A graph's place in an order.

    Attributes
    ----------
    place
        From 0.
    following
        The next piece; None behind the last.
    lag
        Replays of this graph minus those of the first piece, in each step.
    since, until
        The replays after `since` and up to `until` were in steps.
    checked, wanted
        Whether its check nodes are enabled now, and whether they are to be.
    """

    def __init__(self, graph: Graph, order: Order, place: int, since: int, lag: int) -> None:
        self.graph, self.order, self.place, self.since, self.lag = graph, order, place, since, lag
        self.following: Piece | None = None
        self.until: int | None = None
        self.checked = self.wanted = True
        self._switches: deque[tuple[int, bool]] = deque(maxlen=_SWITCHES)
        self._looked: deque[int] = deque(maxlen=_LOOKED)
        self._passed = self._from = 0  # replays with disabled nodes; the first one since they were disabled last

    def switched(self, on: bool, replay: int) -> None:
        """The check nodes are enabled, or disabled, from a replay on."""
        if on and self._from:
            self._passed, self._from = self._passed + replay - self._from, 0
        elif not on:
            self._from = replay
        self.checked = on
        self._switches.append((replay, on))

    def count_from_here(self) -> None:
        """Replays so far do not count any more."""
        self._passed, self._from = 0, self.graph.replays + 1 if self._from else 0

    def looked(self) -> None:
        """Launches have checked before and after the latest replay."""
        self._looked.append(self.graph.replays)

    def was_checked(self, step: int) -> bool:
        """Whether its replay in a step was checked at its begin and end."""
        replay = step + self.lag
        switches = self._switches.copy()  # another thread may append
        state = next((on for since, on in reversed(switches) if since <= replay), True)
        return state or replay in self._looked.copy()

    @property
    def unchecked(self) -> int:
        """Replays with disabled nodes."""
        return self._passed + (self.graph.replays + 1 - self._from if self._from else 0)


class Order:
    """Pieces in the order of their replays.

    Attributes
    ----------
    runner
        The thread that replays them.
    full_until
        The last step in which all pieces are checked for damage that was found.
    thin
        Whether only the first and the last piece are checked.
    ended
        Whether it is in force no more.
    """

    def __init__(self, graphs: Sequence[Graph], runner: object, begun: Graph) -> None:
        self.runner, self.full_until, self.thin, self.ended, self._loud = runner, 0, False, False, 0
        done = {graph: graph.replays - (graph is begun) for graph in graphs}
        first = done[graphs[0]]
        self.pieces = [Piece(graph, self, at, done[graph], done[graph] - first) for at, graph in enumerate(graphs)]
        for piece, following in zip(self.pieces, self.pieces[1:], strict=False):
            piece.following = following

    @property
    def first(self) -> Graph:
        return self.pieces[0].graph

    def begin(self, observed: bool) -> bool:
        """A step begins, whose launches are observed or not: decide which pieces are checked in it. Returns whether
        that is because of damage."""
        self._loud = self._loud + 1 if observed else 0
        quiet = self._loud == 0 or (self.thin and self._loud < PATIENCE)
        damaged = self.first.replays <= self.full_until
        thin = quiet and not damaged
        if thin is not self.thin:
            self.thin = thin
            for piece in self.pieces[1:-1]:
                piece.wanted = not thin
        return damaged

    def end(self, begun: Graph | None) -> None:
        """It is in force no more, and a replay of a graph that begins is in no step: all pieces are to be checked."""
        self.ended = True
        for piece in self.pieces:
            piece.wanted, piece.until = True, piece.graph.replays - (piece.graph is begun)

    def checked_before(self, place: int, step: int) -> int:
        """Place of the last piece before a place that was checked in a step; the first one always is."""
        return next((at for at in range(place - 1, 0, -1) if self.pieces[at].was_checked(step)), 0)

    def date(self, place: int, step: int, end: bool) -> Date:
        """What a check of a piece tells; behind the last piece (`place`), what the next check tells."""
        if end:
            return Date(Phase.REPLAY, self.facts(step, place, place))
        if not place:
            return Date(None, self.facts(step, 0, 0))
        before = self.checked_before(place, step)
        if before == place - 1:
            return Date(Phase.BETWEEN, self.facts(step, before, place))
        held = tuple(PieceReplay(each.graph, step + each.lag) for each in self.pieces[before:place])
        return Date(Phase.STEP, self.facts(step, before + 1, place - 1), held)

    def facts(self, step: int, since: int, until: int) -> StepFacts:
        names = self.first.name, self.pieces[-1].graph.name
        return StepFacts(step, *names, len(self.pieces), since + 1, until + 1)
