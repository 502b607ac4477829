"""Registry of captured graphs: captures in progress, graphs that the checks have not seen yet, and the coverage of all.

Used by `Monitor`; captures are noted without a lock, in the capturing thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import torch

from shadowgraph.checks.base import Check, Context
from shadowgraph.common.words import plural
from shadowgraph.model.coverage import Coverage, CoverageLog
from shadowgraph.model.graphs import Graph
from shadowgraph.monitor.buffer_classes import BufferClasses
from shadowgraph.monitor.name_search import NameSearch
from shadowgraph.tracking.allocator import HostAllocator

_LISTED = 4  # graphs that a line names


class GraphRegistry:
    """Introduces graphs to the checks: at the end of a capture, or before first use where a capture must stay fast.

    Parameters
    ----------
    checks
        All checks that are notified of captures.

    Attributes
    ----------
    capturing
        Ids of the threads with a capture in progress, by graph serial. The dictionary itself is never replaced.
    waiting
        Graphs that no check has seen yet, oldest first.
    earlier
        Names of the graphs that replayed and whose captures this debugger has not seen, by serial.
    """

    def __init__(self, context: Context, allocator: HostAllocator, search: NameSearch, checks: Iterable[Check]) -> None:
        self._context, self._allocator, self._search, self._checks = context, allocator, search, tuple(checks)
        allocator.large.begin()
        self._coverage, self._classes = CoverageLog(), BufferClasses(context.names)
        self.capturing: dict[int, int] = {}
        self.waiting: list[Graph] = []
        self.earlier: dict[int, str] = {}

    def capture_began(self, graph: Graph) -> None:
        """A capture has begun in this thread."""
        self.capturing[graph.serial] = threading.get_ident()

    @property
    def captures_here(self) -> bool:
        """Whether launches of this thread are now recorded instead of run: the thread captures, or its current stream
        does, in a capture that another thread may have begun. Launches of other threads run as usual."""
        if not self.capturing:
            return False
        return threading.get_ident() in self.capturing.values() or (
            self._allocator.device != "cpu" and torch.cuda.is_current_stream_capturing()
        )

    def captured(self, graph: Graph, wanted: bool) -> None:
        """A capture has ended; `wanted` says whether checks will look at its graph."""
        self.capturing.pop(graph.serial, None)
        self._context.graphs[graph.serial] = graph
        graph.captured_at = next(self._context.clock)
        if not wanted:
            self._allocator.guards.waiting.clear()
            return
        self.waiting.append(graph)
        if not self._context.engine.asynchronous:
            self.introduce()

    def replays(self, graph: Graph) -> None:
        """A replay begins, perhaps of a graph that was captured before."""
        if graph.serial not in self._context.graphs:
            self._context.graphs[graph.serial] = graph
            self.earlier[graph.serial] = graph.name

    def sentence(self) -> str | None:
        """A report line on the graphs that were captured before the debugger watched; None without any."""
        count = len(self.earlier)
        if not count:
            return None
        listed = ", ".join(list(self.earlier.values())[:_LISTED]) + (", ..." if count > _LISTED else "")
        was, its = ("was", "its") if count == 1 else ("were", "their")
        return (
            f"{plural(count, 'graph')} ({listed}) {was} captured before this debugger watched: {its} inputs, outputs "
            "and memory pool are not checked, only names and declared buffers; capture inside the block"
        )

    @property
    def reads(self) -> bool:
        """Whether `introduce` will read memory, as far as the names known so far tell."""
        return any(check.reads_captured(graph) for graph in self.waiting for check in self._checks)

    def introduce(self) -> None:
        """Introduce the waiting graphs to the checks."""
        if not self.waiting:
            return
        new, self.waiting = self.waiting, []
        self._allocator.guards.enter_waiting()
        self._context.names.refresh()
        self._search.name_indices(new)
        for graph in new:
            tenants = list(self._allocator.guards.tenants.values())
            self._coverage.note(graph, tenants, self._context.ledger, self._classes.of)
            for check in self._checks:
                check.captured(graph)

    def dropped(self, graph: Graph) -> None:
        """A graph was destroyed or reset."""
        self.capturing.pop(graph.serial, None)
        self._context.graphs.pop(graph.serial, None)
        self.waiting = [each for each in self.waiting if each is not graph]

    def coverage(self) -> Coverage:
        """Coverage of the introduced graphs."""
        dropped = self._context.writes.dropped + self._context.engine.dropped
        return self._coverage.coverage(dropped, self._allocator.large.most)
