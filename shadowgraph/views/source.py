"""Data source of views and plots: a dump, or a snapshot of a live debugger in the form of a dump.
The snapshot is taken in the caller's thread; `shadowgraph.dumps.collecting` takes the monitor's lock for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from msgspec import structs

from shadowgraph.common.errors import UsageError
from shadowgraph.common.words import plural
from shadowgraph.dumps.completing import manifest_of
from shadowgraph.dumps.naming import BufferNames, require_known
from shadowgraph.dumps.reader import Dump
from shadowgraph.dumps.schema import PayloadRow
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Finding
from shadowgraph.model.graphs import Graph
from shadowgraph.views.dumped_map import found_buffers
from shadowgraph.views.memory_map import MemoryMap, damage_of

if TYPE_CHECKING:
    from shadowgraph.dumps.collecting import Collected
    from shadowgraph.dumps.live import LiveDebugger

_MOST = 64 << 20  # bytes of memory that a snapshot copies at most


def findings_here(here: int, others: int, where: str) -> str:
    """Counts of the findings that a picture marks and of the others: ``no finding on rows, 2 other findings``."""
    marked = plural(here, "finding") if here else f"no finding on {where}"
    return f"{marked}, {plural(others, 'other finding')}" if others else marked


class Snapshot(Dump):
    """A dump without a file, of a live debugger. Owns its data: holds no reference to the debugger or its tensors."""

    def __init__(self, collected: Collected) -> None:
        self.path = Path("live")
        self.manifest = manifest_of(collected, [0] * len(collected.bytes))
        self._data = {f"payload.{index}": each.data for index, each in enumerate(collected.bytes)}

    def payload(self, row: PayloadRow) -> bytes:
        return bytes(self._data[row.tensor])

    def close(self) -> None:
        """Does nothing: no file is open."""


def snapshot_of(debugger: LiveDebugger, contents: bool) -> Snapshot:
    """The debugger's current facts, with names of variables. Runs no check; copies memory, as a dump does, only with
    `contents`."""
    from shadowgraph.dumps.collecting import collect  # with torch, which plots of a dump do without

    debugger.monitor.name_search.name_rest(debugger.buffers)
    collected = collect(debugger.monitor, debugger.facts, "a picture", _MOST, redact=not contents)
    return Snapshot(replace(collected, manifest=structs.replace(collected.manifest, redacted=False)))


@dataclass(frozen=True, slots=True)
class Source:
    """A dump and the names of its buffers."""

    dump: Dump
    book: BufferNames

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings, and the parts of overruns: plots mark damage."""
        return self.dump.manifest.facts.damage

    def finding(self, number: int) -> Finding:
        """The finding or note with an id.

        Raises
        ------
        UsageError
            When there is none.
        """
        facts = self.dump.manifest.facts
        known = {finding.id: finding for finding in (*facts.notes, *facts.parts, *facts.findings)}
        if number not in known:
            ids = ", ".join(f"#{each}" for each in sorted(known)[:20])
            raise UsageError(f"no finding #{number}{f'; there are: {ids}' if ids else ': there are none'}")
        return known[number]

    def graph(self, wanted: str | None) -> Graph:
        """The graph with a name or a number; when None, the graph of the first finding, else the first graph that was
        replayed, else the first graph.

        Raises
        ------
        UsageError
            When there is none.
        """
        from shadowgraph.dumps.naming import nearest_of

        graphs = self.dump.graphs
        if not graphs:
            raise UsageError("no graph was captured while this was watched, so that there are no nodes")
        if wanted is None:
            blamed = [finding.graph for finding in self.findings]
            known = [graph for name in blamed for graph in graphs if graph.name == name]
            return next((graph for graph in known or graphs if graph.replays), (*known, *graphs)[0])
        for graph in graphs:
            if wanted in (graph.name, str(graph.serial)):
                return graph
        raise UsageError(f"no graph is called {wanted!r}{nearest_of(wanted, [graph.name for graph in graphs])}")

    def buffers(self, wanted: str) -> list[Buffer]:
        """The buffers that match a name or an address.

        Raises
        ------
        UnknownBufferError, UsageError
            When no buffer matches; when the name is the end of several names.
        """
        found = self.book.buffers(wanted)
        if not found:
            require_known(wanted, [self.book])
        return found

    def memory(self, serials: Iterable[int], findings: Iterable[Finding]) -> tuple[MemoryMap, dict[int, int]]:
        """Buffers by address with damage, and their indices in the map by serial."""
        about = list(findings)
        found = found_buffers(self.dump, self.book, {*serials, *(finding.buffer.serial for finding in about)})
        about = [finding for finding in about if finding.buffer.serial in found]
        order = sorted(found, key=lambda serial: (found[serial].start, serial))
        index = {serial: place for place, serial in enumerate(order)}
        damages = tuple(damage_of(finding, index[finding.buffer.serial]) for finding in about)
        return MemoryMap(tuple(found[serial] for serial in order), damages), index


Watched: TypeAlias = "LiveDebugger | Dump | Source"


def source_of(watched: Watched, contents: bool = False) -> Source:
    """The source for a debugger or an open dump.

    Parameters
    ----------
    contents
        For a debugger: read memory too.
    """
    if isinstance(watched, Source):
        return watched
    if isinstance(watched, Dump):
        return Source(watched, BufferNames(watched))
    taken = snapshot_of(watched, contents)
    return Source(taken, BufferNames(taken))
