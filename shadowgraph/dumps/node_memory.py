"""Which tensor a node of a graph was given: the one that had the memory at the node's place in its capture.

A graph's pool reuses memory inside a capture, and the program reuses it afterwards, so that the newest buffer at an
address may be another one than the node's. Used by node lists, write maps and pages of a dump; pure data, no lock.
"""

from __future__ import annotations

import os

from shadowgraph.dumps.naming import BufferNames
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.graphs import Allocation, Graph
from shadowgraph.model.launches import RESULT
from shadowgraph.model.ranges import RangeIndex


class NodeMemory:
    """Buffers and names by the number of a launch in a graph and an address.

    Parameters
    ----------
    book
        The names of the dump's buffers; they decide where the graph's allocations are not known.
    """

    def __init__(self, book: BufferNames, graph: Graph) -> None:
        self._book, self._graph = book, graph
        made = [each for each in graph.allocations if each.where.nbytes]
        self._own = RangeIndex((each.where, (order, each)) for order, each in enumerate(made))
        self._serials = {each.buffer.serial for each in made if each.buffer is not None}
        self._began = graph.began or min(self._serials, default=graph.ended)  # of a host graph it is not known

    def at(self, launch: int, address: int) -> tuple[str, int] | None:
        """Name of the tensor that a launch was given at an address, and the offset in bytes; None where there is none.

        Parameters
        ----------
        launch
            Its place in the graph's `nodes`.
        """
        made = self._allocation(launch, address)
        if made is not None and made.buffer is None:
            return self._name(made), address - made.where.start
        buffer = self.buffer_at(launch, address)
        return (self._book.name(buffer), address - buffer.start) if buffer is not None else None

    def buffer_at(self, launch: int, address: int) -> Buffer | None:
        """The buffer that a launch was given at an address: of its own graph's allocations the last one until then,
        else one that lived during its capture, else whatever holds the address."""
        made = self._allocation(launch, address)
        if made is not None and made.buffer is not None:
            return made.buffer
        if made is None and self._graph.ended:
            during = self._book.buffer_during(address, self._began, self._graph.ended, self._serials)
            if during is not None:
                return during
        return self._book.buffer_at(address)

    def _allocation(self, launch: int, address: int) -> Allocation | None:
        there = sorted((pair for _, pair in self._own.overlapping(address, address + 1)), key=lambda pair: pair[0])
        return next((made for _, made in reversed(there) if made.before <= launch), None)

    def _name(self, made: Allocation) -> str:
        """The name of an allocation without a buffer of its own: the block's, of its last tenant, if the program still
        names that; else its form, and the line that made it."""
        there = max((pair for _, pair in self._own.overlapping(made.where.start, made.where.stop)), key=lambda p: p[0])
        holder = self._book.buffer_at(made.where.start)
        if there[1] is made and holder is not None and holder.alive and self._book.owners(holder):
            return self._book.name(holder)
        form = f"{made.dtype}{list(made.shape)}"
        launch = self._graph.nodes[made.before].launch if made.before < len(self._graph.nodes) else None
        results = [p.view.storage_address for p in launch.pointers if p.argument.startswith(RESULT)] if launch else []
        if launch is None or not launch.stack or made.where.start not in results:
            return f"{form} at {made.where.start:#x}"
        frame = launch.stack[0]
        return f"{form} from {os.path.basename(frame.file)}:{frame.line}"
