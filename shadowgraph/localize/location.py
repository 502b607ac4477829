"""What `Debugger.locate` returns."""

from __future__ import annotations

from shadowgraph.model.probes import Outcome
from shadowgraph.model.write_sets import WriteSets


class Location:
    """A closer look that was asked for; filled in when the replays that it is about have run. Holds data only.

    Attributes
    ----------
    by_graph
        Write sets by the graphs' names.
    outcomes
        What the probed replays showed, by the graphs' names; an outcome may say why there was no look.
    """

    def __init__(self, graphs: tuple[int, ...]) -> None:
        self.graphs = graphs
        self.by_graph: dict[str, WriteSets] = {}
        self.outcomes: dict[str, Outcome] = {}

    @property
    def done(self) -> bool:
        """Whether every graph that it is about has replayed since, or is gone."""
        return len(self.outcomes) >= len(self.graphs)

    @property
    def outcome(self) -> Outcome | None:
        """What the probed replay showed, the latest where there are several graphs; None before it."""
        return next(reversed(self.outcomes.values()), None)

    @property
    def write_sets(self) -> WriteSets | None:
        """What each node changed, of the latest probed replay where there are several graphs; None before it."""
        return next(reversed(self.by_graph.values()), None)

    def deliver(self, graph: str, outcome: Outcome, sets: WriteSets | None) -> None:
        """A graph's probed replay is over."""
        self.outcomes[graph] = outcome
        if sets is not None:
            self.by_graph[graph] = sets

    def __repr__(self) -> str:
        return f"<Location: {len(self.outcomes)} of {len(self.graphs)} graphs looked at>"
