"""When broken guards are re-armed: just before the launch or replay that broke them runs again. `GuardKeeper` does it.

A program may read back what it wrote past a buffer's end and continue as if nothing had happened. Writing the canary
over these bytes at once would make it read canaries: it would fail because it is debugged. So where the engine keeps
them, the bytes stay until a launch that was given the buffer in that phase begins again, or the graph in whose replay
it happened replays again (in a step of pieces, the piece after which it happened); they are then about to be
overwritten. Damage without an observed writer stays for good; the guard still reports changes. Where operators passed
unobserved, any launch that is given the buffer to write may be the culprit, besides the observed ones; while they pass
unobserved, no launch re-arms, because the launches since the last boundary are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shadowgraph.checks.base import Checkpoint, Context
from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.graphs import Graph, Launch
from shadowgraph.model.guards import Guard, Side
from shadowgraph.model.phases import Phase
from shadowgraph.tracking.writes import Write

_MOST = 1024  # broken guards kept


@dataclass(frozen=True, slots=True)
class _Broken:
    """A broken guard that waits to be re-armed.

    Attributes
    ----------
    graph
        Serial of the graph in whose replay the guard broke, or None.
    names
        Names of launches that may have broken it, when that was not in a replay.
    unseen
        Not all launches were observed at that time.
    """

    guard: Guard
    graph: int | None
    names: frozenset[str]
    unseen: bool

    def may_be_by(self, launch: Launch) -> bool:
        """Whether a host launch may have broken the guard."""
        named = launch.name in self.names
        if not (self.unseen or named):
            return False
        where = self.guard.buffer.range
        return any(p.view.hull.overlaps(where) for p in launch.pointers if p.may_write or named)


class Rearming:
    """Broken guards, each with its condition for re-arming. The caller holds the debugger's lock.

    Attributes
    ----------
    waiting
        By start address of the guard; empty in a program without damage, which is all that the replay path tests.
    observed_since
        Checkpoint order at which operators were last observed again; infinite while they are not.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.waiting: dict[int, _Broken] = {}
        self.observed_since: float = 0
        self._stepped: list[Write] = []

    def broken(self, guard: Guard, checkpoint: Checkpoint) -> None:
        """A check found a guard broken; the possible culprits are in the checkpoint."""
        if not self._context.engine.keeps:
            return
        graph = checkpoint.graph if checkpoint.phase is Phase.REPLAY else None
        if checkpoint.phase is Phase.STEP:  # the pieces and the code since that piece are taken as one graph
            graph = checkpoint.pieces[0].graph
        names = _given(guard.buffer, checkpoint) if graph is None else frozenset()
        self.waiting.pop(guard.whole.start, None)
        while len(self.waiting) >= _MOST:  # many of the oldest entries belong to freed buffers
            self.waiting.pop(next(iter(self.waiting), 0), None)
        unseen = graph is None and (not checkpoint.observed or checkpoint.order < self.observed_since)
        serial = graph.serial if graph is not None else None
        self.waiting[guard.whole.start] = _Broken(guard, serial, names, unseen)

    def due(self, launch: Launch) -> list[_Broken]:
        """Guards that a host launch, which is about to run, may have broken; excluded are those for which another
        possible culprit has run since the last boundary, as the new damage may already be there."""
        waiting = list(self.waiting.values())
        return [broken for broken in waiting if broken.may_be_by(launch) and not self._has_run(broken)]

    def _has_run(self, broken: _Broken) -> bool:
        """Whether a possible culprit has run since the last boundary."""
        where = broken.guard.buffer.range
        writes = (*self._stepped, *self._context.writes)
        before = [write for write in writes if broken.unseen or write.launch.name in broken.names]
        return any(write.ranges.overlaps(where) for write in before)

    def stepped(self, checkpoint: Checkpoint) -> None:
        """A check next to a launch has ended a segment of writes, within one phase."""
        self._stepped += checkpoint.writes

    def rearm(self, due: Iterable[_Broken]) -> None:
        """Re-arm guards that have been checked, except those whose condition has changed since."""
        for broken in due:
            start = broken.guard.whole.start
            if self.waiting.get(start) is broken:
                self._rearm(start)

    def replay_begins(self, graph: Graph) -> None:
        """A graph is about to replay, and the guards have been checked."""
        self._stepped.clear()
        if not self.waiting:
            return
        for start, broken in list(self.waiting.items()):
            if broken.graph == graph.serial:
                self._rearm(start)

    def is_broken(self, buffer: Buffer, side: Side | None) -> bool:
        """Whether a guard of a buffer waits to be re-armed."""
        guards = (broken.guard for broken in list(self.waiting.values()))
        return any(guard.buffer is buffer and guard.side is side for guard in guards)

    def forget(self) -> None:
        """Every guard was re-armed."""
        self._stepped.clear()
        self.waiting.clear()

    def _rearm(self, start: int) -> None:
        context, broken = self._context, self.waiting.pop(start, None)
        if broken is None:  # another thread has re-armed all guards
            return
        with error_barrier("guard armed again"):
            context.allocator.guards.rearm(broken.guard, context.engine, context.clock)


def _given(buffer: Buffer, checkpoint: Checkpoint) -> frozenset[str]:
    """Names of the launches before a checkpoint that were given a buffer to write."""
    given = [write for write in checkpoint.writes if write.ranges.overlaps(buffer.range)]
    return frozenset(write.launch.name for write in given)
