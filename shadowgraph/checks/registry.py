"""The registry of all checks, in the order in which the monitor calls them."""

from __future__ import annotations

from shadowgraph.checks.base import Check, Context
from shadowgraph.checks.dangling import Dangling
from shadowgraph.checks.foreign_writes import ForeignWrites
from shadowgraph.checks.given_views import GivenViews
from shadowgraph.checks.indices import Indices
from shadowgraph.checks.invariants import Invariants
from shadowgraph.checks.mutation import InGraphMutation
from shadowgraph.checks.out_of_bounds import OutOfBounds
from shadowgraph.checks.races import Races
from shadowgraph.checks.rebound import ReboundInputs
from shadowgraph.checks.stale_rows import StaleRows


class Checks:
    """The checks of one debugger: each under its own name for the public interface, and all of them in order."""

    def __init__(self, context: Context) -> None:
        self.out_of_bounds = OutOfBounds(context)
        self.mutation = InGraphMutation(context)
        self.invariants = Invariants(context)
        self.indices = Indices(context)
        self.dangling = Dangling(context)
        self.foreign_writes = ForeignWrites(context)
        self.given_views = GivenViews(context)
        self.races = Races(context)
        self.stale_rows = StaleRows(context)
        self.rebound = ReboundInputs(context)

    @property
    def all(self) -> tuple[Check, ...]:
        return (self.out_of_bounds, self.mutation, self.invariants, self.dangling, self.stale_rows, self.rebound)

    @property
    def needs_every_write(self) -> tuple[Check, ...]:
        """The checks that must see every write of the host; with any write missing their findings would be wrong."""
        return (self.mutation, self.stale_rows, self.rebound)

    def invalidate_writers(self) -> None:
        """After unseen writes."""
        self.mutation.invalidate_writers()
        self.invariants.invalidate_writers()
        self.stale_rows.invalidate_writers()
        self.rebound.invalidate_writers()
