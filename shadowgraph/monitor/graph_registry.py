"""Graphs that were captured: which captures run, which graphs nobody has looked at yet, and what all of them cover."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import torch

from shadowgraph.checks.base import Check, Context
from shadowgraph.model.coverage import Coverage, CoverageLog
from shadowgraph.model.graphs import Graph
from shadowgraph.monitor.program_hooks import ProgramHooks
from shadowgraph.tracking.allocator import HostAllocator


class GraphRegistry:
    """Lets the checks look at graphs: at the end of a capture, or before first use where a capture must stay fast.

    Parameters
    ----------
    checks
        All that are told of captures.

    Attributes
    ----------
    capturing
        The threads in which captures run, by the serials of their graphs. It stays the same object.
    waiting
        Graphs that nobody has looked at yet, oldest first.
    """

    def __init__(
        self, context: Context, allocator: HostAllocator, outside: ProgramHooks, checks: Iterable[Check]
    ) -> None:
        self._context, self._allocator, self._outside, self._checks = context, allocator, outside, tuple(checks)
        self._coverage = CoverageLog()
        self.capturing: dict[int, int] = {}
        self.waiting: list[Graph] = []

    def capture_began(self, graph: Graph) -> None:
        """A capture has begun in this thread."""
        self.capturing[graph.serial] = threading.get_ident()

    @property
    def captures_here(self) -> bool:
        """Whether what this thread launches now is recorded, not run: it captures, or its current stream does, which
        another thread may have begun. What other threads launch meanwhile runs as ever."""
        if not self.capturing:
            return False
        return threading.get_ident() in self.capturing.values() or (
            self._allocator.device != "cpu" and torch.cuda.is_current_stream_capturing()
        )

    def captured(self, graph: Graph, wanted: bool) -> None:
        """A capture has ended; `wanted` says whether anybody will look at its graph."""
        self.capturing.pop(graph.serial, None)
        self._context.graphs[graph.serial] = graph
        graph.captured_at = next(self._context.clock)
        if not wanted:
            self._allocator.waiting.clear()
            return
        self.waiting.append(graph)
        if not self._context.engine.asynchronous:
            self.introduce()

    @property
    def reads(self) -> bool:
        """Whether `introduce` will read memory, as far as names are known before it."""
        return any(check.reads_captured(graph) for graph in self.waiting for check in self._checks)

    def introduce(self) -> None:
        """Have those looked at that wait for it."""
        if not self.waiting:
            return
        new, self.waiting = self.waiting, []
        self._allocator.enter_waiting()
        self._context.names.refresh()
        self._outside.name_indices(new, self._context)
        for graph in new:
            self._coverage.note(graph, list(self._allocator.tenants.values()), self._context.ledger)
            for check in self._checks:
                check.captured(graph)

    def dropped(self, graph: Graph) -> None:
        """A graph is gone."""
        self.capturing.pop(graph.serial, None)
        self._context.graphs.pop(graph.serial, None)
        self.waiting = [each for each in self.waiting if each is not graph]

    def coverage(self) -> Coverage:
        """Of those that were looked at."""
        return self._coverage.coverage(self._context.writes.dropped + self._context.engine.dropped)
