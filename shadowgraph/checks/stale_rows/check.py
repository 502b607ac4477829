"""SG103: rows that a graph reads were written for an older replay, while other rows of the same input were refreshed.

A batch of two that replays a graph captured for four is padded: the program writes harmless values into the other two
rows. If it forgets one of its inputs, the padded rows of that input hold another request's values. A witness tells that
from rows that are meant to stay: another input of the same graph with as many rows, in which this very step wrote
exactly these rows as padding. Then it is an error. If the other input was written in full at once, it may have been
padded before it was copied, or simply need more rows: that is a note. A mask is no witness: it is there so that padded
rows do not matter. Without a witness nothing is reported, since caches, tables and persistent batches are refreshed row
by row. `Debugger.padding` overrules: rows declared not to matter are never reported, rows declared to be refreshed need
no witness, and rows declared to be judged follow these rules even where all others get the benefit of the doubt
(`StaleRows.lenient`). Rows that the graph hides itself, by a mask, are a note (`HiddenRows`, `dataflow.masked`).

Rows that a graph writes itself are skipped, and so are rows that hold zeros (slot 0, by convention) or the value of a
fill. The hooks run as described in `checks.base`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import msgspec

from shadowgraph.checks.base import Check, Checkpoint, Context, Detection, bytes_in
from shadowgraph.checks.row_epochs import Mixture, Rows, Run, masks, stretches
from shadowgraph.checks.stale_rows import CODE
from shadowgraph.checks.stale_rows.details import Stale
from shadowgraph.checks.stale_rows.hidden import HiddenRows, Question
from shadowgraph.checks.stale_rows.row_log import Begun, RowLog, copied
from shadowgraph.checks.stale_rows.rules import POLICIES, Declared, InputKey, Suspect, key_of, suspects
from shadowgraph.checks.stale_rows.static_inputs import Input, StaticInputs
from shadowgraph.graphs.dataflow import indexed_by, masked, may_select, reaches_kernel
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Severity
from shadowgraph.model.graphs import Graph
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.row_history import InputRows
from shadowgraph.tracking.writes import Write

_REPLAYS = 4096  # replays to which a row's value can be dated
_BESIDE = 1 << 15  # bytes of a witness compared on each side of the cut
_WITNESSES = 2  # padded inputs that make an error of what nothing was declared about
_LOOKS = 8  # after these, a finding's rows are read ever more seldom
_Replay = tuple[int, int, int]  # a replay: its time, the graph's serial, its number


@dataclass(slots=True, eq=False)
class _Suspicion:
    """Key of requested bytes: stale rows that are a finding unless they hold zeros.

    Attributes
    ----------
    fault
        Whether it is an error if it is certain.
    declared
        Whether it needs no witness.
    padded, full
        Witnesses that were padded, and witnesses that were written in full at once.
    masks
        The witnesses that prove to be masks.
    """

    input: Input
    draft: Detection
    runs: dict[int, Run]
    where: ByteRange
    fault: bool
    declared: bool
    padded: list[Input]
    full: list[Input]
    masks: list[Input] = field(default_factory=list)

    def unmasked(self) -> tuple[list[Input], list[Input]]:
        """Witnesses that are no masks: those that were padded, and those that were written in full at once."""
        padded, full = ([each for each in some if each not in self.masks] for some in (self.padded, self.full))
        return padded, full


@dataclass(frozen=True, slots=True)
class _Witness:
    """Key of requested bytes: rows of a witness, `before` of them in front of the cut."""

    of: _Suspicion
    input: Input
    before: int


class Situation(NamedTuple):
    """What suspicions depend on besides inputs and writes.

    Attributes
    ----------
    declared
        Declarations, by the buffers' serials.
    masks
        Inputs that were masks when they were last read as witnesses.
    """

    declared: dict[int, Declared]
    masks: frozenset[InputKey]


class StaleRows(Check):
    """Records the last writes to static inputs, and compares rows at the start of each replay.

    Attributes
    ----------
    lenient
        Report undeclared rows as a note, for a program without declarations of inputs that keep their rows, as under
        ``wrap``. Does not apply to declared rows, nor where the step padded two other inputs or more and the graph uses
        the values as places in memory: what is kept on purpose is looked up, as tokens are, or leads nowhere.
    """

    lenient = False

    needs_every_write = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._inputs = StaticInputs(context)
        self._replays: deque[_Replay] = deque(maxlen=_REPLAYS)
        self._names: dict[int, str] = {}  # graph names, by serial
        self._looks: dict[tuple[int, str], int] = {}
        self._declared: dict[int, Declared] = {}  # by the buffer's serial
        self._masks: set[InputKey] = set()  # inputs that were masks when they were last read as witnesses
        self._changes = 0  # of these two
        self._seen: dict[int, int] = {}  # `StaticInputs.writes` when a graph last began to replay
        self._log = RowLog()
        self._hidden = HiddenRows(context)

    def declare(self, buffer: Buffer, where: ByteRange, policy: str) -> None:
        """Declare the policy for padded rows in a part of a buffer, one of `POLICIES`."""
        known = self._declared.setdefault(buffer.serial, Declared())
        for name in POLICIES:
            said: RangeSet = getattr(known, name)
            (said.add if name == policy else said.discard)(where)
        self._changes += 1

    @property
    def version(self) -> tuple[int, int]:
        """Numbers that change with what `inputs` and `situation` give, after it has changed."""
        return self._inputs.version, self._changes

    def inputs(self) -> dict[int, list[Input]]:
        """The rows that live graphs read, by the graphs' serials; any thread."""
        return self._inputs.known()

    def situation(self) -> Situation:
        """What suspicions depend on besides inputs and writes; any thread."""
        declared = {serial: each.copy() for serial, each in self._declared.copy().items()}
        return Situation(declared, frozenset(self._masks.copy()))

    def invalidate_writers(self) -> None:
        """After unseen writes: no row's writer is known."""
        self._inputs.invalidate_writers()
        self._seen.clear()

    def captured(self, graph: Graph) -> None:
        self._names[graph.serial] = graph.name
        self._inputs.captured(graph)
        self._log.forget((*list(self.context.graphs), graph.serial))

    def history(self) -> list[InputRows]:
        """Rows of inputs when the last replays of each live graph began, and in replays that led to a finding. Any
        thread."""
        return self._log.history(self._inputs.known(), self._begun())

    def _begun(self) -> Begun:
        replays = copied(self._replays)
        return Begun(replays, len(replays) < _REPLAYS)

    @property
    def wants_known_writes(self) -> bool:
        return False

    def written(self, write: Write, phase: Phase | None, graph: Graph | None) -> None:
        self._inputs.written(write, graph)

    def replay_begins(self, checkpoint: Checkpoint) -> None:
        graph = checkpoint.graph
        assert graph is not None
        self._hidden.begins(graph)
        inputs = self._inputs.of(graph)
        self._inputs.begins(graph, checkpoint.order)
        if not inputs:
            return
        self._replays.append((checkpoint.order, graph.serial, graph.replays))
        stories, light = self._inputs.read_by(graph), self.context.engine.asynchronous
        untouched = light and self._seen.get(graph.serial) == self._inputs.writes
        self._log.note(graph.serial, graph.replays, checkpoint.order, stories, light, untouched)
        if untouched:
            return  # no refresh since it last began; on the host a snapshot may show one
        self._seen[graph.serial] = self._inputs.writes
        for found in suspects(inputs, self._declared, checkpoint.order):
            suspicion = self._suspicion(found, checkpoint)
            if self._worth_a_look(suspicion.draft):
                self.context.engine.fetch(checkpoint, [*_asked(suspicion), (suspicion, suspicion.where)])
        for story in stories:
            story.epochs.last = checkpoint.order

    def _suspicion(self, found: Suspect, checkpoint: Checkpoint) -> _Suspicion:
        where = found.input.rows.span(min(found.stale), max(found.stale))
        fault = found.declared or found.judged or not self.lenient
        draft = self._draft(found.input, found.seen, checkpoint)
        return _Suspicion(found.input, draft, found.stale, where, fault, found.declared, found.padded, found.full)

    def _draft(self, each: Input, seen: Mixture, checkpoint: Checkpoint) -> Detection:
        """The detection without bytes and witnesses, which are known once the values have arrived."""
        rows, buffer, graph = each.rows, each.story.buffer, checkpoint.graph
        assert graph is not None
        siblings = {id(run.write): run.write for run in self._fresh_runs(each) if run.write is not None}
        return Detection(
            code=CODE,
            checkpoint=checkpoint,
            buffer=buffer,
            first=rows.start,
            last=rows.start,
            count=0,
            ranges=(),
            culprits=tuple(msgspec.structs.replace(write, opaque=True) for write in siblings.values()),
            phase=Phase.PREPARE,
            graph=graph,
            replay=checkpoint.replay,
            view=None if _begins(rows, buffer) else rows.view,
            key=f"{graph.serial} {rows.start - buffer.start}",
            facts=Stale(rows.count, seen.fresh, (), ()),
        )

    def _fresh_runs(self, each: Input) -> Iterator[Run]:
        where = ByteRange(each.rows.start, each.rows.stop)
        for run in each.story.epochs.runs:
            if run.time > each.story.epochs.last and where.overlaps(ByteRange(run.start, run.stop)):
                yield run

    def _worth_a_look(self, draft: Detection) -> bool:
        """Whether to read the values: each read costs a copy, and a program that forgets its padding does so in every
        step."""
        key = draft.buffer.serial, draft.key
        looks = self._looks[key] = self._looks.get(key, 0) + 1
        return looks <= _LOOKS or looks.bit_count() == 1

    def owns(self, key: object) -> bool:
        return isinstance(key, _Suspicion | _Witness)

    def fetched(self, key: object, data: bytes, checkpoint: Checkpoint) -> None:
        if isinstance(key, _Witness):  # witnesses arrive before the rows that they belong to
            self._note_mask(key, masks(key.input.rows, data, key.before))
            return
        assert isinstance(key, _Suspicion)
        rows, first = key.input.rows, min(key.runs)
        begins = {row: (row - first) * rows.stride for row in key.runs}
        filled = [row for row in key.runs if any(data[begins[row] : begins[row] + rows.nbytes])]
        if filled:
            self._told(key, filled, checkpoint)

    def _note_mask(self, key: _Witness, is_mask: bool) -> None:
        if is_mask:
            key.of.masks.append(key.input)
        name = key_of(key.input)
        if is_mask is not (name in self._masks):
            (self._masks.add if is_mask else self._masks.discard)(name)
            self._changes += 1

    def _told(self, key: _Suspicion, filled: list[int], checkpoint: Checkpoint) -> None:
        """Stale rows hold values: report them if a witness is left, or none is needed."""
        padded, full = key.unmasked()
        if not (key.declared or padded or full):
            return
        sure = bool(key.declared or padded)
        fault = sure and (key.fault or (len(padded) >= _WITNESSES and _leads_to_memory(key.input, checkpoint.graph)))
        draft = self._with_rows(key, filled, padded or full, checkpoint)
        if fault and not key.declared and checkpoint.graph is not None:
            self._ask_whether_hidden(key, filled, draft, checkpoint.graph)
        else:
            self._report(draft, sure, fault)

    def _ask_whether_hidden(self, key: _Suspicion, filled: list[int], draft: Detection, graph: Graph) -> None:
        """Report stale rows as an error, but for those that the graph itself hides: as a note. On the host runs of the
        graph tell; on a device, and where it cannot be run or threads may write, the operators that are given the
        rows. What a kernel does with them is then not known, and a note on the host."""
        rows = key.input.rows
        where = RangeSet.of([ByteRange(rows.start, rows.stop)])

        def answered(hidden: bool | None) -> None:
            if hidden is None:
                hidden = masked(graph, where, partial(_outlasts, self.context))
                hidden = hidden or (not self.context.engine.asynchronous and reaches_kernel(graph, where))
            self._report(draft, True, not hidden)

        fresh = draft.facts.fresh if isinstance(draft.facts, Stale) else ()
        if not may_select(graph, where):
            self._report(draft, True, True)
        elif self.context.engine.asynchronous or graph.replays != draft.replay or not fresh:
            answered(None)
        else:
            self._hidden.ask(graph, Question(rows, filled, fresh[0], answered))

    def _report(self, draft: Detection, sure: bool, fault: bool) -> None:
        if draft.graph is not None and fault:
            self._log.keep(draft.graph.serial)
        severity, confidence = _weight(sure, fault)
        self.context.report(replace(draft, severity=severity, confidence=confidence))

    def _with_rows(
        self, key: _Suspicion, filled: list[int], witnesses: list[Input], checkpoint: Checkpoint
    ) -> Detection:
        """A suspicion's draft with the stale rows that hold values, and the witnesses."""
        stale = key.draft.facts
        assert isinstance(stale, Stale)
        rows = key.input.rows
        spans = [rows.span(*pair) for pair in stretches(filled)] if rows.stride == rows.nbytes else []
        spans = spans or [rows.span(row, row) for row in filled]
        dated = tuple(self._dated(key, filled, checkpoint))
        beside = tuple((each.story.buffer, each.rows.view) for each in witnesses)
        return replace(
            key.draft,
            **bytes_in(spans),
            facts=replace(stale, rows=dated, witnesses=beside),
        )

    def _dated(
        self, key: _Suspicion, filled: list[int], checkpoint: Checkpoint
    ) -> Iterator[tuple[int, int, str | None, int | None]]:
        """Stretches of rows, with the graph's name and the number of the replay that each was written for."""
        begun, readers = self._begun(), key.input.story.readers
        since = {row: begun.first_after(key.runs[row].time, checkpoint.order, readers) for row in filled}
        for replay in dict.fromkeys(since.values()):
            graph, number = replay
            name = self._names.get(graph) if graph is not None else None
            for first, last in stretches([row for row in filled if since[row] == replay]):
                yield first, last, name, number


