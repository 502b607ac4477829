"""Searches variable names for buffers without an owner name: for those of a finding, and, early enough for the rules
that follow from names, for inputs of new graphs.

Called by `FindingPipeline`, `GraphRegistry` and `CrashRecorder`, in the thread of an event, and by `Debugger`, at the
end of a `guard` block, before a dump or a map, and for `Debugger.name_variables`; has no lock of its own. Does nothing
until `enable`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shadowgraph.checks.base import Detection
from shadowgraph.checks.kinds import kind_of
from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.model.buffers import Buffer, Ledger, Role
from shadowgraph.model.graphs import Graph
from shadowgraph.tracking.aliases import NameBook
from shadowgraph.tracking.pool_watch import borrowers
from shadowgraph.tracking.variable_names import VariableNames

_SECONDS = 0.1  # for the parameters of a new graph, which are many, and deep in a model
_OF_A_BLOCK = 0.05
_MOST_OF_A_BLOCK = 256  # buffers; a block that allocates more names none early


class NameSearch:
    """Names buffers after the program's variables.

    Parameters
    ----------
    names
        Says which buffers have an owner name, and receives the variables that were found.
    ledger
        The buffers.
    """

    def __init__(self, names: NameBook, ledger: Ledger) -> None:
        self._names, self._ledger = names, ledger
        self._variables: VariableNames | None = None

    def enable(self) -> None:
        """Search from now on."""
        if self._variables is None:
            self._variables = VariableNames(self._names)

    def name(self, buffer: Buffer) -> None:
        """Search a name for the buffer of a finding; a freed buffer has those of storages that do not own it."""
        exists = buffer.alive or borrowers.lead_to(buffer.serial)
        if self._variables is not None and exists and self._is_unnamed(buffer):
            with error_barrier("search for a name"):
                self._variables.find(buffer)

    def name_all(self, draft: Detection) -> None:
        """Search names for all buffers of a finding, and for the buffers next to its own."""
        for buffer in (draft.buffer, *kind_of(draft.code).further_buffers(draft)):
            self.name(buffer)
        self.name_rest([b for b in self._ledger.neighbours(draft.buffer) if b is not None])

    def name_rest(self, buffers: Iterable[Buffer]) -> None:
        """Search names for all live buffers without an owner name, as far as the time limit allows."""
        if self._variables is not None:
            with error_barrier("search for names"):
                self._variables.find_new([b for b in buffers if b.alive and self._is_unnamed(b)])

    def note_block(self, before: int) -> None:
        """Note the variables that lead to what a block allocated, after a serial of the ledger: names for findings
        about buffers that are freed by then, as a function's locals are once it has returned."""
        if self._variables is not None:
            with error_barrier("search for names"):
                new = [buffer for buffer in self._ledger.after(before) if self._is_unnamed(buffer)]
                if len(new) <= _MOST_OF_A_BLOCK:
                    self._variables.note_block(new, _OF_A_BLOCK)

    def name_indices(self, graphs: Iterable[Graph]) -> None:
        """Search names for one-dimensional integer inputs of new graphs, and for all outside their pools, parameters
        among them: once a buffer is freed, its name cannot be found."""
        if self._variables is None:
            return
        with error_barrier("search for names"):
            self._variables.find_new(self._unnamed(_index_inputs(graphs, self._ledger)))
            self._variables.note_former(self._unnamed(_inputs(graphs, Role.STATIC)))
            self._variables.note_former(self._unnamed(_inputs(graphs, Role.FOREIGN)), _SECONDS)

    def _is_unnamed(self, buffer: Buffer) -> bool:
        return not self._names.owners_of(buffer.range, buffer.serial)

    def _unnamed(self, buffers: Iterable[Buffer]) -> Iterator[Buffer]:
        """Buffers without an owner name, each looked up when the iterator reaches it."""
        return (buffer for buffer in buffers if self._is_unnamed(buffer))


def _index_inputs(graphs: Iterable[Graph], ledger: Ledger) -> list[Buffer]:
    """One-dimensional integer buffers that graphs use, outside their pools."""
    spans = [span for graph in graphs for span in graph.spans]
    used = {b.serial: b for span in spans for b in ledger.overlapping(span.start, span.stop)}
    flat = [b for b in used.values() if len(b.shape) == 1 and b.dtype.startswith("int")]
    return [buffer for buffer in flat if buffer.role is not Role.POOL]


def _inputs(graphs: Iterable[Graph], role: Role) -> list[Buffer]:
    return [b for graph in graphs for b in graph.inputs.values() if b.role is role and b.alive]
