"""Phase boundaries: submits guard and shadow checks, dispatches arrived evidence, and starts a new segment of writes.

Called by `Monitor`, in the thread of an event. `wait` blocks on the device without the debugger's lock, so that replays
in other threads continue; everything else runs under it, except that `guards_now` may be called without.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from shadowgraph.checks.base import Check, Checkpoint, Context, Step
from shadowgraph.common.errors import DeviceLostError
from shadowgraph.engines.base import NodeCheck, Result, Shadow
from shadowgraph.localize.launch_stepper import LaunchStepper
from shadowgraph.model.graphs import Graph
from shadowgraph.model.guards import Guard
from shadowgraph.model.phases import Phase
from shadowgraph.model.stacks import Stack, current_stack
from shadowgraph.monitor.evidence_dispatch import EvidenceDispatcher
from shadowgraph.monitor.node_checkpoints import NodeCheckpoints
from shadowgraph.monitor.overhead_limiter import OverheadLimiter
from shadowgraph.monitor.step_dates import OF_REPLAYS, dated
from shadowgraph.tracking import passing, steps
from shadowgraph.tracking.active_guards import ActiveGuards
from shadowgraph.tracking.writes import WriteLog

_NONE = WriteLog()  # never filled


class _Listed:
    """`GuardKeeper.changes` when guards were listed last."""

    changes = -1


class Boundaries:
    """Submits checks to the engine and dispatches its results. The caller holds the debugger's lock, except for
    `wait` and `guards_now`.

    Parameters
    ----------
    paused
        Whether the monitor is paused, as it is once it has recorded the loss of the device.
    """

    def __init__(
        self,
        context: Context,
        judge: EvidenceDispatcher,
        checks: Sequence[Check],
        standing: ActiveGuards,
        stepper: LaunchStepper,
        limit: OverheadLimiter,
        paused: Callable[[], bool],
    ) -> None:
        self._context, self._evidence, self._standing, self._stepper = context, judge, standing, stepper
        self._limit, self._paused = limit, paused
        self._engine, self._sync = context.engine, context.settings.sync
        self._arrived: deque[Result] = deque()  # results of waits without the lock; the next poll dispatches them
        self._still = context.allocator.lock.within  # while held, no guard moves and no block changes owner
        self._keeper, self._listed = context.allocator.guards, _Listed()
        self._dated = NodeCheckpoints(context)
        self._place: Stack = ()
        # Only checks that override the hook: this is the replay path.
        self._enders = [c for c in checks if type(c).checkpoint_ends is not Check.checkpoint_ends]

    @property
    def busy(self) -> bool:
        """Whether this thread is dispatching evidence."""
        return self._evidence.busy

    def close(
        self,
        at: str,
        phase: Phase | None,
        graph: Graph | None,
        replay: int | None,
        take: Shadow | None = None,
        compare: Shadow | None = None,
        in_full: bool = False,
        step: Step | None = None,
        observed: bool = True,
        launched: bool = False,
    ) -> Checkpoint:
        """Check every guard, dispatch arrived evidence, start a new segment of writes.

        A graph that checks itself has its guards checked by its own nodes as a replay begins and ends; with `launched`
        by a launch before that, too.
        """
        context, engine = self._context, self._engine
        writes = context.writes
        stepping = self._stepper.armed and phase is not Phase.REPLAY
        if stepping and step is None:
            step = self._stepper.boundary()
        if writes.entries:
            context.writes = WriteLog(writes.dropped)
        elif engine.asynchronous:  # evidence is then dispatched after later launches
            writes = _NONE
        bounds = () if engine.asynchronous else self._bounds()
        order = next(context.clock)
        checkpoint = dated(Checkpoint(at, phase, graph, replay, writes, order, step, observed, bounds=bounds))
        itself = _checks_itself(at, graph) and not (stepping or launched or self._sync)
        with self._still:
            guards = self._guards(writes, stepping, in_full)
            self._list()
            engine.check(checkpoint, () if itself else guards, take, compare, in_full)
        if graph is not None:
            self._note(graph, checkpoint, itself, take is not None)
        if take is None or self._sync or not engine.asynchronous:  # otherwise polled at the end of the replay
            self.poll()
        if writes.entries:
            for check in self._enders:
                check.checkpoint_ends(checkpoint)
        return checkpoint

    def _bounds(self) -> Stack:
        """Where the program was at the boundary before, and is now."""
        before, now = self._place, current_stack(1)
        self._place = now
        return (*before, *now) if before and now else ()

    def _note(self, graph: Graph, checkpoint: Checkpoint, itself: bool, takes: bool) -> None:
        """Note what checks a replay: the graph's own nodes, which report later, or a launch."""
        if takes:
            self._dated.compared(graph)
        if itself:
            self._dated.note(graph, checkpoint)
        elif checkpoint.at == "replay_end":
            steps.looked(graph)

    def due(self) -> Callable[[], bool]:
        """A function that tells whether evidence has arrived, or guards have changed that check nodes are to compare.

        It is called at every replay, and does not keep the debugger alive."""
        arrived, keeper, listed = self._engine.arrival(), self._keeper, self._listed
        return lambda: arrived() or keeper.changes != listed.changes

    def node_check(self, graph: Graph, end: bool) -> None:
        """On the host: what a check node does on the device."""
        with self._still:
            self._engine.check(NodeCheck(graph.serial, graph.replays, end), self._standing.now())

    def dropped(self, graph: Graph) -> None:
        """A graph is gone; evidence of its last replays may still arrive."""
        self._dated.dropped(graph)
        steps.dropped(graph)

    def _list(self) -> None:
        """Let check nodes compare the guards that stand now. The caller holds the allocator's lock."""
        if self._keeper.changes != self._listed.changes or self._keeper.waiting:
            guards = self._standing.now()
            self._listed.changes = self._keeper.changes
            self._engine.list_guards(guards)

    def _guards(self, writes: WriteLog, stepping: bool, in_full: bool) -> tuple[Guard, ...]:
        """The guards to check, the same tuple object while they are unchanged; on the host with those that known stores
        hit beyond the near part."""
        guards = self._standing.now()
        if writes.entries and not in_full and not self._engine.asynchronous:
            hit = self._standing.hit(writes)
            guards = (*guards, *hit) if hit else guards
        return self._stepper.guards(guards) if stepping else guards

    def guards_now(self, checkpoint: Checkpoint) -> None:
        """Check every guard within a segment."""
        context = self._context
        checkpoint = dated(replace(checkpoint, writes=context.writes, order=next(context.clock)))
        with context.allocator.lock.section:
            context.engine.check(checkpoint, self._standing.now())
        self.poll()

    def wait(self, here: bool = False) -> None:
        """Wait for all submitted checks, or with `here` for those of the current stream; the next `poll` dispatches the
        results. The caller holds no lock, where it can avoid one."""
        with self._limit.waiting():
            self._arrived.extend(self._engine.poll(wait=True, here=here))

    def relist(self) -> None:
        """Let check nodes compare the guards that stand now."""
        with self._still:
            self._list()

    def poll(self) -> None:
        """Dispatch the results that have arrived.

        In sync mode, first wait for the checks of the current stream, under the lock: the finding is raised from the
        event that submitted the check, before other code runs and before another thread's evidence is dispatched.
        """
        if self._sync:
            self.wait(here=True)
        self._judge(self._engine.poll())

    def last(self, reason: str) -> None:
        """The device is lost: dispatch the results that reached the host in time."""
        self._engine.lose(reason)
        self._evidence.dispatch_evidence(_in_order(self._dated.of([*self._taken(), *self._engine.poll()])))

    def _judge(self, results: Sequence[Result]) -> None:
        if self._arrived or results:
            results = _in_order(self._dated.of([*self._taken(), *results]))
        if results or self._engine.lost is not None:
            self._hand_out(results)

    def _taken(self) -> Iterator[Result]:
        while self._arrived:
            yield self._arrived.popleft()

    def _hand_out(self, results: Sequence[Result]) -> None:
        self._evidence.dispatch_evidence(results)
        passing.hasten()
        if self._context.engine.lost is not None and not self._paused():
            raise DeviceLostError(self._context.engine.lost)


def _checks_itself(at: str, graph: Graph | None) -> bool:
    """Whether a graph's own nodes check at a boundary."""
    return graph is not None and bool(graph.check_nodes) and at in OF_REPLAYS and steps.checks(graph)


def _in_order(results: list[Result]) -> list[Result]:
    """Results in submission order: several threads may have waited at the same time."""
    return sorted(results, key=lambda result: result.tag.order if isinstance(result.tag, Checkpoint) else 0)
