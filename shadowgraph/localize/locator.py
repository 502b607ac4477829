"""Localization of the node that changed bytes: the next replay of the graph is probed, with a comparison after every
node.

A failed check says that bytes changed in a replay. The following replay is probed, and the first node that changes
those bytes is the culprit. A probe of all tracked memory gives write sets.

The monitor calls it around replays, in the replaying thread. `replay_begins` and `replay_ended` of a complete replay
run under the debugger's lock, on a device after a wait for it; `ask`, `noticed` and `dropped` with or without it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Sized
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from shadowgraph.checks.base import Context, Detection
from shadowgraph.checks.culprits import culprit_of_node
from shadowgraph.checks.kinds import kind_of
from shadowgraph.checks.out_of_bounds.view_partition import cells_of
from shadowgraph.checks.probed import CellChange, Change, Probed
from shadowgraph.checks.registry import Checks
from shadowgraph.common.internal_errors import error_barrier, log
from shadowgraph.graphs.rerunning import state_within
from shadowgraph.localize.location import Location
from shadowgraph.localize.probing import PIECES, Plan, cut, nearest, tracked
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Culprit, Finding, Severity, Status
from shadowgraph.model.graphs import Graph
from shadowgraph.model.guards import Side
from shadowgraph.model.phases import Phase
from shadowgraph.model.probes import Fallback, Hit, Outcome, Probe
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.reruns import AllocationOf
from shadowgraph.model.write_sets import Place, WriteSets, write_sets_of
from shadowgraph.tracking.active_guards import ActiveGuards
from shadowgraph.tracking.readable import readable
from shadowgraph.tracking.writes import Write

NOT_PROBED = "its nodes could not be run one by one"
NOTHING = "no memory is tracked"
GONE = "the graph was gone before its next replay"
_KEPT = 1024  # ids kept of findings that were looked for
_OUTCOMES = 4  # of each graph


@dataclass(slots=True)
class _Want:
    """A finding whose culprit is being looked for, and its damaged bytes."""

    finding: int
    buffer: Buffer
    side: Side | None
    damage: tuple[ByteRange, ...]
    alone: bool = False  # there was no room for all hits of the replay before
    hidden: bool = False  # damage was there already, so that a write of equal bytes would not have shown


@dataclass(slots=True)
class _Armed:
    """A replay to be probed, and later its outcome."""

    plan: Plan
    wants: list[_Want]
    handles: list[Location]
    everything: bool
    pieces: dict[int, Buffer]  # by part
    cells: dict[int, Buffer] = field(default_factory=dict)  # by part
    suspects: list[Buffer] = field(default_factory=list)
    probe: Probe | None = None
    outcome: Outcome | None = None


@dataclass(slots=True)
class Locator:
    """Requests probed replays and passes on their outcomes.

    Parameters
    ----------
    located, not_seen
        Called with the nodes of a finding, and for a finding whose damage did not happen again in a replay.
    needs_culprit
        Whether a finding's culprit is unknown.
    is_broken
        Whether a guard holds damage now.

    Attributes
    ----------
    write_sets
        The latest write sets of each graph, by its serial.
    reruns
        Whether a graph that cannot be probed may be run in part, several times, before a replay.
    armed
        Replays to be probed, by the graph's serial.
    """

    context: Context
    checks: Checks
    standing: ActiveGuards
    located: Callable[[int, tuple[Culprit, ...]], None]
    not_seen: Callable[[int, int], None]
    needs_culprit: Callable[[int], bool]
    is_broken: Callable[[Buffer, Side | None], bool] = lambda buffer, side: False
    write_sets: dict[int, WriteSets] = field(default_factory=dict)
    reruns: bool = True
    armed: dict[int, _Armed] = field(default_factory=dict)
    _wants: dict[int, list[_Want]] = field(default_factory=dict)
    _asked: dict[int, list[Location]] = field(default_factory=dict)
    _outcomes: dict[int, deque[Outcome]] = field(default_factory=dict)  # evidence may arrive some replays later
    _refused: set[int] = field(default_factory=set)  # serials of graphs that could not be probed
    _surveyed: set[int] = field(default_factory=set)
    _tried: dict[int, None] = field(default_factory=dict)  # ids of findings, oldest first
    _surveys: bool = False  # whether every graph is probed once without a request
    _due: tuple[Sized, ...] = ()  # while all of these are empty, no replay is to be probed

    def __post_init__(self) -> None:
        self._surveys = self.context.settings.locate == "all"
        self._due = (self._wants, self._asked, *(check.pending for check in self.checks.probed))

    def forget(self) -> None:
        """Stop looking for all culprits."""
        for known in (self._wants, self._asked, self.armed, self._outcomes, self._tried):
            known.clear()

    def ask(self, graphs: Sequence[Graph]) -> Location:
        """Have all tracked memory probed in the next replay of the given graphs."""
        handle = Location(tuple(graph.serial for graph in graphs))
        for graph in graphs:
            self._asked.setdefault(graph.serial, []).append(handle)
        return handle

    def noticed(self, draft: Detection, kept: Finding, new: bool) -> None:
        """A finding was kept: look for its culprit in the next replay if an unknown node did it."""
        graph = draft.graph
        if graph is None or not self._is_locatable(draft, kept):
            return
        again = not new and self._is_tried_enough(kept, graph)
        wants = self._wants.setdefault(graph.serial, [])
        if again or kept.culprit.status is Status.CONFIRMED or self._is_wanted(kept.id, graph):
            return
        wants.append(_Want(kept.id, draft.buffer, draft.side, _damage(draft)))
        self._tried[kept.id] = None
        if len(self._tried) > _KEPT:
            del self._tried[next(iter(self._tried))]

    def _is_locatable(self, draft: Detection, kept: Finding) -> bool:
        if self.context.settings.locate == "off" or kept.severity is not Severity.ERROR or not kept.id:
            return False
        return _is_damage_in_replay(draft) and draft.side is not Side.ROW

    def _is_tried_enough(self, kept: Finding, graph: Graph) -> bool:
        """Whether a finding was looked for and is not due again: it is at each doubling, if the graph can be probed."""
        return kept.id in self._tried and (kept.occurrences.bit_count() != 1 or graph.serial in self._refused)

    def _is_wanted(self, finding: int, graph: Graph) -> bool:
        """Whether the next or the running probe of a graph looks for a finding."""
        armed = self.armed.get(graph.serial)
        wants = (*self._wants.get(graph.serial, ()), *(armed.wants if armed is not None else ()))
        return any(want.finding == finding for want in wants)

    def culprits(self, draft: Detection) -> tuple[Culprit, ...]:
        """The culprits, if the replay of the detection was probed and its outcome shows them."""
        graph = draft.graph
        if graph is None or not _is_damage_in_replay(draft):
            return ()
        outcome = next((one for one in self._outcomes.get(graph.serial, ()) if one.replay == draft.replay), None)
        if outcome is None:
            return ()
        return self._culprits(graph, outcome, _meeting(outcome.hits, _damage(draft)), draft.buffer)

    # -- around a replay ---------------------------------------------------------------------------------------

    def is_due(self, graph: Graph) -> bool:
        """Whether the replay that begins is to be probed."""
        if not (self._surveys or any(self._due)):
            return False  # this is the replay path
        serial = graph.serial
        return bool(
            self._wants.get(serial)
            or serial in self._asked
            or self._is_survey_due(graph)
            or any(serial in check.pending for check in self.checks.probed)
        )

    def replay_begins(self, graph: Graph) -> None:
        """Ask the backend to probe the replay, which `is_due`. No other work should run on the device meanwhile."""
        with error_barrier("closer look"):
            self._arm(graph, self._is_survey_due(graph))

    def _is_survey_due(self, graph: Graph) -> bool:
        return self._surveys and graph.replays > 1 and graph.serial not in self._surveyed

    def _arm(self, graph: Graph, due: bool) -> None:
        serial = graph.serial
        plan, wants = Plan(self.context.settings.locate_memory), self._take_wants(serial)
        armed = _Armed(plan, wants, self._asked.pop(serial, []), due, {})
        armed.everything = due or bool(armed.handles)
        self._add_damage(armed)
        targets = tuple(range(len(armed.plan.parts)))  # the parts to find a culprit for, ahead of all others
        self._add_surroundings(graph, armed)
        self._add_suspects(graph, armed)
        self._add_cells(graph, armed)
        if armed.plan.parts:
            state = partial(self._state, graph, armed.plan.parts)
            fallback = Fallback(targets, state) if targets and self.reruns else None
            deliver = partial(self._deliver, serial, armed)
            armed.probe = graph.probe = Probe(tuple(armed.plan.parts), deliver, fallback)
            self.armed[serial] = armed
            return
        for handle in armed.handles:
            handle.deliver(graph.name, Outcome(graph.replays, refused=NOTHING), None)

    def _take_wants(self, serial: int) -> list[_Want]:
        """Take the findings of a graph that can be looked for now."""
        wants = [want for want in self._wants.pop(serial, []) if self.needs_culprit(want.finding)]
        return [want for want in wants if readable(want.buffer, self.context.allocator)]

    def _add_damage(self, armed: _Armed) -> None:
        for want in armed.wants:
            want.hidden = self.is_broken(want.buffer, want.side)
            armed.plan.add_damaged(want.buffer, want.side, want.damage, self.context.settings.near_guard)

    def _add_surroundings(self, graph: Graph, armed: _Armed) -> None:
        """Add guards and tracked memory: everything if a survey is due, else the guards near the damage."""
        context, wants, guards = self.context, armed.wants, self.standing.now()
        if armed.everything:
            self._surveyed.add(graph.serial)
            armed.plan.add_guards(guards)
            armed.plan.add_memory(tracked(context.ledger, context.allocator.device), context.names)
        elif wants and not any(want.alone for want in wants):
            armed.plan.add_guards(nearest(guards, graph, wants[0].damage))

    def _add_suspects(self, graph: Graph, armed: _Armed) -> None:
        """Add the buffers and the pieces that checks want to see again."""
        serial, checks = graph.serial, self.checks.probed
        armed.suspects = [buffer for check in checks for buffer in check.buffers_wanted(serial)]
        again = [(buffer, buffer.range) for buffer in armed.suspects]
        pieces = [piece for check in checks for piece in check.pieces_wanted(serial)]
        for buffer, part in (*again, *cut(pieces)):
            place = armed.plan.add(part) if readable(buffer, self.context.allocator) else None
            if place is not None:
                armed.pieces[place] = buffer

    def _add_cells(self, graph: Graph, armed: _Armed) -> None:
        """Add the cells of buffers of which launches were given parts, as far as there is room."""
        again = [buffer for check in self.checks.probed for buffer in check.cells_wanted(graph.serial)]
        for buffer in {b.serial: b for b in (*again, *armed.plan.buffers.values())}.values():
            cells = cells_of(graph, buffer) if readable(buffer, self.context.allocator) else []
            if len(armed.cells) + len(cells) > PIECES or buffer.nbytes > armed.plan.room:
                continue
            for cell in cells:
                place = armed.plan.add(cell)
                if place is not None:
                    armed.cells[place] = buffer

    def _state(self, graph: Graph, parts: Sequence[ByteRange], allocation_of: AllocationOf) -> list[ByteRange]:
        """The ranges that a graph may write, for a backend that has to run it in part."""
        context = self.context
        return state_within(graph, context.allocator, allocation_of, parts, context.settings.locate_memory)

    def _deliver(self, serial: int, armed: _Armed, outcome: Outcome) -> None:
        armed.outcome = outcome
        if outcome.shows:
            self._outcomes.setdefault(serial, deque(maxlen=_OUTCOMES)).append(outcome)

    def replay_ended(self, graph: Graph, meanwhile: Iterable[Write] = (), complete: bool = True) -> None:
        """Pass on the outcome of a probed replay.

        Parameters
        ----------
        meanwhile
            Launches that were seen since it began.
        complete
            Whether it ran to its end.
        """
        armed = self.armed.pop(graph.serial, None)
        if armed is None:
            return
        if graph.probe is armed.probe:
            graph.probe = None  # the backend did not take it
        outcome = armed.outcome
        if not complete:  # absent damage proves nothing: the replay was cut short
            self._wants.setdefault(graph.serial, []).extend(armed.wants)
            self._asked.setdefault(graph.serial, []).extend(armed.handles)
            return
        outcome = outcome or Outcome(graph.replays, refused=graph.unread or NOT_PROBED)
        sets = None
        if outcome.refused is not None:
            self._note_refusal(graph, outcome)
        else:
            self._refused.discard(graph.serial)
            sets = self._write_sets(graph, armed, outcome)
        for handle in armed.handles:
            handle.deliver(graph.name, outcome, sets)
        if outcome.shows:
            self._conclude(graph, armed, outcome)
        if outcome.refused is None:
            self._judge(graph, armed, outcome, meanwhile)

    def _note_refusal(self, graph: Graph, outcome: Outcome) -> None:
        how = "no closer look" if outcome.search is None else "looked at by running its first nodes only"
        said = "shadowgraph: replay %d of %s: %s: %s"
        log(logging.WARNING, said, outcome.replay, graph.name, how, outcome.refused)
        self._refused.add(graph.serial)
        self._drop_suspicions(graph)

    def dropped(self, graph: Graph) -> None:
        """A graph is gone."""
        for handle in self._asked.get(graph.serial, ()):
            handle.deliver(graph.name, Outcome(graph.replays, refused=GONE), None)
        for known in (self._wants, self._asked, self.armed, self._outcomes, self.write_sets):
            known.pop(graph.serial, None)
        self._surveyed.discard(graph.serial)
        self._refused.discard(graph.serial)
        self._drop_suspicions(graph)

    # -- parts -------------------------------------------------------------------------------------------------

    def _drop_suspicions(self, graph: Graph) -> None:
        for check in self.checks.probed:
            check.pending.pop(graph.serial, None)

    def _conclude(self, graph: Graph, armed: _Armed, outcome: Outcome) -> None:
        near = self.context.settings.near_guard
        for want in armed.wants:
            if not self.needs_culprit(want.finding):
                continue
            hits = _meeting(outcome.hits, want.damage) or _meeting(outcome.hits, _guards_of(want, near))
            found = self._culprits(graph, outcome, hits, want.buffer)
            if found:
                self.located(want.finding, found)
            elif outcome.dropped and not want.alone:
                want.alone = True
                self._wants.setdefault(graph.serial, []).append(want)
            elif want.hidden:
                self._tried.pop(want.finding, None)  # a later report finds the guard intact before a replay
            elif outcome.search is None or not outcome.dropped:  # else the change was seen without a node
                self.not_seen(want.finding, outcome.replay)

    def _culprits(self, graph: Graph, outcome: Outcome, hits: list[Hit], buffer: Buffer) -> tuple[Culprit, ...]:
        """A culprit for each node of some hits, in the order in which the nodes ran."""
        context, by_node = self.context, dict[int, Hit]()
        for hit in hits:
            by_node.setdefault(hit.node, hit)
        return tuple(
            culprit_of_node(
                graph, node, outcome.replay, buffer.range, ByteRange(hit.first, hit.last + 1), context.ledger,
                context.names, outcome.search,
            )
            for node, hit in by_node.items()
        )  # fmt: skip

    def _write_sets(self, graph: Graph, armed: _Armed, outcome: Outcome) -> WriteSets | None:
        if not armed.everything:
            return None
        places = {part: self._place(buffer) for part, buffer in armed.plan.buffers.items()}
        sets = write_sets_of(graph.name, outcome, places, map(self._place, armed.plan.left_out))
        self.write_sets[graph.serial] = sets
        return sets

    def _place(self, buffer: Buffer) -> Place:
        return Place(buffer.serial, self.context.names.name_of(buffer)[0], buffer.start, buffer.nbytes)

    def _judge(self, graph: Graph, armed: _Armed, outcome: Outcome, meanwhile: Iterable[Write]) -> None:
        """Let the checks that use write sets see them."""
        if not (armed.everything or armed.pieces or armed.cells):
            return
        seen = _probed(graph, armed, outcome, meanwhile)
        with ExitStack() as judges:  # in sync mode a finding is raised: the other checks run all the same
            for check in reversed(self.checks.probed):  # callbacks run from the last to the first
                if armed.everything or armed.suspects or not check.needs_whole_buffers:
                    judges.callback(check.probed, seen)


def _is_damage_in_replay(draft: Detection) -> bool:
    return draft.phase is Phase.REPLAY and kind_of(draft.code).node_is_sought


def _probed(graph: Graph, armed: _Armed, outcome: Outcome, meanwhile: Iterable[Write]) -> Probed:
    """The outcome of a probed replay, in the form that the checks take."""
    known = {**armed.plan.buffers, **armed.pieces} if armed.everything else armed.pieces
    changes = tuple(Change(known[hit.part], hit) for hit in outcome.hits if hit.part in known)
    outside = RangeSet.of(part for write in meanwhile if write.node is None for part in write.ranges)
    parts = armed.plan.parts
    cells = (CellChange(armed.cells[h.part], parts[h.part], h) for h in outcome.hits if h.part in armed.cells)
    return Probed(graph, outcome.replay, changes, outside, tuple(cells))


def _guards_of(want: _Want, near: int) -> tuple[ByteRange, ...]:
    """The range of a broken guard, all of it that was probed."""
    plan = Plan(room=1 << 62)
    plan.add_damaged(want.buffer, want.side, want.damage, near)
    return tuple(plan.parts)


def _damage(draft: Detection) -> tuple[ByteRange, ...]:
    """The changed bytes; ranges beyond the listed ones as one more range."""
    listed = [ByteRange(first, last + 1) for first, last in draft.ranges]
    if draft.ranges_total > len(listed):
        listed.append(ByteRange(listed[-1].stop, draft.last + 1))
    return tuple(listed)


def _meeting(hits: Sequence[Hit], damage: Sequence[ByteRange]) -> list[Hit]:
    """Hits that overlap damaged bytes."""
    return [hit for hit in hits if any(part.overlaps(ByteRange(hit.first, hit.last + 1)) for part in damage)]
