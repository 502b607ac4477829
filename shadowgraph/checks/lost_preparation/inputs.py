"""The bytes that a graph reads before it writes them, as far as host code can have prepared them.

Computed once for each captured graph, from the arguments of its launches. Used by `LostPreparations`, under the
debugger's lock (see `checks.base`).
"""

from __future__ import annotations

from itertools import groupby

from shadowgraph.graphs.dataflow import reads_itself
from shadowgraph.model.buffers import Role
from shadowgraph.model.graphs import Access, Graph, Node, Pointer
from shadowgraph.model.ranges import ByteRange, RangeIndex, RangeSet
from shadowgraph.tracking.writes import extent


def common(one: RangeSet, other: RangeSet) -> RangeSet:
    """The bytes in both sets."""
    fewer, more = (one, other) if len(one) <= len(other) else (other, one)
    return RangeSet.of(part for each in fewer for part in more.intersection(each))


class GraphInputs:
    """What one graph reads and writes of memory that it did not allocate.

    Attributes
    ----------
    live
        Bytes that it reads before it writes them.
    doubtful
        Those of them that it may write first: a kernel was given a pointer, and its use of it is not seen.
    made
        Bytes that it writes, as far as is known; `perhaps_made` those that a kernel may write.
    since
        When it last began to replay, or was captured, by `Context.clock`.
    """

    def __init__(self, graph: Graph, stores_seen: bool) -> None:
        self.graph, self.since = graph, graph.captured_at
        self.made, self.perhaps_made = RangeSet(), RangeSet()
        self._read, self._perhaps, self._bound = RangeSet(), RangeSet(), RangeSet()
        self._stores_seen = stores_seen
        self._walk()
        self._replayed = not stores_seen  # then all that will be known of kernels is known
        self._settle()

    def replayed(self) -> bool:
        """A whole replay has been seen: from here on, bytes that no kernel was seen to store into count as read.
        Returns whether `live` has changed."""
        if self._replayed:
            return False
        before, self._replayed = self.live.nbytes, True
        self._settle()
        return self.live.nbytes != before

    def stored(self, parts: RangeSet) -> bool:
        """A kernel of a replay was seen to store; returns whether `live` has changed."""
        before = self.made.nbytes
        for part in parts:
            self.made.add(part)
        if self.made.nbytes == before or not self._replayed:
            return False
        before = self.live.nbytes
        self._settle()
        return self.live.nbytes != before

    def bound(self, where: ByteRange) -> None:
        """An adapter says that kernels of the graph were given this memory as an input."""
        self._bound.add(where)
        self._settle()

    def _settle(self) -> None:
        sure = self._read | (self._bound - self.made)
        perhaps = self._perhaps - sure if self._replayed else RangeSet()
        remaining = perhaps - self.made if self._stores_seen else perhaps
        self.live = sure | remaining
        self.doubtful = RangeSet() if self._stores_seen else remaining

    def _walk(self) -> None:
        index = _static(self.graph)
        written, clouded = RangeSet(), RangeSet()
        done: set[tuple[object, bool]] = set()
        for _, pairs in groupby(self.graph.pointers(), key=lambda pair: pair[0].index):
            used = [(n, p) for n, p in pairs if (p.view, True) not in done or p.may_write]
            used = [(n, p) for n, p in used if p.view.nbytes and index.overlapping(p.view.start, p.view.stop)]
            for node, pointer in used:  # a launch reads before it writes
                if pointer.may_read and (pointer.view, True) not in done:
                    if pointer.access is Access.READ:
                        done.add((pointer.view, True))
                    self._reads(node, pointer, written, clouded)
            for node, pointer in used:
                if pointer.may_write:
                    self._writes(node, pointer, written, clouded)

    def _reads(self, node: Node, pointer: Pointer, written: RangeSet, clouded: RangeSet) -> None:
        if pointer.may_write and pointer.access is not Access.UNKNOWN and not reads_itself(node.launch, pointer):
            return  # it stores into some elements, and reads none
        ranges, gaps = extent(pointer.view)
        unsure = gaps or pointer.access is Access.UNKNOWN
        for part in ranges - written:
            if unsure:
                self._perhaps.add(part)
            else:
                for sure in RangeSet.of([part]) - clouded:
                    self._read.add(sure)
                for cloudy in clouded.intersection(part):
                    self._perhaps.add(cloudy)

    def _writes(self, node: Node, pointer: Pointer, written: RangeSet, clouded: RangeSet) -> None:
        ranges, gaps = extent(pointer.view)
        if pointer.access is Access.UNKNOWN:
            for part in ranges:
                clouded.add(part)
                self.perhaps_made.add(part)
            return
        whole = not gaps and (pointer.access is Access.WRITE or reads_itself(node.launch, pointer))
        for part in ranges:
            self.made.add(part)
            if whole:
                written.add(part)


def _static(graph: Graph) -> RangeIndex[object]:
    """The buffers that a graph was given and did not allocate."""
    given = [b for b in graph.inputs.values() if b.nbytes and not (b.role is Role.POOL and b.graph == graph.serial)]
    return RangeIndex((buffer.range, None) for buffer in given)
