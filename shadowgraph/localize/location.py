"""The result of `Debugger.locate`, filled in by the locator when the replays have run."""

from __future__ import annotations

from shadowgraph.model.probes import Outcome
from shadowgraph.model.write_sets import WriteSets


class Location:
    """The result of a requested probe; filled in when the probed replays have run. Holds data only.

    Attributes
    ----------
    by_graph
        Write sets by the graphs' names.
    outcomes
        Outcomes of the probed replays, by the graphs' names; an outcome may say why a graph was not probed.
    """

    def __init__(self, graphs: tuple[int, ...]) -> None:
        self.graphs = graphs
        self.by_graph: dict[str, WriteSets] = {}
        self.outcomes: dict[str, Outcome] = {}

    @property
    def done(self) -> bool:
        """Whether every requested graph has replayed since, or is gone."""
        return len(self.outcomes) >= len(self.graphs)

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the probed replay, the latest where there are several graphs; None before it."""
        return next(reversed(self.outcomes.values()), None)

    @property
    def write_sets(self) -> WriteSets | None:
        """The bytes that each node changed, from the latest probed replay where there are several graphs; None before
        it."""
        return next(reversed(self.by_graph.values()), None)

    def deliver(self, graph: str, outcome: Outcome, sets: WriteSets | None) -> None:
        """A graph's probed replay is over."""
        self.outcomes[graph] = outcome
        if sets is not None:
            self.by_graph[graph] = sets

    def __repr__(self) -> str:
        return f"<Location: {len(self.outcomes)} of {len(self.graphs)} graphs looked at>"
