"""When a broken guard is armed again: just before what broke it runs once more.

What a program wrote past a buffer's end it may read there, and goes on as if nothing had happened. A debugger that
wrote its canary over these bytes at once would make the program read canaries: it would break because it is watched.
So where the engine keeps them, they stay until a launch that was given the buffer in that phase begins again, or the
graph in whose replay it happened replays again. Then they are about to be written anew. What nobody was seen to write
stays for good; the guard still tells when it changes. But where operators passed unseen, any launch may have done it
that is given the buffer to write, besides those that were seen; and while they do, none arms anything: what has run
since the last boundary is not known. Where replays passed as well, so may any graph that was given it to write.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shadowgraph.checks.base import Checkpoint, Context
from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import NAP
from shadowgraph.model.graphs import Graph, Launch
from shadowgraph.model.guards import Guard, Side
from shadowgraph.model.phases import Phase

_MOST = 1024  # guards that wait


@dataclass(frozen=True, slots=True)
class _Broken:
    """A guard that waits.

    Attributes
    ----------
    graph
        Serial of the graph in whose replay it broke, or None.
    names
        Launches that may have broken it, where it was not in a replay.
    unseen
        Not all launches were seen at that time.
    passed
        Nor were replays.
    """

    guard: Guard
    graph: int | None
    names: frozenset[str]
    unseen: bool
    passed: bool


class Rearming:
    """Broken guards, each with what it waits for. The caller holds the debugger's lock.

    Attributes
    ----------
    waiting
        By where a guard begins; empty in a program without damage, which is what its replay path asks.
    seen_since
        When operators were last seen again, among checkpoints; infinite while they are not.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.waiting: dict[int, _Broken] = {}
        self.seen_since: float = 0

    def broken(self, guard: Guard, checkpoint: Checkpoint) -> None:
        """A check found a guard broken; what did it stands in the checkpoint."""
        if not self._context.engine.keeps:
            return
        passed = checkpoint.at == NAP  # the replay that it names is only the last one before
        replay = checkpoint.phase is Phase.REPLAY and checkpoint.graph is not None and not passed
        graph = checkpoint.graph.serial if replay and checkpoint.graph is not None else None
        given = [write for write in checkpoint.writes if write.ranges.overlaps(guard.buffer.range)]
        names = frozenset() if replay else frozenset(write.launch.name for write in given)
        self.waiting.pop(guard.whole.start, None)
        while len(self.waiting) >= _MOST:  # of those that wait longest many are gone
            self.waiting.pop(next(iter(self.waiting), 0), None)
        unseen = passed or (not replay and checkpoint.order < self.seen_since)
        self.waiting[guard.whole.start] = _Broken(guard, graph, names, unseen, passed)

    def due(self, launch: Launch) -> list[_Broken]:
        """Guards that a launch of host code, which is about to run, may have broken: unless another one of
        those that may have has run since the last boundary. Then the damage may be there already."""
        found = []
        for broken in list(self.waiting.values()):
            where, unseen = broken.guard.buffer.range, broken.unseen
            named = launch.name in broken.names
            given = (p for p in launch.pointers if p.may_write or named)
            if (unseen or named) and any(p.view.hull.overlaps(where) for p in given):
                before = [write for write in self._context.writes if unseen or write.launch.name in broken.names]
                if not any(write.ranges.overlaps(where) for write in before):
                    found.append(broken)
        return found

    def arm(self, due: Iterable[_Broken]) -> None:
        """Arm guards, which have been looked at; not those that wait for something else since then."""
        for broken in due:
            start = broken.guard.whole.start
            if self.waiting.get(start) is broken:
                self._arm(start)

    def replay_begins(self, graph: Graph) -> None:
        """A graph is about to replay, and guards have been looked at."""
        for start, broken in list(self.waiting.items()):
            if broken.graph == graph.serial or (broken.passed and graph.writers(broken.guard.buffer.range)):
                self._arm(start)

    def is_broken(self, buffer: Buffer, side: Side | None) -> bool:
        """Whether a guard of a buffer waits."""
        guards = (broken.guard for broken in list(self.waiting.values()))
        return any(guard.buffer is buffer and guard.side is side for guard in guards)

    def forget(self) -> None:
        """Every guard was armed anew."""
        self.waiting.clear()

    def _arm(self, start: int) -> None:
        context, broken = self._context, self.waiting.pop(start, None)
        if broken is None:  # another thread has armed everything
            return
        guard = broken.guard
        with context.allocator.lock.within, error_barrier("guard armed again"):  # no block changes hands meanwhile
            if context.allocator.may_arm(guard, context.clock):
                context.engine.rearm(guard)
