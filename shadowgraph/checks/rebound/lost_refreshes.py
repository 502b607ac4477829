"""SG108 with nothing declared: host code refreshes memory that no code reads, and a graph reads its twin, which stays
old.

Two memories are taken for *twins* in two cases. One was filled from the other by a copy of the same form before the
capture: ``a = b.clone()``, or a ``copy_`` between them. Or both are windows of one buffer with the same form, and they
are all of it that is used since the capture: graphs read the one alone, and host code writes the other alone.

At an observed replay it is a *sighting* if the twin was written since the graph's last replay, by a launch that does
not read it, with other values than before and than the graph's memory has. From the first such write on it is noted
which operators read the twin: one read, by an operator, a kernel, the host or a graph, and the pair is dropped for
good. The second sighting is reported: then an earlier refresh was overwritten without having been read, and the graph's
memory held the same bytes throughout. Each refresh of the graph's memory takes all that back, and two sightings more
are needed from then on.

That is an error for ids and for vectors: a graph that indexes with ids of an older step reads the wrong rows. Of what
may be weights, which are floating point matrices or of 8 bits, it is a note. These may lag behind by design, and no
number of sightings tells that apart from a lost refresh: a target network follows every thousandth step, a reference
model never. A launch that reads the twin and writes the graph's memory, once the pair was reported, shows that the lag
is a habit: what was an error is a note then.

Silent are constants and weights, whatever graphs write themselves, staging buffers (they are read), results that are
saved to the twin, and twins that a graph reads, as of two graphs that replay in turn.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np

from shadowgraph.checks.base import Check, Checkpoint, Context, Detection
from shadowgraph.checks.rebound.check import ReboundInputs
from shadowgraph.checks.rebound.details import Rebound
from shadowgraph.checks.rebound.drafts import (
    LARGEST,
    Claims,
    Stale,
    certainly_made,
    first_reads,
    input_of,
    is_read,
    stale_draft,
)
from shadowgraph.checks.rebound.facts import Evidence
from shadowgraph.checks.rebound.twins import Twin, copied_twins, lone_windows
from shadowgraph.checks.row_epochs import unequal
from shadowgraph.graphs.dispatch.operand_notes import OperandNotes, order
from shadowgraph.graphs.dispatch.schemas import puts
from shadowgraph.model.buffers import Role
from shadowgraph.model.findings import Severity
from shadowgraph.model.graphs import Graph
from shadowgraph.model.launches import Access, LaunchKind, Pointer
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.stacks import Stack
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.foreign import still_there
from shadowgraph.tracking.writes import Write, WriteLog

_SUSPECTS = 256
_PATIENCE = 16  # replays with a refresh of a twin until its pair is given up without a verdict
_LONGEST = 64  # observed replays of any graph, after which it is given up, too
_LEARNING = 64  # observed replays since the latest capture until copies are not noted any more: set-up is over
_HOST_READS = 256  # remembered until the next replay
_SMALL = frozenset({"bool", "int8", "uint8"})  # masks and quantized weights, no ids


@dataclass(slots=True, eq=False)
class _Suspect:
    """A graph's memory, and its twin that host code has written since the capture.

    Attributes
    ----------
    since
        Number of the observed replay behind which the twin was first written.
    writes
        Writes to the twin since the graph last began to replay.
    sightings, needed
        So far, and until a report.
    found, other
        The first bytes of both memories at the latest sighting.
    latest, disturbed
        When the latest sighting was, and when something last took back what was seen before, by `order`: bytes arrive
        late.
    looks
        Number of replays before which the twin was written.
    told
        Whether there was enough evidence for a report.
    draft
        The latest report.
    """

    graph: Graph
    twin: Twin
    since: int
    writes: list[Write] = field(default_factory=list)
    written: bool = False
    sightings: int = 0
    needed: int = 2
    found: bytes = b""
    other: bytes = b""
    latest: int = 0
    disturbed: int = 0
    looks: int = 0
    told: bool = False
    draft: Detection | None = None

    def disturb(self) -> None:
        """Discard what was seen so far."""
        self.disturbed = next(order)

    def start_over(self) -> None:
        """Count sightings anew, and ask for more."""
        if self.sightings:
            self.needed += 2
        self.sightings, self.found, self.other = 0, b"", b""


@dataclass(slots=True, eq=False)
class _Look:
    """Bytes requested at the start of a replay, and the key of both ranges: the graph's own, and the twin's."""

    suspect: _Suspect
    write: Write
    time: int
    parts: list[bytes] = field(default_factory=list)


class LostRefreshes(Check):
    """Watches the twins of graphs' inputs.

    Parameters
    ----------
    declared
        The check of what is declared, which has precedence.
    notes
        Copies and reads by eager operators.
    claims
        What is reported, by this check and others.
    """

    needs_every_write = True

    def __init__(self, context: Context, declared: ReboundInputs, notes: OperandNotes, claims: Claims) -> None:
        super().__init__(context)
        self._declared, self._claims, self._notes, self._interest = declared, claims, notes, notes.interest()
        self._twins: dict[int, list[Twin]] = {}  # by the graph's serial, while host code has not written them
        self._windows: dict[int, list[tuple[TensorView, ByteRange]]] = {}  # windows, each with its buffer's range
        self._made: dict[int, RangeSet] = {}  # bytes that a graph's operators write, by its serial
        self._suspects: list[_Suspect] = []
        self._replays, self._learns_until = 0, _LEARNING
        self._near = RangeSet()  # bytes of all these
        self._host_reads: deque[ByteRange] = deque(maxlen=_HOST_READS)

    # -- captures -----------------------------------------------------------------------------------------------

    def captured(self, graph: Graph) -> None:
        live = self.context.graphs
        self._learns_until, self._notes.learns = self._replays + _LEARNING, True
        reads = [view for view in first_reads(graph) if view.nbytes <= LARGEST and view.contiguous]
        self._twins[graph.serial] = list(copied_twins(self.context, graph, reads, self._notes.copies))
        self._windows[graph.serial] = list(lone_windows(graph, reads))
        self._made[graph.serial] = certainly_made(graph)
        self._made = {serial: made for serial, made in self._made.items() if serial in live}
        self._twins = {serial: twins for serial, twins in self._twins.items() if serial in live and twins}
        self._windows = {serial: each for serial, each in self._windows.items() if serial in live and each}
        self._suspects = [s for s in self._suspects if s.graph.serial in live and not graph.touches(s.twin.where)]
        self._settle()

    def _settle(self) -> None:
        """Update which memory is watched, after pairs were added or dropped."""
        spans = [span for s in self._suspects for span in (s.twin.where, s.twin.home.hull)]
        spans += [span for twins in self._twins.values() for t in twins for span in (t.where, t.home.hull)]
        spans += [span for windows in self._windows.values() for _, span in windows]
        self._near = RangeSet.of(spans)
        unsure = {s.twin.where for s in self._suspects if not s.told}
        if unsure != set(self._interest.ranges):
            self._interest.want(unsure)

    def _drop(self, suspects: list[_Suspect]) -> None:
        if suspects:
            self._suspects = [each for each in self._suspects if each not in suspects]
            self._settle()

    def invalidate_writers(self) -> None:
        """After unseen writes: discard what was seen before."""
        for suspect in self._suspects:
            suspect.disturb()
            suspect.writes = []
        self._interest.reads.clear()
        self._host_reads.clear()

    # -- reads and writes ---------------------------------------------------------------------------------------

    @property
    def wants_known_writes(self) -> bool:
        return False

    def host_read(self, view: TensorView, how: str, stack: Stack, checkpoint: Checkpoint) -> None:
        if self._suspects:
            self._host_reads.append(view.hull)

    def written(self, write: Write, phase: Phase | None, graph: Graph | None) -> None:
        if not self._near or (graph is not None and write.stores is None):
            return
        touched = [p for p in write.launch.pointers if self._near.overlaps(p.view.hull)]
        if not touched and not any(self._near.overlaps(part) for part in write.ranges):
            return
        if graph is None:
            self._note_windows(write)
            self._note_twins(write)
        ended = [suspect for suspect in self._suspects if self._ends(suspect, write, touched, graph)]
        for suspect in ended:
            self._withdraw(suspect, write, touched)
        self._drop(ended)

    def _ends(self, suspect: _Suspect, write: Write, touched: list[Pointer], graph: Graph | None) -> bool:
        """Note what a launch did to a pair. Returns whether the pair is to be dropped for that."""
        where, writes = suspect.twin.where, suspect.writes
        suspect.written = suspect.written or write.ranges.overlaps(suspect.twin.home.hull)
        if any(_reads(write, pointer, where) for pointer in touched):
            return True
        if not write.ranges.overlaps(where):
            return False
        writes.append(write)
        guessed = len(writes) > 1 and any(_may_have_read(each) for each in writes)  # what another launch wrote
        return graph is not None or guessed

    def _withdraw(self, suspect: _Suspect, write: Write, touched: list[Pointer]) -> None:
        """A pair that was reported ends: if the launch copied the twin to the graph's memory, that lags on purpose."""
        twin, draft = suspect.twin, suspect.draft
        if draft is None or not write.ranges.overlaps(twin.home.hull):
            return
        if any(_reads(write, pointer, twin.where) for pointer in touched):
            assert isinstance(draft.facts, Rebound)
            facts = replace(draft.facts, lags=True)
            self.context.report(replace(draft, severity=Severity.NOTE, facts=facts))

    def _note_twins(self, write: Write) -> None:
        """Host code writes twins for the first time since the capture."""
        for serial, twins in list(self._twins.items()):
            new = [twin for twin in twins if write.ranges.overlaps(twin.where)]
            if new:
                self._twins[serial] = [twin for twin in twins if twin not in new]
                for twin in new:
                    self._suspect(serial, twin, write)

    def _note_windows(self, write: Write) -> None:
        """Host code writes another window of a buffer than the one that a graph reads."""
        for serial, windows in list(self._windows.items()):
            kept = []
            for home, whole in windows:
                parts = write.ranges.intersection(whole)
                twin = _window_twin(self.context, serial, home, whole, write) if parts else None
                if twin is not None:
                    self._suspect(serial, twin, write)
                elif not parts:
                    kept.append((home, whole))
            if len(kept) < len(windows):
                self._windows[serial] = kept
        self._keep_lone_windows(write)

    def _keep_lone_windows(self, write: Write) -> None:
        """Drop the pairs of buffers of which host code writes a third window: these hold several things."""
        dropped = []
        for suspect in self._suspects:
            whole, twin = suspect.twin.buffer.range, suspect.twin
            if twin.evidence is Evidence.WINDOW:
                parts = write.ranges.intersection(whole)
                if any(not twin.where.covers(part) and not twin.home.hull.overlaps(part) for part in parts):
                    dropped.append(suspect)
        self._drop(dropped)

    def _suspect(self, serial: int, twin: Twin, write: Write) -> None:
        graph = self.context.graphs.get(serial)
        saved = any(self._is_made(p) for p in write.launch.pointers if p.may_read)
        declared = graph is None or self._declared.binds(graph, twin.home.hull)
        if graph is None or declared or saved or is_read(self.context, twin.where) or len(self._suspects) >= _SUSPECTS:
            return
        self._suspects.append(_Suspect(graph, twin, self._replays))
        self._settle()

    def _is_made(self, pointer: Pointer) -> bool:
        """Whether a pointer leads to memory that graphs write: what is written from there is a result."""
        where = pointer.view.hull
        buffer = self.context.ledger.owner(where.start, where.stop)
        in_pool = buffer is not None and buffer.role is Role.POOL
        return in_pool or any(made.overlaps(where) for made in self._made.values())

    # -- replays ------------------------------------------------------------------------------------------------

    def replay_begins(self, checkpoint: Checkpoint) -> None:
        self._replays += 1
        if self._replays == self._learns_until:
            self._notes.learns = False
        if not self._suspects:
            return
        self._heed_reads()
        given_up = [each for each in self._suspects if not each.told and self._replays > each.since + _LONGEST]
        for suspect in self._suspects:
            if suspect.graph is not checkpoint.graph:
                continue
            if suspect.written:
                suspect.disturb()
                suspect.written = False
            if suspect.writes:
                self._look_at(suspect, checkpoint)
                suspect.looks += 1
                suspect.writes = []
                if suspect.looks >= _PATIENCE and not suspect.told:
                    given_up.append(suspect)
        self._drop(given_up)

    def _heed_reads(self) -> None:
        """Drop the pairs whose twin was read since the last replay."""
        reads: list[ByteRange] = []
        for noted in (self._interest.reads, self._host_reads):
            while noted:
                reads.append(noted.popleft())
        if reads:
            self._drop([s for s in self._suspects if any(s.twin.where.overlaps(where) for where in reads)])

    def _look_at(self, suspect: _Suspect, checkpoint: Checkpoint) -> None:
        twin = suspect.twin
        if still_there(twin.buffer) and still_there(twin.other):
            look = _Look(suspect, suspect.writes[-1], next(order))
            self.context.engine.fetch(checkpoint, [(look, where) for where in (twin.home.hull, twin.where)])

    # -- comparison ---------------------------------------------------------------------------------------------

    def owns(self, key: object) -> bool:
        return isinstance(key, _Look)

    def fetched(self, key: object, data: bytes, checkpoint: Checkpoint) -> None:
        assert isinstance(key, _Look)
        key.parts.append(data)
        if len(key.parts) == 2 and key.suspect in self._suspects:
            self._judge(key, checkpoint)

    def _judge(self, look: _Look, checkpoint: Checkpoint) -> None:
        suspect, found, other = look.suspect, look.parts[0], look.suspect.twin.values(look.parts[1])
        unseen = suspect.sightings > 0 and found != suspect.found  # refreshed by code that was not seen
        if unseen or suspect.disturbed > suspect.latest:
            suspect.start_over()
        items = np.flatnonzero(unequal(found, other, suspect.twin.home.itemsize)).tolist()
        if not items or other == suspect.other:
            return
        suspect.sightings += 1
        suspect.found, suspect.other, suspect.latest = found, other, look.time
        if suspect.sightings >= suspect.needed:
            suspect.told = True
            self._settle()
            self._report(look, items, checkpoint)

    def _report(self, look: _Look, items: list[int], checkpoint: Checkpoint) -> None:
        suspect, twin = look.suspect, look.suspect.twin
        if not self._claims.take(suspect.graph, twin.home.start, suspect):
            return  # it is reported as another twin's, or by its name
        stale = Stale(twin.home, twin.buffer, items, suspect.found, suspect.other)
        facts = Rebound("", "", None, twin.where, twin.other, False, twin.evidence, suspect.sightings)
        draft = stale_draft(checkpoint, stale, str(twin.evidence), look.write, facts)
        if _may_be_weights(twin.home):
            draft = replace(draft, severity=Severity.NOTE)
        suspect.draft = replace(draft, checkpoint=replace(checkpoint, writes=WriteLog()))
        self.context.report(draft)