def _asked(suspicion: _Suspicion) -> Iterator[tuple[_Witness, ByteRange]]:
    """Rows of witnesses on both sides of the cut, to tell whether they are masks."""
    cut = min(suspicion.runs)
    for each in (*suspicion.padded, *suspicion.full):
        beside = max(1, _BESIDE // each.rows.stride)
        first, last = max(0, cut - beside), min(each.rows.count, cut + beside) - 1
        yield _Witness(suspicion, each, cut - first), each.rows.span(first, last)


def _leads_to_memory(each: Input, graph: Graph | None) -> bool:
    """Whether a graph uses an input's values as indices or offsets, and not only as tokens or positions to look up."""
    where = RangeSet.of([ByteRange(each.rows.start, each.rows.stop)])
    return graph is not None and any(not use.lookup for use in indexed_by(graph, where))


def _outlasts(context: Context, where: ByteRange) -> bool:
    """Whether bytes are of a buffer that lives, or that a graph was given."""
    given = (buffer for graph in context.graphs.values() for buffer in graph.inputs.values())
    return context.ledger.owner(where.start, where.stop) is not None or any(b.range.overlaps(where) for b in given)


def _weight(sure: bool, fault: bool) -> tuple[Severity, str]:
    """Severity and confidence of a finding."""
    if fault:
        return Severity.ERROR, "high"
    return Severity.NOTE, "medium" if sure else "low"


def _begins(rows: Rows, buffer: Buffer) -> bool:
    """Whether rows are the first rows of a buffer as it was allocated."""
    view = rows.view
    same = view.dtype == buffer.dtype and view.shape[1:] == buffer.shape[1:] and len(view.shape) == len(buffer.shape)
    return same and rows.start == buffer.start and (rows.stride == rows.nbytes or len(view.shape) > 1)
