"""Hooks and limits for code that runs a debugger from outside: finding listeners, replay callbacks, overhead.

Findings arrive under the debugger's lock. Their listeners write files, so calls are posted (see `outbox`) and run in
the same thread, in the same event, once the lock is released.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from shadowgraph.checks.base import Context, Detection
from shadowgraph.checks.kinds import kind_of
from shadowgraph.common.internal_errors import error_barrier, internal_errors, log
from shadowgraph.common.outbox import outbox
from shadowgraph.common.settings import Settings
from shadowgraph.graphs.dispatch.eager_guard import EagerGuard
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.failures import Failure
from shadowgraph.model.findings import Batch, Finding
from shadowgraph.model.graphs import Graph
from shadowgraph.monitor.overhead_limiter import OverheadLimiter
from shadowgraph.tracking.variable_names import VariableNames

_T = TypeVar("_T")
_FAILURES = 16  # kept; a server may continue and fail again


class ProgramHooks:
    """Hooks and limits of one debugger.

    Attributes
    ----------
    limit
        Overhead limiter: what checking may cost, and what was given up for it.
    guarding
        Which eager allocations are guarded, or None.
    places
        Searches variable names for buffers without an owner name: for the buffer of a finding, and, early enough for
        the rules that follow from names, for index buffers when a graph is captured. None: no search.
    batch_of
        Returns the batch that a replay of a graph was prepared for; set by an adapter that knows the program.
    finding_listeners
        Called with every stored finding, new or seen again, before it is logged. Calls of two threads may come in
        another order than the findings were stored; revision and occurrences tell the order.
    begins
        Called when a replay begins, checked or not, before its other processing.
    replayed
        Called after every checked replay.
    failures, failed
        Exceptions of the program recorded with their context, and the callback that is told of each at once.
    tell
        Called with a report line at once, for a process that may end without a summary; None: no callback.
    replays, checked
        Numbers of replays that began, and of those that were checked.
    """

    def __init__(self, settings: Settings) -> None:
        self.limit = OverheadLimiter(settings.overhead_percent, settings.fault_limit, every=settings.every)
        self.guarding = EagerGuard(settings.guard_eager) if settings.guard_eager != "off" else None
        self.places: VariableNames | None = None
        self.batch_of: Callable[[Graph, int], Batch | None] | None = None
        self.finding_listeners: list[Callable[[Finding], None]] = []
        self.begins: Callable[[], None] | None = None
        self.replayed: Callable[[], None] | None = None
        self.replays = self.checked = 0
        self.failures: list[Failure] = []
        self.failed: Callable[[Failure], None] | None = None
        self.tell: Callable[[str], None] | None = None
        self._faults_before = internal_errors.total

    def start_over(self) -> None:
        """In a forked child: disregard the parent's internal errors and failures."""
        self._faults_before = internal_errors.total
        self.replays = self.checked = 0
        self.failures = []

    def fail(self, failure: Failure) -> None:
        """An exception of the program was recorded with its context."""
        if len(self.failures) < _FAILURES:
            self.failures.append(failure)
            if self.failed is not None:
                outbox.write(partial(_call, "record of an exception", self.failed, failure))

    def capture_began(self) -> None:
        if self.guarding is not None:
            self.guarding.capture_began()

    def replays_passed(self, count: int) -> None:
        """Replays passed unobserved."""
        self.replays += count
        if self.begins is not None:
            outbox.write(self.begins)

    def replay_due(self, replay: int, glances: bool = False) -> bool:
        """Whether a graph's replay, which begins now, is to be checked; a replay with `glances` is checked in any case.

        The limits are evaluated here: when checking takes too long or fails too often, new guards are given up first.
        """
        self.replays += 1
        if self.begins is not None:
            self.begins()
        if self.guarding is not None:
            self.guarding.replay_began()
        if self.limit.limited and self.limit.judge(internal_errors.total - self._faults_before):
            if self.guarding is not None:
                self.guarding.stop()
            log(logging.WARNING, "shadowgraph: %s", self.limit.sentence())
        return self.limit.stopped is None and (glances or self.limit.due(replay))

    @property
    def guards_eager(self) -> bool:
        """Whether eager allocations are guarded now."""
        return self.guarding is not None and self.guarding.active

    def replay_ended(self) -> None:
        self.checked += 1
        if self.replayed is not None:
            self.replayed()

    def found(self, finding: Finding) -> None:
        """Notify listeners of a stored finding; a suppressed finding has no id and is skipped."""
        for hear in self.finding_listeners if finding.id else ():
            outbox.write(partial(_call, "record of a finding", hear, finding))

    def batch(self, draft: Detection) -> Batch | None:
        """The batch of the replay that a finding belongs to, where an adapter knows it."""
        if self.batch_of is None or draft.graph is None or draft.replay is None:
            return None
        with error_barrier("batch of a finding"):
            return self.batch_of(draft.graph, draft.replay)
        return None

    def name(self, buffer: Buffer, context: Context) -> None:
        """Search a name for the buffer of a finding; no variable names a freed buffer."""
        if self.places is not None and buffer.alive and not context.names.owners_of(buffer.range, buffer.serial):
            with error_barrier("search for a name"):
                self.places.find(buffer)

    def name_all(self, draft: Detection, context: Context) -> None:
        """Search names for all buffers of a finding."""
        for buffer in (draft.buffer, *kind_of(draft.code).further_buffers(draft)):
            self.name(buffer, context)

    def name_rest(self, buffers: Iterable[Buffer], context: Context) -> None:
        """Search names for all live buffers without an owner name, as far as the time limit allows."""
        if self.places is not None:
            with error_barrier("search for names"):
                unnamed = [b for b in buffers if b.alive and not context.names.owners_of(b.range, b.serial)]
                self.places.find_new(unnamed)

    def name_indices(self, graphs: Iterable[Graph], context: Context) -> None:
        """Search names for one-dimensional integer inputs of new graphs, and for guarded ones outside their pools: once
        a buffer is freed, its name cannot be found."""
        if self.places is None:
            return
        with error_barrier("search for names"):
            self.places.find_new(_unnamed(_index_inputs(graphs, context), context))
            self.places.note_former(_unnamed(_guarded_inputs(graphs), context))


def _index_inputs(graphs: Iterable[Graph], context: Context) -> list[Buffer]:
    """One-dimensional integer buffers that graphs use, outside their pools."""
    spans = [span for graph in graphs for span in graph.spans]
    used = {b.serial: b for span in spans for b in context.ledger.overlapping(span.start, span.stop)}
    flat = [b for b in used.values() if len(b.shape) == 1 and b.dtype.startswith("int")]
    return [buffer for buffer in flat if buffer.role is not Role.POOL]


def _guarded_inputs(graphs: Iterable[Graph]) -> list[Buffer]:
    return [b for graph in graphs for b in graph.inputs.values() if b.role is Role.STATIC and b.alive]


def _unnamed(buffers: Iterable[Buffer], context: Context) -> Iterator[Buffer]:
    """Buffers without an owner name, each looked up when the iterator reaches it."""
    return (b for b in buffers if not context.names.owners_of(b.range, b.serial))


def _call(what: str, told: Callable[[_T], None], fact: _T) -> None:
    with error_barrier(what):
        told(fact)
