"""Launch-by-launch checks of host code that broke a guard: one check before and one after every launch that is seen.

On a device the checks of a phase boundary show only that some launch since the last boundary did it. Between two checks
around one launch nothing else runs, so that this launch did it; damage between two launches comes from an unseen
launch. This holds if the device has finished all queued work, on every stream, before the first of the two checks, and
while no other thread is in the middle of a launch.

`LaunchStepper` decides; the monitor makes the checks, in the thread of the event. `begins`, `ran`, `boundary`, `guards`
and `replay_began` are called under the debugger's lock, the other methods with or without it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from shadowgraph.checks.base import Context, Detection, Step
from shadowgraph.checks.kinds import kind_of
from shadowgraph.common.internal_errors import log
from shadowgraph.localize.flight_recorder import FlightRecorder
from shadowgraph.model.findings import Culprit, Finding, Severity, Status
from shadowgraph.model.graphs import Graph
from shadowgraph.model.guards import Guard, Side
from shadowgraph.model.journal import Ran, Replayed
from shadowgraph.model.launches import Launch
from shadowgraph.model.phases import Phase
from shadowgraph.tracking.writes import write_of

UNSEEN = "unseen"  # kind of a culprit that is an unseen launch
_MOST = 20_000  # most launches checked for one finding
_KEPT = 1024  # ids kept of findings that were looked for

_Key = tuple[str, int, Side | None]


@dataclass(slots=True)
class _Want:
    """A finding whose culprit is being looked for.

    Attributes
    ----------
    key, mark
        The finding's key and fingerprint in the finding store.
    graph
        The graph before whose replay the search ends; None for any graph.
    partial
        Whether part of the present phase had run before the search began, so that it includes the next phase.
    again
        Whether the damage was seen again.
    """

    finding: int
    key: str
    mark: str
    graph: int | None
    partial: bool
    again: bool = False


class LaunchStepper:
    """Decides when launches are checked one by one; the monitor makes the checks.

    Attributes
    ----------
    armed
        Whether launches are checked one by one now.
    """

    def __init__(self, context: Context, journal: FlightRecorder, not_seen: Callable[[int, int], None]) -> None:
        self._context, self._journal, self._not_seen = context, journal, not_seen
        self._wants: dict[_Key, _Want] = {}
        self._tried: dict[int, None] = {}  # ids of findings, oldest first
        self._begun: dict[int, Launch] = {}  # the launch that begins or runs, by thread id
        self._crowded: set[int] = set()  # threads during whose launch another thread's launch began
        self._alone = False  # whether a check was made and no launch was seen since
        self._steps = 0
        self._guards: tuple[tuple[Guard, ...], tuple[Guard, ...]] | None = None
        self.armed = False

    def forget(self) -> None:
        """Stop looking for all culprits."""
        self._wants.clear()
        self._disarm()

    def noticed(self, draft: Detection, kept: Finding, key: str, mark: str) -> None:
        """A finding was kept: look for its culprit if host code broke a guard and the launch is not known."""
        context = self._context
        if not context.engine.asynchronous or context.settings.locate == "off":
            return
        if not _is_damage_by_host_code(draft) or not self._is_due(kept):
            return
        where = _key(draft)
        if where not in self._wants:
            graph = draft.graph.serial if draft.graph is not None else None
            self._wants[where] = _Want(kept.id, key, mark, graph, self._is_under_way())
            self._tried[kept.id] = None
            if len(self._tried) > _KEPT:
                del self._tried[next(iter(self._tried))]
            self.armed, self._guards = True, None

    def _is_due(self, kept: Finding) -> bool:
        """Whether to look for a finding's culprit, again only at each doubling of its occurrences."""
        known = kept.culprit.status is Status.CONFIRMED or kept.culprit.kind == UNSEEN
        if known or not kept.id or kept.severity is not Severity.ERROR:
            return False
        return kept.id not in self._tried or kept.occurrences.bit_count() == 1

    def identity(self, draft: Detection) -> tuple[str, str] | None:
        """Key and fingerprint of the finding that this detection repeats, while its culprit is looked for."""
        if not self.armed or draft.phase is Phase.REPLAY:
            return None
        want = self._wants.get(_key(draft))
        if want is None:
            return None
        want.again = True
        return want.key, want.mark

    def unseen(self, draft: Detection) -> tuple[Culprit, ...]:
        """The culprit of damage between two launches, none of which was seen: the place where the program launched
        next."""
        step = draft.checkpoint.step
        if step is None or step.ran or not step.sure or draft.culprits:
            return ()
        frame = step.launch.stack[0] if step.launch is not None and step.launch.stack else None
        file, line = (frame.file, frame.line) if frame is not None else (None, None)
        return (Culprit(Status.UNKNOWN, UNSEEN, file=file, line=line),)

    def begins(self, launch: Launch) -> Step:
        """A launch is about to run, all queued work is done, and a check follows: the step that the check belongs
        to."""
        self._steps += 1
        thread, alone = threading.get_ident(), self._alone
        before = self._begun.get(thread)
        self._begun[thread], self._alone = launch, True
        self._crowded.discard(thread)
        crowded = len(self._begun) > 1
        if crowded:
            self._crowded.update(self._begun)
        if before is not None:  # it launches this one, or wrote no tracked memory: it may be the culprit
            self._context.writes.add(write_of(before, None))
        return self._step(launch, ran=False, sure=alone and not crowded and not self._context.writes)

    def ran(self, launch: Launch) -> Step:
        """A launch ran, and a check follows: the step that the check belongs to."""
        thread, writes = threading.get_ident(), self._context.writes
        begun, alone = self._begun.get(thread), self._alone and thread not in self._crowded
        self._alone = True
        if begun is not None and begun != launch:  # in the middle of another launch
            writes.add(write_of(begun, None))
            return self._step(launch, ran=True, sure=False)
        self._begun.pop(thread, None)
        return self._step(launch, ran=True, sure=alone and begun is not None and len(writes) == 1)

    def boundary(self) -> Step:
        """A check is made at the end of a phase: the step that it belongs to."""
        alone = self._alone and not self._begun and not self._context.writes
        self._begun.pop(threading.get_ident(), None)
        self._alone = True
        return self._step(None, ran=False, sure=alone)

    def look_away(self) -> None:
        """A launch or replay ran without a check."""
        self._alone = False

    def _step(self, launch: Launch | None, ran: bool, sure: bool) -> Step:
        return Step(launch, ran, sure, self._context.replays())

    def give_up(self) -> bool:
        """Whether so many launches were checked that the search ends here."""
        if self._steps > _MOST:
            said = "shadowgraph: %s launches were checked one by one, and none did it again"
            log(logging.WARNING, said, f"{_MOST:,}")
            self.forget()
        return not self.armed

    def guards(self, standing: tuple[Guard, ...]) -> tuple[Guard, ...]:
        """The active guards, with the guards of wanted findings extended to their whole length."""
        if self._guards is None or self._guards[0] is not standing:
            sides = {(serial, side) for _, serial, side in self._wants}
            wide = (
                Guard(g.buffer, g.side, g.whole, g.whole, g.rearm) if (g.buffer.serial, g.side) in sides else g
                for g in standing
            )
            self._guards = standing, tuple(wide)
        return self._guards[1]

    def _is_under_way(self) -> bool:
        """Whether host code has launched work since the last replay began."""
        launches, replays = self._journal.launches, self._journal.replays
        return bool(launches) and (not replays or Ran(*launches[-1]).time >= Replayed(*replays[-1]).time)

    def ends(self, graph: Graph) -> bool:
        """Whether a search ends when this graph's replay begins."""
        return any(want.graph in (None, graph.serial) for want in self._wants.values())

    def replay_began(self, graph: Graph, needs_culprit: Callable[[int], bool]) -> None:
        """A replay begins, and all checks before it have been dispatched: end the searches for it."""
        for key, want in list(self._wants.items()):
            if want.graph not in (None, graph.serial):
                continue
            if not needs_culprit(want.finding):
                del self._wants[key]
            elif want.partial:
                want.partial = False
            else:
                del self._wants[key]
                if not want.again:
                    self._not_seen(want.finding, graph.replays)
        self._guards = None
        if not self._wants:
            self._disarm()

    def dropped(self, graph: Graph) -> None:
        """A graph is gone: its searches end."""
        self._wants = {key: want for key, want in self._wants.items() if want.graph != graph.serial}
        if not self._wants:
            self._disarm()

    def _disarm(self) -> None:
        self.armed = self._alone = False
        self._begun.clear()
        self._crowded.clear()
        self._steps, self._guards = 0, None


def _is_damage_by_host_code(draft: Detection) -> bool:
    """Whether a guard next to a buffer was found broken outside replays."""
    host = draft.phase in (Phase.PREPARE, Phase.BETWEEN, Phase.SETUP, Phase.EAGER)
    return kind_of(draft.code).writer_may_come_late and host and draft.side in (Side.BEFORE, Side.AFTER)


def _key(draft: Detection) -> _Key:
    return draft.code, draft.buffer.serial, draft.side
