"""Which eager allocations get a fence: `Settings.fence`. `EagerMode` asks, and allocates.

In the allocating thread, inside the dispatch mode; no lock.
"""

from __future__ import annotations

from collections.abc import Callable

from shadowgraph.graphs.dispatch.eager_guard import allocates
from shadowgraph.graphs.dispatch.places import Places
from shadowgraph.graphs.dispatch.schemas import Schema
from shadowgraph.model.buffers import Buffer


class Fencing:
    """Selects allocations.

    Parameters
    ----------
    where
        As for `Places`.
    laid
        Called with each buffer that has got a fence.
    """

    def __init__(self, where: str, laid: Callable[[Buffer], None]) -> None:
        self._places, self.laid = Places(where), laid

    def wants(self, schema: Schema) -> bool:
        """Whether the results of an operator, called from here, are to have fences."""
        return allocates(schema) and self.here()

    def here(self) -> bool:
        """Whether what is allocated here is to have a fence."""
        return self._places.on_stack()
