"""Hands what an engine found to the checks that asked for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from shadowgraph.checks.base import Check, Checkpoint, Context
from shadowgraph.checks.out_of_bounds import OutOfBounds
from shadowgraph.common.errors import FindingsError
from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.engines.base import Evidence, Result
from shadowgraph.model.guards import Guard
from shadowgraph.monitor.rearming import Rearming


class _Local(threading.local):
    def __init__(self) -> None:
        self.busy = False
        self.waiting: list[Result] = []


class EvidenceDispatcher:
    """One fault of ours, or one finding in sync mode, loses none of the other evidence."""

    def __init__(
        self, context: Context, checks: Sequence[Check], out_of_bounds: OutOfBounds, rearming: Rearming
    ) -> None:
        self._context, self._checks, self._out_of_bounds, self._rearming = context, checks, out_of_bounds, rearming
        self._local = _Local()

    @property
    def busy(self) -> bool:
        """Whether this thread is in the middle of it: who hears of a finding may ask for the report."""
        return self._local.busy

    def dispatch_evidence(self, results: Sequence[Result]) -> None:
        """Let the checks judge results; the first finding that is raised in sync mode is raised when all is done.

        Results that come while this thread is in the middle of it wait until that is done.
        """
        local = self._local
        if not results and not local.waiting:
            return
        local.waiting += [result for result in results if result.evidence or result.fetched]
        if local.busy or not local.waiting:
            return
        raised: FindingsError | None = None
        local.busy = True
        try:
            while local.waiting:
                for judge in self._judgements(local.waiting.pop(0)):
                    try:
                        with error_barrier("evidence"):
                            judge()
                    except FindingsError as error:
                        raised = raised or error
        finally:
            local.busy = False
        if raised is not None:
            raise raised

    def _judgements(self, result: Result) -> Iterator[Callable[[], None]]:
        checkpoint = result.tag
        assert isinstance(checkpoint, Checkpoint)
        for evidence in result.evidence:
            if isinstance(evidence.subject, Guard):
                yield partial(self._broken, evidence, checkpoint)
                continue
            for check in self._checks:
                if check.owns(evidence.subject):
                    yield partial(check.changed, evidence, checkpoint)
        for key, data in result.fetched:
            for check in self._checks:
                if check.owns(key):
                    yield partial(check.fetched, key, data, checkpoint)

    def _broken(self, evidence: Evidence[object], checkpoint: Checkpoint) -> None:
        guard = evidence.subject
        assert isinstance(guard, Guard)
        extent = evidence.first, evidence.last
        if guard.rearm or self._context.allocator.confirm(guard, extent, checkpoint.order, self._context.clock):
            self._rearming.broken(guard, checkpoint)
            self._out_of_bounds.broken_guard(evidence, checkpoint)
