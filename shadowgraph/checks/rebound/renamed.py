"""SG108 with nothing declared: a name from which a graph took an input leads to other memory since.

At the end of a capture the names are noted that lead to memory that the graph may read: attributes, items and variables
(`shadowgraph.tracking.trails`). At each observed replay of the graph they are followed again. A name that leads
elsewhere is a *sighting* where the other memory has the input's form and other values, no captured graph reads it, and
the graph's memory was not written. That alone proves nothing: the name may be an unrelated one, or the host may use the
other memory for eager work. So a finding takes all of this:

- the code that was captured takes a value by this name, as its source says (`loaded_names`);
- two replays in a row are sightings, with different values, or three that are not in a row;
- no eager operator has read the graph's memory between them, as code does that refreshes only what has changed;
- the graph's memory held the same bytes throughout, and no refresh of it was seen.

Where the program has copied what the name leads to into the graph's memory twice, before these or after, the graph
follows by copies, not by the name, and may do so in some steps only: that is a note, and an error that was reported
becomes one.

Silent are constants, names that lead to the graph's memory again, inputs that are copied into it, memory that a graph
writes itself. Freed memory is SG104's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import torch

from shadowgraph.checks.base import Check, Checkpoint, Context, Detection
from shadowgraph.checks.rebound.bindings import first_bytes
from shadowgraph.checks.rebound.check import ReboundInputs
from shadowgraph.checks.rebound.details import Rebound
from shadowgraph.checks.rebound.drafts import (
    Claims,
    Stale,
    first_reads,
    input_of,
    is_read,
    last_to,
    stale_draft,
)
from shadowgraph.checks.rebound.facts import Evidence
from shadowgraph.checks.rebound.loaded_names import loads_of
from shadowgraph.checks.rebound.ties import PATIENCE, Tie, due, is_at, likelihood
from shadowgraph.checks.row_epochs import unequal
from shadowgraph.graphs.dispatch.operand_notes import LARGEST as LARGEST_INPUT
from shadowgraph.graphs.dispatch.operand_notes import Interest, order
from shadowgraph.graphs.dispatch.tensors import ORDINARY, is_lazy_copy
from shadowgraph.model.findings import Severity
from shadowgraph.model.graphs import Graph
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import RangeSet
from shadowgraph.model.stacks import current_frame
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.foreign import still_there
from shadowgraph.tracking.trails import Trail, TrailSearch
from shadowgraph.tracking.writes import Write

_TIES = 64  # names followed of one graph
_TRAILS = 2_048  # names kept from the end of a capture until the checks meet its graph
_WAITING = 64  # such graphs
_IDLE = 64  # observed replays without a look until eager operators are not noted any more
_RECENT = 256  # eager writes searched for the one that made the other memory
_SOURCES = 8  # memories that may have been copied to a graph's, between two of its replays


@dataclass(slots=True, eq=False)
class _Look:
    """Bytes requested at the start of a replay, and the key of both ranges: the graph's own, and those that the name
    leads to."""

    tie: Tie
    now: TensorView
    time: int
    parts: list[bytes] = field(default_factory=list)


class RenamedInputs(Check):
    """Follows the names of graphs' inputs, and compares where one leads elsewhere.

    Parameters
    ----------
    declared
        The check of what is declared, which has precedence.
    interest
        Notes of eager operators.
    claims
        What is reported, by this check and others.
    """

    needs_every_write = True

    def __init__(self, context: Context, declared: ReboundInputs, interest: Interest, claims: Claims) -> None:
        super().__init__(context)
        self._declared, self._interest, self._claims = declared, interest, claims
        self._search = TrailSearch(lambda view: 0 < view.nbytes <= LARGEST_INPUT and view.contiguous)
        self._trails: dict[int, list[Trail]] = {}  # by the graph's serial, until the checks meet it
        self._ties: dict[int, list[Tie]] = {}  # by the graph's serial
        self._homes = RangeSet()
        self._idle = 0  # observed replays since one was looked at
        self._recent: deque[tuple[int, Write]] = deque(maxlen=_RECENT)

    # -- captures -----------------------------------------------------------------------------------------------

    def capture_ended(self, graph: Graph) -> None:
        found = self._search.search(self.context.names.roots(), current_frame())
        self._trails[graph.serial] = found[:_TRAILS]
        for serial in list(self._trails)[:-_WAITING]:
            self._trails.pop(serial, None)  # another thread may have ended a capture, too

    def captured(self, graph: Graph) -> None:
        live = self.context.graphs
        self._ties = {serial: ties for serial, ties in self._ties.items() if serial in live}
        trails = self._trails.pop(graph.serial, [])
        ties = self._ties_of(graph, trails) if trails else []
        if ties:
            self._ties[graph.serial] = sorted(ties, key=likelihood)[:_TIES]
        self._homes = RangeSet.of(tie.home for each in self._ties.values() for tie in each)

    def _ties_of(self, graph: Graph, trails: list[Trail]) -> list[Tie]:
        reads = RangeSet.of(view.hull for view in first_reads(graph))
        found = []
        for trail in trails:
            read = RangeSet.of(reads.intersection(trail.view.hull))
            buffer = input_of(graph, trail.view) if read else None
            if buffer is not None:
                stacks = tuple({node.launch.stack: None for part in read for node in graph.readers(part)})
                found.append(Tie(graph, trail, buffer, read, stacks))
        return found

    # -- writes -------------------------------------------------------------------------------------------------

    @property
    def wants_known_writes(self) -> bool:
        return False

    def written(self, write: Write, phase: Phase | None, graph: Graph | None) -> None:
        if not self._ties or (graph is not None and write.stores is None):
            return
        if graph is None:
            self._recent.append((next(order), write))
        if any(self._homes.overlaps(part) for part in write.ranges):
            for tie in self._all():
                if write.ranges.overlaps(tie.home):
                    tie.written = True
                    self._note_sources(tie, write)

    def _note_sources(self, tie: Tie, write: Write) -> None:
        room = _SOURCES - len(tie.sources)
        read = (p.view.hull for p in write.launch.pointers if p.may_read and not p.view.hull.overlaps(tie.home))
        tie.sources.extend(islice(read, room))

    def invalidate_writers(self) -> None:
        """After unseen writes: discard what was seen before."""
        for tie in self._all():
            tie.disturb()
        self._recent.clear()
        self._interest.want(())

    def _all(self) -> list[Tie]:
        return [tie for ties in self._ties.values() for tie in ties]

    # -- replays ------------------------------------------------------------------------------------------------

    def replay_begins(self, checkpoint: Checkpoint) -> None:
        assert checkpoint.graph is not None
        ties = self._ties.get(checkpoint.graph.serial)
        self._idle += 1
        if self._idle == _IDLE:
            self._rest()
        if not ties:
            return
        self._heed_reads()
        watched = [tie.watched for tie in ties]
        with torch._C.DisableTorchFunction():
            for tie in due(ties, checkpoint.replay or 0):
                other = tie.trail.now()
                if other is None or is_at(other, tie.view) or not self._looks_at(tie, other, checkpoint):
                    tie.disturb()
                tie.begins()
        if watched != [tie.watched for tie in ties]:
            self._watch()  # now: the bytes may arrive after the next step

    def _rest(self) -> None:
        """Stop noting eager operators: the graphs whose names led elsewhere are not replayed any more."""
        for tie in self._all():
            if tie.watched:
                tie.disturb()
        self._watch()

    def _heed_reads(self) -> None:
        """Discard what was seen of inputs that eager code read: it may compare an input before it refreshes it."""
        reads = self._interest.reads
        while reads:
            where = reads.popleft()
            for tie in self._all():
                if not tie.told and tie.home.overlaps(where):
                    tie.disturb()

    def _looks_at(self, tie: Tie, other: torch.Tensor, checkpoint: Checkpoint) -> bool:
        """Request the bytes where a name leads elsewhere at the start of a replay. Returns False if there is nothing to
        compare: the graph could not use the other memory, or its own was written meanwhile."""
        if tie.given_up:
            return True
        if tie.written:
            tie.tries += 1
            self._heed_copies(tie, other)
            return False
        now = self._fitting(tie, other)
        if now is None:
            return False
        if tie.taken is None:
            tie.taken = loads_of(tie.trail.name, tie.stacks)
        if not tie.taken:
            tie.tries = PATIENCE  # no name of an input
            return True
        tie.looks, tie.watched, self._idle = tie.looks + 1, True, 0
        size = min(tie.size, now.nbytes)
        look = _Look(tie, now, next(order))
        self.context.engine.fetch(checkpoint, [(look, first_bytes(view, size)) for view in (tie.view, now)])
        return True

    def _heed_copies(self, tie: Tie, other: torch.Tensor) -> None:
        """The graph's memory was written: if what the name leads to was copied there, it follows by copies."""
        if tie.copies > 1 or not tie.sources or type(other) not in ORDINARY or is_lazy_copy(other):
            return
        try:
            now = TensorView.of(other).hull
        except ValueError:
            return
        tie.copies += any(source.overlaps(now) for source in tie.sources)
        if tie.lags and tie.draft is not None:
            self.context.report(_lagging(tie.draft))

    def _fitting(self, tie: Tie, other: torch.Tensor) -> TensorView | None:
        """The other memory, if the graph could have been given it in place of its own, and none is captured with it."""
        try:
            now = TensorView.of(other)
        except ValueError:
            return None
        home = tie.view
        alike = (now.dtype, now.device, now.shape[1:]) == (home.dtype, home.device, home.shape[1:])
        if not alike or len(now.shape) != len(home.shape) or not now.contiguous or not now.nbytes:
            return None
        if now.start in self._interest.used:
            return None  # the variable was reused: an operator has taken its new value
        if now.hull.overlaps(home.hull) or is_read(self.context, now.hull) or not still_there(tie.buffer):
            return None
        return None if self._declared.binds(tie.graph, home.hull) else now

    # -- comparison ---------------------------------------------------------------------------------------------

    def owns(self, key: object) -> bool:
        return isinstance(key, _Look)

    def fetched(self, key: object, data: bytes, checkpoint: Checkpoint) -> None:
        assert isinstance(key, _Look)
        key.parts.append(data)
        if len(key.parts) == 2:
            self._judge(key, checkpoint)

    def _judge(self, look: _Look, checkpoint: Checkpoint) -> None:
        tie, (found, other) = look.tie, look.parts
        stale = self._stale(tie, found, other)
        if tie.disturbed > tie.latest:
            tie.start_over()
        if not stale or other == tie.other:
            return
        if tie.sightings and found != tie.found[: len(found)]:  # refreshed by code that was not seen
            tie.start_over()
            tie.tries += 1
        if self._has_better_name(tie):
            tie.tries = PATIENCE
            return
        replay = checkpoint.replay or 0
        tie.in_a_row = tie.sightings > 0 and replay == tie.replay + 1
        tie.sightings, tie.tries, tie.replay = tie.sightings + 1, tie.tries + 1, replay
        tie.found, tie.other, tie.latest = found, other, look.time
        if tie.told or tie.sightings >= (2 if tie.in_a_row else 3):
            tie.told = True
            self._report(look, Stale(tie.view, tie.buffer, stale, found, other), checkpoint)
        self._watch()

    def _has_better_name(self, tie: Tie) -> bool:
        """Whether each name in captured code that may be this one may also be one that still leads to the memory."""
        taken = set(tie.taken or ())
        for other in self._ties.get(tie.graph.serial, ()):
            target = other.trail.now() if other is not tie and other.view.start == tie.view.start else None
            if target is not None and is_at(target, other.view):
                taken -= loads_of(other.trail.name, other.stacks)
        return not taken

    def _stale(self, tie: Tie, found: bytes, other: bytes) -> list[int]:
        """Numbers of the elements that differ, of those that the graph was given."""
        item, start = tie.view.itemsize, tie.view.start
        spans = [(part.start - start, part.stop - start) for part in tie.read]
        differs = np.flatnonzero(unequal(found, other, item)).tolist()
        return [at for at in differs if any(a <= at * item < b for a, b in spans)]

    def _watch(self) -> None:
        """Request notes of the operators that read doubtful inputs, and of those that made what their names lead to."""
        doubtful = [tie for tie in self._all() if tie.watched and not tie.given_up]
        unsure = [tie.home for tie in doubtful if not tie.told]
        self._interest.want(unsure, {tie.view.dtype for tie in doubtful})

    def _report(self, look: _Look, stale: Stale, checkpoint: Checkpoint) -> None:
        tie, now = look.tie, look.now
        if not self._claims.take(tie.graph, tie.view.start, tie.trail):
            return  # it is reported under another name
        names, path = self.context.names, tie.trail.path
        if any(owner.path != path for owner in names.owners_of(tie.home, tie.buffer.serial)):
            names.refresh(anew=True)  # the graph's memory goes by the names that lead there still
        where = first_bytes(now, len(stale.found))
        write = last_to(where, self._recent, self._interest)
        facts = Rebound(
            attribute=path,
            owner="",
            now=now,
            where=where,
            buffer=self.context.ledger.owner(now.start, now.stop),
            planned=False,
            evidence=Evidence.NAME,
            refreshes=tie.sightings,
        )
        draft = tie.draft = stale_draft(checkpoint, stale, "name", write, facts)
        self.context.report(_lagging(draft) if tie.lags else draft)


def _lagging(draft: Detection) -> Detection:
    assert isinstance(draft.facts, Rebound)
    return replace(draft, severity=Severity.NOTE, facts=replace(draft.facts, lags=True))
