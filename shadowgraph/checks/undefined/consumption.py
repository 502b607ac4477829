"""Which bytes of each graph's results the program reads, noted in observed replays: by the host, by eager operators and
kernels, by other graphs, and by the graph itself in its next replay.

Owned by `UndefinedInfluence`. Any thread: `read` takes no lock, the other methods take one of their own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shadowgraph.checks.base import reader_at
from shadowgraph.checks.contents_lost.reads import may_write, picks, sure_reads
from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.model.findings import Reader
from shadowgraph.model.graphs import Graph, Node
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.writes import extent

_MOST = 256  # kinds of reads kept for each graph
_WAITING = 4096
_HIDING = ("where", "masked_", "slice_scatter")  # operators


@dataclass(slots=True, eq=False)
class Consumed:
    """Bytes of a graph's results that one reader reads.

    Attributes
    ----------
    sure
        Whether they are known to be read: a kernel that is given them may only write.
    """

    reader: Reader
    dtype: str
    itemsize: int
    sure: bool
    ranges: RangeSet


@dataclass(frozen=True, slots=True)
class _Read:
    ranges: RangeSet
    dtype: str
    itemsize: int
    reader: Reader
    sure: bool


def node_reader(node: Node, graph: str = "graph") -> Reader:
    """A node of a graph that reads; without a name of the finding's own."""
    return reader_at(graph, node.launch.name, node.launch.stack, node.index)


def reads_all(operator: str, argument: str) -> bool:
    """Whether an eager operator's results depend on all bytes of an argument, as far as its kind tells: not on those
    that an index leaves out or a mask hides."""
    return not picks(operator, argument) and not any(name in operator for name in _HIDING)


class Consumption:
    """The reads of each graph's results."""

    def __init__(self) -> None:
        self._results: dict[int, RangeSet] = {}  # by graph: what its latest replay may have left, the latest last
        self._made: dict[int, RangeSet] = {}  # by graph: all that it may write
        self._inputs: dict[int, tuple[_Read, ...]] = {}  # by graph: what it is known to read first
        self._of: dict[int, dict[tuple[object, ...], Consumed]] = {}
        self._waiting: deque[_Read] = deque(maxlen=_WAITING)
        self._lock = fork_safe(threading.RLock())

    def of(self, serial: int) -> list[Consumed]:
        """What is read of the results of a graph."""
        return list(self._of.get(serial, {}).values())

    def made_by(self, graph: Graph) -> RangeSet:
        """Every byte that a graph may write."""
        known = self._made.get(graph.serial)
        if known is None:
            known = self._made[graph.serial] = may_write(graph)
        return known

    def read(self, views: Iterable[TensorView], reader: Reader, sure: bool = True) -> None:
        """The program reads some tensors. Any thread."""
        for view in views:
            self._waiting.append(_Read(extent(view)[0], view.dtype, view.itemsize, reader, sure))

    def loaded(self, ranges: RangeSet, views: Sequence[TensorView], reader: Reader, by: Graph | None = None) -> None:
        """A kernel has read some bytes; `by` the graph that it is a node of, whose own results do not count."""
        with self._lock:
            self.settle()
            for view in views:
                parts = RangeSet.of(ranges.intersection(view.hull))
                if parts:
                    self._note(_Read(parts, view.dtype, view.itemsize, reader, True), by)

    def overwritten(self, ranges: RangeSet) -> None:
        """Eager code has written some bytes: they are no graph's results from here on."""
        with self._lock:
            self.settle()
            for serial, left in self._results.items():
                if any(left.overlaps(part) for part in ranges):
                    self._results[serial] = left - ranges

    def begins(self, graph: Graph) -> None:
        """A replay begins: what it reads are results of others, or of its replay before."""
        with self._lock:
            self.settle()
            for each in self._reads_of(graph):
                self._note(each, None)
            made = self.made_by(graph)
            self._results.pop(graph.serial, None)
            self.overwritten(made)
            self._results[graph.serial] = made

    def dropped(self, live: Iterable[int]) -> None:
        """Forget the graphs that are gone."""
        keep = set(live)
        with self._lock:
            for known in (self._results, self._made, self._inputs, self._of):
                for serial in [serial for serial in known if serial not in keep]:
                    del known[serial]

    def _reads_of(self, graph: Graph) -> tuple[_Read, ...]:
        known = self._inputs.get(graph.serial)
        if known is None:
            reads = sure_reads(graph)
            known = self._inputs[graph.serial] = tuple(
                _Read(
                    r.bytes_read, r.pointer.view.dtype, r.pointer.view.itemsize, node_reader(r.node, graph.name), True
                )
                for r in reads
                if not r.picks
            )
        return known

    def settle(self) -> None:
        """Enter the reads so far."""
        with self._lock:
            while self._waiting:
                self._note(self._waiting.popleft(), None)

    def _note(self, each: _Read, by: Graph | None) -> None:
        for serial, left in self._results.items():
            if by is not None and serial == by.serial:
                continue
            parts = [part for one in each.ranges for part in left.intersection(one)]
            if parts:
                self._enter(serial, each, parts)

    def _enter(self, serial: int, each: _Read, parts: list[ByteRange]) -> None:
        known = self._of.setdefault(serial, {})
        reader = each.reader
        key = (reader.kind, reader.name, reader.node, reader.file, reader.line, each.dtype, each.sure)
        entry = known.get(key)
        if entry is None and len(known) < _MOST:
            entry = known[key] = Consumed(reader, each.dtype, each.itemsize, each.sure, RangeSet())
        if entry is not None:
            for part in parts:
                entry.ranges.add(part)