def _may_be_weights(view: TensorView) -> bool:
    """Whether a tensor may hold a model's weights: no ids, and no number for each request."""
    matrix = sum(size > 1 for size in view.shape) > 1
    return view.dtype in _SMALL or (matrix and "float" in view.dtype)


def _reads(write: Write, pointer: Pointer, where: ByteRange) -> bool:
    """Whether a launch has read memory in a range through a pointer. A kernel that stores there, or whose
    stores are not seen, is taken for a writer; so is an operator that writes some elements."""
    if not pointer.may_read or not pointer.view.hull.overlaps(where):
        return False
    if write.launch.kind is LaunchKind.TRITON and pointer.access is Access.UNKNOWN:
        return not write.ranges.overlaps(where)
    return not (pointer.may_write and puts(write.launch.name))


def _may_have_read(write: Write) -> bool:
    """Whether it is unknown if a launch read or wrote the memory that it was given."""
    return write.launch.kind is LaunchKind.TRITON and write.stores is None


def _window_twin(context: Context, serial: int, home: TensorView, whole: ByteRange, write: Write) -> Twin | None:
    """The window that a launch writes, as the twin of the one that a graph reads. None unless the launch writes one
    piece, beside that window, with rows of its form and no more of them."""
    graph, parts = context.graphs.get(serial), write.ranges.intersection(whole)
    buffer = input_of(graph, home) if graph is not None else None
    if buffer is None or len(parts) != 1 or parts[0].overlaps(home.hull) or not _has_form(home, parts[0], write):
        return None
    start = parts[0].start
    end = home.start if start < home.start else whole.stop
    return Twin(home, buffer, ByteRange(start, min(start + home.nbytes, end)), buffer, home.dtype, Evidence.WINDOW)


def _has_form(home: TensorView, part: ByteRange, write: Write) -> bool:
    """Whether rows that a launch writes have the form of a view's; of a kernel only their bytes are known."""
    if part.nbytes > home.nbytes:
        return False
    if write.launch.kind is LaunchKind.TRITON:
        return write.stores is not None and part.nbytes % (home.row_nbytes or home.itemsize) == 0
    views = [p.view for p in write.launch.pointers if p.may_write and p.view.hull.overlaps(part)]
    form = home.dtype, home.shape[1:], home.stride
    return any((view.dtype, view.shape[1:], view.stride) == form for view in views)
