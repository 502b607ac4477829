"""Data of a write map: the nodes of a graph in order, the bytes that each writes, and the culprits of findings.
Drawn by `shadowgraph.render.plots.write_map`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial

from shadowgraph.common.errors import NothingToDrawError
from shadowgraph.common.kernel_names import brief
from shadowgraph.common.words import plural
from shadowgraph.dumps.node_memory import NodeMemory
from shadowgraph.dumps.schema import WriteSetRow
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.device_nodes import DeviceNode
from shadowgraph.model.findings import Finding, Status
from shadowgraph.model.graphs import Graph
from shadowgraph.model.launches import Access, Launch, Pointer
from shadowgraph.views.memory_map import MemoryMap
from shadowgraph.views.node_list import nodes_by_launch, nodes_of
from shadowgraph.views.source import Source, Watched, findings_here, source_of

_NAME = 60  # columns for a kernel's name
_NAMED = 3  # graphs that an error names


class Sure(StrEnum):
    """Evidence that a node writes some bytes, the strongest first."""

    SEEN = "seen"  # recorded stores, changes in a probed replay, or the range of a copy or memset
    SIGNATURE = "signature"  # the operator's schema writes this argument
    GIVEN = "given"  # the node holds the address and may write from there on


@dataclass(frozen=True, slots=True)
class WriteNode:
    """A node; `place` is its number, ``"12.3"`` inside of child graph 12."""

    place: str
    name: str
    where: str


@dataclass(frozen=True, slots=True)
class NodeWrite:
    """Bytes ``[start, stop)`` of a buffer that a node writes; `node` and `buffer` are indices into a `WriteMap`."""

    node: int
    buffer: int
    start: int
    stop: int
    sure: Sure


@dataclass(frozen=True, slots=True)
class WriteMark:
    """A finding on one of the buffers.

    Attributes
    ----------
    damage
        Its index in `WriteMap.memory.damages`.
    nodes
        The culprit, as indices into `WriteMap.nodes`; empty for eager code.
    sure
        The culprit is confirmed.
    """

    damage: int
    nodes: tuple[int, ...]
    sure: bool


@dataclass(frozen=True, slots=True)
class WriteMap:
    """A graph's nodes against the memory that they write.

    Attributes
    ----------
    memory
        The buffers that some node may write and the buffers of `marks`, with the damage that concerns this graph.
    unread
        Reason why the executable graph's nodes are unknown; `nodes` are its launches then.
    replay
        The replay that was probed node by node; None without one.
    untracked
        Number of words that point to untracked memory.
    others
        Number of findings that are about other graphs, or about buffers that are not shown.
    """

    graph: str
    nodes: tuple[WriteNode, ...]
    memory: MemoryMap
    writes: tuple[NodeWrite, ...]
    marks: tuple[WriteMark, ...]
    unread: str = ""
    replay: int | None = None
    untracked: int = 0
    others: int = 0

    @property
    def counted(self) -> str:
        """Counts of findings in words."""
        return findings_here(len(self.marks), self.others, self.graph)

    @classmethod
    def of(
        cls, watched: Watched, graph: str | None = None, *, finding: int | None = None, buffer: str | None = None
    ) -> WriteMap:
        """The writes of a graph of a debugger or of an open dump. Owned data.

        Parameters
        ----------
        graph
            Name or number; by default the graph of `finding`, else of the first finding, else the first graph that was
            replayed, else the first graph.
        finding
            Mark this finding alone.
        buffer
            Keep this buffer alone: an owner name, the end of an owner name, or an address.

        Raises
        ------
        UsageError
            For a graph or a finding that does not exist.
        UnknownBufferError
            For an unknown buffer.
        NothingToDrawError
            When no write of the graph's nodes is known, and no finding is about them.
        """
        source = source_of(watched)
        only = source.finding(finding) if finding is not None else None
        if graph is None and only is not None and only.graph is not None:
            graph = only.graph
        kept = None if buffer is None else {each.serial for each in source.buffers(buffer)}
        return _Maker(source, source.graph(graph), only, kept).made()


@dataclass(frozen=True, slots=True)
class _Found:
    """A write whose buffer has no index yet."""

    node: int
    buffer: int  # serial
    start: int
    stop: int
    sure: Sure


class _Maker:
    """Builds a write map."""

    def __init__(self, source: Source, graph: Graph, only: Finding | None, kept: set[int] | None) -> None:
        self.source, self.graph, self.only, self.kept = source, graph, only, kept
        self.nodes: list[WriteNode] = []
        self.top: dict[int, int] = {}  # indices of the graph's own nodes by number
        self.untracked = 0
        self._memory = NodeMemory(source.book, graph)
        dump = source.dump
        self._seen: dict[int, list[_Found]] = {}  # by the node's number
        self._buffers = {buffer.serial: buffer for buffer in dump.buffers}
        self._brief = cache(partial(brief, width=_NAME))
        self._stores = {row.node: row.ranges for row in dump.manifest.stores if row.graph == graph.serial}

    def made(self) -> WriteMap:
        found = list(self._writes(self.graph.device_nodes, None))
        sets = self._write_sets()
        if sets is not None:
            found += self._changed(sets)
        if not found:
            self._require_findings()
        found = [each for each in found if self._keeps(each.buffer)]
        about = [finding for finding in self._findings() if self._keeps(finding.buffer.serial)]
        memory, index = self.source.memory({*(each.buffer for each in found), *(self.kept or ())}, about)
        return WriteMap(
            self.graph.name,
            tuple(self.nodes),
            memory,
            tuple(NodeWrite(each.node, index[each.buffer], each.start, each.stop, each.sure) for each in found),
            tuple(self._marks(memory, about)),
            self.graph.unread,
            sets.replay if sets is not None else None,
            self.untracked,
            sum(each.id not in {finding.id for finding in about} for each in self.source.dump.manifest.facts.findings),
        )

    def _require_findings(self) -> None:
        """Refuse a picture without any buffer."""
        if next(self._findings(), None) is not None:
            return
        ran = "" if self.graph.replays else ", which was never replayed"
        why = f" ({self.graph.unread})" if self.graph.unread else ""
        nodes = plural(len(self.nodes), "node")
        others = [graph.name for graph in self.source.dump.graphs if graph.replays and graph is not self.graph]
        replayed = f"; replayed were {', '.join(others[:_NAMED])}: name one with --graph" if others else ""
        raise NothingToDrawError(f"no write is known of {self.graph.name}{ran}, with {nodes}{why}{replayed}")

    def _keeps(self, serial: int) -> bool:
        return self.kept is None or serial in self.kept

    def _write_sets(self) -> WriteSetRow | None:
        rows = self.source.dump.manifest.write_sets
        return next((row for row in rows if row.graph == self.graph.serial), None)

    def _changed(self, sets: WriteSetRow) -> Iterator[_Found]:
        """The bytes of known buffers that a probed replay changed."""
        for row in sets.written:
            home = self._buffers.get(row.buffer)
            if home is not None and row.node in self.top:
                start, stop = home.start + row.first, home.start + row.last + 1
                yield _Found(self.top[row.node], row.buffer, start, stop, Sure.SEEN)

    def _findings(self) -> Iterator[Finding]:
        for finding in (self.only,) if self.only is not None else self.source.findings:
            if finding.graph == self.graph.name:
                yield finding

    def _marks(self, memory: MemoryMap, about: Iterable[Finding]) -> Iterator[WriteMark]:
        place = {damage.finding: index for index, damage in enumerate(memory.damages)}
        launched = nodes_by_launch(self.graph)
        for finding in about:
            if finding.id in place:
                nodes = nodes_of(self.graph, finding.culprit, launched)
                known = tuple(self.top[node] for node in nodes if node in self.top)
                yield WriteMark(place[finding.id], known, finding.culprit.status is Status.CONFIRMED)

    def _writes(self, nodes: Iterable[DeviceNode], outer: str | None) -> Iterator[_Found]:
        for node in nodes:
            place = str(node.index) if outer is None else f"{outer}.{node.index}"
            launch = self.graph.launch_of(node)
            if outer is None:
                self.top[node.index] = len(self.nodes)
            at = len(self.nodes)
            self.nodes.append(WriteNode(place, self._brief(node.name), _where(node, launch)))
            if outer is None and self.graph.read_nodes is None and node.index in self._stores:
                for start, stop in self._stores[node.index]:
                    yield from self._within(at, node, start, stop, Sure.SEEN)
            else:
                yield from self._guessed(at, node, launch)
            yield from self._writes(node.inner, place)

    def _guessed(self, at: int, node: DeviceNode, launch: Launch | None) -> Iterator[_Found]:
        """Ranges of copies and memsets; then pointer arguments of a kernel, unless they are known to be read only."""
        for where in node.writes:
            yield from self._within(at, node, where.start, where.stop, Sure.SEEN)
        if node.writes:
            return
        given = _given(launch)
        for word in node.words:
            known = given.get(word.address)
            if known is not None and known.access is Access.READ:
                continue
            if known is not None and known.access is not Access.UNKNOWN:
                yield from self._within(at, node, known.view.start, known.view.stop, Sure.SIGNATURE)
                continue
            buffer = self._holder(node, word.address)
            if buffer is None:
                self.untracked += 1
            else:
                yield _Found(at, buffer.serial, word.address, buffer.stop, Sure.GIVEN)

    def _within(self, at: int, node: DeviceNode, start: int, stop: int, sure: Sure) -> Iterator[_Found]:
        """A write to the smallest buffer that holds it, else to all buffers that it hits, guards included."""
        holder = self._holder(node, start)
        hit = self.source.book.live_in(start, stop) if holder is None or stop > holder.stop else [holder]
        inner = [b for b in hit if b.start <= start and stop <= b.stop]
        for buffer in [min(inner, key=lambda b: b.nbytes)] if inner else hit:
            low, high = buffer.start - buffer.head_guard, buffer.guard_start + buffer.tail_guard
            if start < high and low < stop:
                yield _Found(at, buffer.serial, max(start, low), min(stop, high), sure)

    def _holder(self, node: DeviceNode, address: int) -> Buffer | None:
        """The buffer that a node was given at an address; without its launch the one freed last."""
        if node.launch is not None:
            return self._memory.buffer_at(node.launch, address)
        return self.source.book.buffer_at(address)


def _where(node: DeviceNode, launch: Launch | None) -> str:
    stack = launch.stack if launch is not None else node.stack
    return f"{os.path.basename(stack[0].file)}:{stack[0].line}" if stack else ""


def _given(launch: Launch | None) -> dict[int, Pointer]:
    """What a launch was given, by address: of several pointers to one place one that it may write through."""
    given: dict[int, Pointer] = {}
    for pointer in launch.pointers if launch is not None else ():
        if pointer.access is not Access.READ or pointer.view.start not in given:
            given[pointer.view.start] = pointer
    return given
