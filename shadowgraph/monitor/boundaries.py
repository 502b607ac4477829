"""What happens between two phases: guards are checked, evidence that has arrived is judged, a new segment begins.

Called by the supervisor, in the thread of an event. A device is waited for without the debugger's lock (`wait`), so
that the replays of other threads go on; all else is done under it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from shadowgraph.checks.base import Check, Checkpoint, Context, Step
from shadowgraph.common.errors import DeviceLostError
from shadowgraph.engines.base import Result, Shadow
from shadowgraph.localize.launch_stepper import LaunchStepper
from shadowgraph.model.graphs import Graph
from shadowgraph.model.phases import Phase
from shadowgraph.monitor.evidence_dispatch import EvidenceDispatcher
from shadowgraph.monitor.program_hooks import ProgramHooks
from shadowgraph.tracking.active_guards import ActiveGuards
from shadowgraph.tracking.writes import WriteLog

_NONE = WriteLog()  # nobody adds to it


class Boundaries:
    """Asks the engine and hands out its answers. The caller holds the debugger's lock, but for `wait`.

    Parameters
    ----------
    paused
        Whether a device that is lost is known to be.
    """

    def __init__(
        self,
        context: Context,
        judge: EvidenceDispatcher,
        checks: Sequence[Check],
        standing: ActiveGuards,
        stepper: LaunchStepper,
        outside: ProgramHooks,
        paused: Callable[[], bool],
    ) -> None:
        self._context, self._evidence, self._standing, self._stepper = context, judge, standing, stepper
        self._outside, self._paused = outside, paused
        self._engine, self._sync = context.engine, context.settings.sync
        self._arrived: deque[Result] = deque()  # of waits without the lock; the next poll judges them
        self._still = context.allocator.lock.within  # no guard moves, and no block changes hands, while it is held
        # Only the checks that do something: this is the replay path.
        self._enders = [c for c in checks if type(c).checkpoint_ends is not Check.checkpoint_ends]

    @property
    def busy(self) -> bool:
        """Whether this thread is in the middle of judging."""
        return self._evidence.busy

    def close(  # noqa: C901  a handler of replays, which are redone as a whole
        self,
        at: str,
        phase: Phase | None,
        graph: Graph | None,
        replay: int | None,
        take: Shadow | None = None,
        compare: Shadow | None = None,
        in_full: bool = False,
        step: Step | None = None,
    ) -> Checkpoint:
        """Check every guard, hand out what evidence has arrived, start a new segment of writes."""
        context, engine = self._context, self._engine
        writes = context.writes
        stepping = self._stepper.armed and phase is not Phase.REPLAY
        if stepping and step is None:
            step = self._stepper.boundary()
        if writes.entries:
            context.writes = WriteLog(writes.dropped)
        elif engine.asynchronous:  # there evidence is judged when others have launched since
            writes = _NONE
        checkpoint = Checkpoint(at, phase, graph, replay, writes, next(context.clock), step)
        with self._still:
            guards = self._standing.now()
            if writes.entries and not in_full and not engine.asynchronous:
                hit = self._standing.hit(writes)
                guards = (*guards, *hit) if hit else guards  # the same object as long as it is the same guards
            if stepping:
                guards = self._stepper.guards(guards)
            engine.check(checkpoint, guards, take, compare, in_full)
        if take is None or self._sync or not engine.asynchronous:  # else the replay's end asks
            self.poll()
        if writes.entries:
            for check in self._enders:
                check.checkpoint_ends(checkpoint)
        return checkpoint

    def guards_now(self, checkpoint: Checkpoint) -> None:
        """Check every guard in the middle of a segment."""
        context = self._context
        checkpoint = replace(checkpoint, writes=context.writes, order=next(context.clock))
        with context.allocator.lock.section:
            context.engine.check(checkpoint, self._standing.now())
        self.poll()

    def wait(self, here: bool = False) -> None:
        """Wait for everything that was asked for, or for what the current stream was asked for; the next `poll` judges
        it. The caller holds no lock, as far as what it needs allows."""
        with self._outside.limit.waiting():
            self._arrived.extend(self._engine.poll(wait=True, here=here))

    def poll(self) -> None:
        """Judge what has arrived.

        In sync mode wait for what the current stream was asked for, under the lock: the finding is raised from the very
        event that asked, before anything else runs and before another thread's evidence is judged.
        """
        if self._sync:
            self.wait(here=True)
        self._judge(self._engine.poll())

    def last(self, reason: str) -> None:
        """The device is gone: judge what had reached the host in time."""
        self._engine.lose(reason)
        self._evidence.dispatch_evidence(_in_order([*self._taken(), *self._engine.poll()]))

    def _judge(self, results: Sequence[Result]) -> None:
        if self._arrived:
            results = _in_order([*self._taken(), *results])
        if results or self._engine.lost is not None:
            self._hand_out(results)

    def _taken(self) -> Iterator[Result]:
        while self._arrived:
            yield self._arrived.popleft()

    def _hand_out(self, results: Sequence[Result]) -> None:
        self._evidence.dispatch_evidence(results)
        if self._context.engine.lost is not None and not self._paused():
            raise DeviceLostError(self._context.engine.lost)


def _in_order(results: list[Result]) -> list[Result]:
    """Results in the order in which they were asked for: several threads may have waited at the same time."""
    return sorted(results, key=lambda result: result.tag.order if isinstance(result.tag, Checkpoint) else 0)
