"""Dispatches engine results to the checks that submitted the ranges.

Called from `Boundaries`, in the thread of an event, in most cases under the debugger's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from shadowgraph.checks.base import Check, Checkpoint, Context
from shadowgraph.checks.out_of_bounds.check import OutOfBounds
from shadowgraph.common.errors import FindingsError
from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.engines.base import Evidence, Result
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.guards import Guard
from shadowgraph.monitor.rearming import Rearming
from shadowgraph.monitor.recorder.rows import Rows
from shadowgraph.tracking import steps


def place_of(evidence: Evidence[object]) -> tuple[int, int]:
    """By which evidence of one check is put in order: buffers as they were allocated, the bytes of one by address."""
    return getattr(getattr(evidence.subject, "buffer", None), "serial", 0), evidence.first


class _Local(threading.local):
    def __init__(self) -> None:
        self.busy = False
        self.waiting: list[Result] = []


class EvidenceDispatcher:
    """Isolates evidence: an internal error, or a finding raised in sync mode, loses no other evidence."""

    def __init__(
        self, context: Context, checks: Sequence[Check], out_of_bounds: OutOfBounds, rearming: Rearming, rows: Rows
    ) -> None:
        self._context, self._checks, self._out_of_bounds, self._rearming = context, checks, out_of_bounds, rearming
        self._rows = rows
        self._local = _Local()

    @property
    def busy(self) -> bool:
        """Whether this thread is dispatching: a listener of findings may request a report meanwhile."""
        return self._local.busy

    def dispatch_evidence(self, results: Sequence[Result]) -> None:
        """Pass results to the checks. In sync mode the first finding is raised after all results are dispatched.

        Results that arrive while this thread is dispatching are queued until it has finished.
        """
        local = self._local
        if not results and not local.waiting:
            return
        local.waiting += [result for result in results if result.evidence or result.fetched]
        if local.busy or not local.waiting:
            return
        local.busy = True
        try:
            raised = self._dispatch(local.waiting)
        finally:
            local.busy = False
        if raised is not None:
            raise raised

    def _dispatch(self, waiting: list[Result]) -> FindingsError | None:
        """Pass queued results to the checks, those added meanwhile too. Returns the first finding of sync mode."""
        raised: FindingsError | None = None
        while waiting:
            for judge in self._judgements(waiting.pop(0)):
                try:
                    with error_barrier("evidence"):
                        judge()
                except FindingsError as error:
                    raised = raised or error
        with error_barrier("overrun"):
            self._context.judged()
        return raised

    def _judgements(self, result: Result) -> Iterator[Callable[[], None]]:
        checkpoint = result.tag
        assert isinstance(checkpoint, Checkpoint)
        for evidence in sorted(result.evidence, key=place_of):  # threads of a device report in any order
            if isinstance(evidence.subject, Guard):
                yield partial(self._broken, evidence, checkpoint)
                continue
            for check in self._checks:
                if check.owns(evidence.subject):
                    yield partial(self._changed, check, evidence, checkpoint)
        for key, data in result.fetched:
            for check in self._checks:
                if check.owns(key):
                    yield partial(check.fetched, key, data, checkpoint)

    def _changed(self, check: Check, evidence: Evidence[object], checkpoint: Checkpoint) -> None:
        damage = check.is_damage(evidence.subject)
        if damage is not None:
            self._rows.changed(evidence, checkpoint, damage)
        try:
            check.changed(evidence, checkpoint)
        finally:  # with `sync` the finding is raised
            buffer = getattr(evidence.subject, "buffer", None)
            if damage is not None and isinstance(buffer, Buffer):
                self._rows.name(buffer)

    def _broken(self, evidence: Evidence[object], checkpoint: Checkpoint) -> None:
        guard = evidence.subject
        assert isinstance(guard, Guard)
        extent, guards = (evidence.first, evidence.last), self._context.allocator.guards
        if guard.rearm or guards.confirm(guard, extent, checkpoint.order, self._context.clock):
            if checkpoint.graph is not None:
                steps.damaged(checkpoint.graph)
            self._rows.broken(evidence, checkpoint)
            self._rearming.broken(guard, checkpoint)
            try:
                self._out_of_bounds.broken_guard(evidence, checkpoint)
            finally:  # with `sync` the finding is raised
                self._rows.name(guard.buffer)  # which the finding has searched a name for
