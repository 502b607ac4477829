"""SG109: a rule on a buffer's values does not hold where a graph or the host is about to rely on it.

Rules are declared by the user or inferred from names of index pointers (indptr). Called by the monitor: at a replay
under the debugger's lock, at a host read and on request without it.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections import deque
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from shadowgraph.checks.attribution import Blame, draft_phase, eager_phase
from shadowgraph.checks.base import Check, Checkpoint, Context, Detection, host_reader
from shadowgraph.checks.invariants import CODE
from shadowgraph.checks.invariants.facts import RuleDetail
from shadowgraph.checks.invariants.precedence import Addresses, ToldElements
from shadowgraph.checks.invariants.rules import Breach, Rule, nondecreasing
from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.common.internal_errors import PROGRAMS_RULE, internal_errors
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Reader, Severity
from shadowgraph.model.graphs import Graph
from shadowgraph.model.owners import Owner
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.stacks import Stack
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.foreign import still_there
from shadowgraph.tracking.writes import Write

_INDPTR = re.compile(r"(indptr|cu_seq_?lens)", re.IGNORECASE)
_WRITES = 64  # last writes to buffers with rules, kept for the culprit


@dataclass(frozen=True, slots=True)
class _Look:
    """Key of requested bytes: the part of an invariant's view that the coming graph captured.

    Attributes
    ----------
    told
        What surer rules have told of the same replay: their bytes arrive before.
    """

    invariant: Invariant
    part: ByteRange
    told: ToldElements = field(default_factory=ToldElements)


@dataclass(slots=True, eq=False)
class Invariant:
    """A rule over a contiguous view of a buffer. `inferred` rules are checked only on the part that a graph
    captured, on at most the first `most` bytes of it.

    Attributes
    ----------
    key
        Distinguishes its findings from those of other rules about the buffer: two lambdas have one name.
    broke
        Whether it is declared and was seen broken.
    """

    buffer: Buffer
    view: TensorView
    rule: Rule
    key: str
    inferred: bool = False
    most: int | None = None
    where: ByteRange = field(init=False)
    broke: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.where = self.view.hull

    @property
    def rank(self) -> int:
        """Which rule tells of bytes that several rules are about: the lowest one, see `ToldElements`."""
        return 0 if not self.inferred else 1 if self.most is not None else 2


@dataclass(frozen=True, slots=True)
class _Sighting:
    """Where an inferred rule was last reported broken: the part looked at, and the first broken element of it.

    Attributes
    ----------
    overtaken
        A declared rule has taken the finding over; what it told besides is to be told again.
    """

    whole: ByteRange
    first: ByteRange
    reader: Reader | None
    order: int
    overtaken: bool = False


@dataclass(frozen=True, slots=True)
class _Noted:
    """A write to a buffer with a rule, and its time: in a replay of `graph`, or by eager code in a marked `phase`.

    `done` holds the replays begun by then, by the serials of the graphs captured by then; `order` is the clock's.
    """

    write: Write
    phase: Phase | None
    graph: Graph | None
    done: dict[int, int]
    order: int

    def period(self, graphs: list[int]) -> tuple[int | None, ...]:
        """Between which replays of some graphs it happened, by serials."""
        return tuple(self.done.get(serial) for serial in graphs)


class Invariants(Check):
    """Checks rules at the start of a replay, at a host read and on request; never in the middle of a graph.

    Attributes
    ----------
    unobserved_since
        Checkpoint from which on writes pass unseen; infinite while all are seen.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.unobserved_since = inf
        self._ranked: tuple[list[Invariant], ...] = ([], [], [])  # by `Invariant.rank`
        self._numbers = itertools.count()
        self._writes: deque[_Noted] = deque(maxlen=_WRITES)
        self._all_noted = True  # no write was forgotten or passed unseen
        self._latest: dict[Invariant, _Sighting] = {}  # of inferred rules that are broken
        self._taking = fork_safe(threading.RLock())  # while a declared rule looks for a finding to take over

    @property
    def invariants(self) -> list[Invariant]:
        """All rules, the surest first."""
        return list(itertools.chain.from_iterable(self._ranked))

    def declare(self, buffer: Buffer, view: TensorView, rule: Rule, inferred: bool = False) -> None:
        """Add a rule."""
        self._add(self._made(buffer, view, rule, inferred))

    def keep(self, buffer: Buffer, view: TensorView, rule: Rule, most: int) -> None:
        """Add a rule as if it were inferred; it replaces one of its kind, such as another range."""
        added = self._made(buffer, view, rule, True, most)
        kept, kind = self._ranked[added.rank], _kind(rule)
        kept[:] = [known for known in kept if known.view != view or _kind(known.rule) != kind]
        self._add(added)

    def _made(self, buffer: Buffer, view: TensorView, rule: Rule, inferred: bool, most: int | None = None) -> Invariant:
        return Invariant(buffer, view, rule, f"{rule.name} {next(self._numbers)}", inferred, most)

    def _add(self, invariant: Invariant) -> None:
        self._ranked[invariant.rank].append(invariant)

    @property
    def declared(self) -> bool:
        """Whether a user has declared any rule: those are checked at each host read as well."""
        return bool(self._ranked[0])

    def invalidate_writers(self) -> None:
        """After unseen writes: the last write that was seen need not be the last one."""
        self.unobserved_since = inf
        self._all_noted = False
        self._writes.clear()
        self._latest.clear()

    def reads_captured(self, graph: Graph) -> bool:
        if not self.context.settings.infer:
            return False
        return any(_is_indptr(owner) for owner in self.context.names.owners_of(_hull(graph)))

    def captured(self, graph: Graph) -> None:
        """Infer `nondecreasing` for index pointers, by name, if the captured part satisfies that rule now."""
        if not self.context.settings.infer:
            return
        for owner in self.context.names.owners_of(_hull(graph)):
            inferred = self._inferred(owner)
            if inferred is not None and self._holds(inferred, graph.captured(inferred.where)):
                self._add(inferred)

    def _inferred(self, owner: Owner) -> Invariant | None:
        """The rule that a name implies, if it is not declared or inferred already."""
        view = owner.view
        if not _is_list_of_integers(view) or not _is_indptr(owner):
            return None
        buffer = self.context.ledger.owner(view.start, view.stop)
        if buffer is None or owner not in self.context.names.owners_of(view.hull, buffer.serial):
            return None  # untracked, or a name of the former buffer at these bytes
        if any(i.where == view.hull and i.rule is nondecreasing for i in self._living()):
            return None
        return self._made(buffer, view, nondecreasing, inferred=True)

    def _holds(self, invariant: Invariant, parts: list[ByteRange]) -> bool:
        """Whether there are any parts, and the values of each satisfy the rule now."""
        read = self.context.engine.read
        return bool(parts) and all(self._breach(invariant, p, read(self._usable(invariant, p))) is None for p in parts)

    def replay_begins(self, checkpoint: Checkpoint) -> None:
        if not any(self._ranked):
            return
        graph = checkpoint.graph
        assert graph is not None
        wanted, told = [], ToldElements()
        for invariant in self._living():
            for part in graph.captured(invariant.where):
                whole = part if invariant.rule.prefix_safe else invariant.where
                if invariant.most is not None:
                    whole = ByteRange(whole.start, min(whole.stop, whole.start + invariant.most))
                wanted.append((_Look(invariant, whole, told), self._usable(invariant, whole)))
        if wanted:
            self.context.engine.fetch(checkpoint, wanted)

    def owns(self, key: object) -> bool:
        return isinstance(key, _Look)

    def fetched(self, key: object, data: bytes, checkpoint: Checkpoint) -> None:
        assert isinstance(key, _Look)
        self._told(key.invariant, key.part, data, checkpoint, None, key.told)

    def host_read(self, view: TensorView, how: str, stack: Stack, checkpoint: Checkpoint) -> None:
        where, told = view.hull, ToldElements()
        for invariant in self._living():
            part = invariant.where.intersect(where)
            if part is not None and part.nbytes and (not invariant.inferred or self._is_captured(invariant, where)):
                self._judge(invariant, part, checkpoint, host_reader(how, stack), told)

    @property
    def wants_known_writes(self) -> bool:
        return any(self._ranked)

    def written(self, write: Write, phase: Phase | None, graph: Graph | None) -> None:
        if any(write.ranges.overlaps(invariant.where) for invariant in self.invariants):
            self._all_noted = self._all_noted and len(self._writes) < _WRITES
            self._writes.append(_Noted(write, phase, graph, self.context.replays(), next(self.context.clock)))

    def recheck(self, checkpoint: Checkpoint) -> None:
        told = ToldElements()
        for invariant in self._living():
            if not invariant.inferred:
                self._judge(invariant, invariant.where, checkpoint, None, told)
                continue
            seen = self._latest.get(invariant)
            if seen is not None and seen.overtaken and not self._written_since(seen.order, seen.whole):
                self._judge(invariant, seen.whole, checkpoint, seen.reader, told)

    def _is_captured(self, invariant: Invariant, where: ByteRange) -> bool:
        """Whether a graph was given exactly this range, in one view or in several that join (all but the first element
        and all but the last): then the host reads it to plan for that graph."""
        return any(
            where in graph.captured(invariant.where)
            or any(p.view.start == where.start and p.view.stop == where.stop for _, p in graph.pointers())
            for graph in list(self.context.graphs.values())
        )

    def _ends_before_the_tail(self, invariant: Invariant, part: ByteRange) -> bool:
        """Whether a captured part leaves out the end of the named tensor, as one cut to a batch's size does.

        A graph that was given the whole may read only a prefix, while the rest is left from a larger batch.
        """
        start = invariant.where.start
        longer = (i for i in self.invariants if i.where.start == start and i.where.stop > part.stop)
        return any(still_there(invariant.buffer) for invariant in longer)

    def _is_padding(
        self, invariant: Invariant, part: ByteRange, breach: Breach, data: bytes, checkpoint: Checkpoint
    ) -> bool:
        """Whether inferred index pointers only fall to zeros that last to the end of a part, and that were filled in
        together with the pointer before them: rows that a batch is padded with have no entries then.

        Zeros that are left from the allocation or from another batch are no padding, where all writes are known.
        """
        if invariant.most is not None or not invariant.inferred:
            return False
        if np.frombuffer(data, dtype=np.dtype(invariant.view.dtype))[breach.index :].any():
            return False
        if (checkpoint.order or inf) > self.unobserved_since:
            return True  # it is not known when these were written
        item = invariant.view.itemsize
        fills = self._fills(ByteRange(part.start + (breach.index - 1) * item, part.start + len(data)), checkpoint)
        return len(fills) < 2 and None not in fills

    def _fills(self, where: ByteRange, checkpoint: Checkpoint) -> set[tuple[int | None, ...] | None]:
        """Between which replays of the graphs that use a range its bytes were last written. None stands for bytes that
        were not written since a rule is known."""
        left, found = RangeSet.of([where]), set[tuple[int | None, ...] | None]()
        graphs = [graph.serial for graph in self.context.graphs_on(where)]
        for noted in reversed(self._writes.copy()):
            early = not checkpoint.order or noted.order < checkpoint.order
            if early and any(left.overlaps(span) for span in noted.write.ranges):
                found.add(noted.period(graphs))
                left -= noted.write.ranges
        if left and self._all_noted:
            found.add(None)
        elif left and self._writes:
            found.add(self._writes[0].period(graphs))  # a write that was forgotten was no later than that
        return found

    def _living(self) -> list[Invariant]:
        """The rules of buffers that live, the surest first. What was seen of the others is dropped."""
        living = []
        for invariant in self.invariants:
            if still_there(invariant.buffer):
                living.append(invariant)
            else:
                self._latest.pop(invariant, None)
        return living

    def _judge(
        self,
        invariant: Invariant,
        part: ByteRange,
        checkpoint: Checkpoint,
        reader: Reader | None,
        told: ToldElements,
    ) -> None:
        whole = part if invariant.rule.prefix_safe else invariant.where
        data = self.context.engine.read(self._usable(invariant, whole))
        self._told(invariant, whole, data, checkpoint, reader, told)

    def _told(
        self,
        invariant: Invariant,
        whole: ByteRange,
        data: bytes,
        checkpoint: Checkpoint,
        reader: Reader | None,
        told: ToldElements,
    ) -> None:
        """Report the values that break a rule, but for those of which a surer rule has told."""
        breach = self._breach(invariant, whole, data)
        if breach is not None and invariant.inferred:
            known = told.have(_addresses(invariant, whole, breach), invariant.view.itemsize)
            breach = breach.only(breach.elements[~known]) if known.any() else breach
        if breach is None:
            seen = self._latest.get(invariant)
            if seen is not None and whole.intersect(seen.whole) == seen.whole:
                self._latest.pop(invariant, None)
            return
        # A declared or kept rule is one for all of the buffer, and the host relies on all that it reads.
        relied_on = invariant.rank < 2 or reader is not None or self._ends_before_the_tail(invariant, whole)
        sure = relied_on and not self._is_padding(invariant, whole, breach, data, checkpoint)
        if sure:
            told.add(_addresses(invariant, whole, breach), invariant.view.itemsize)
        if invariant.inferred:
            order = checkpoint.order or next(self.context.clock)
            self._latest[invariant] = _Sighting(whole, _first(invariant, whole, breach), reader, order)
        else:
            self._take_over(invariant, _addresses(invariant, whole, breach))
        self._found(invariant, whole, breach, checkpoint, reader, sure)

    def _take_over(self, declared: Invariant, broken: Addresses) -> None:
        """Let a declared rule, when it is first seen broken, take over the finding of an inferred rule that begins with
        one of the same elements, not written since. `recheck` tells again what that finding told besides."""
        with self._taking:
            if declared.broke:
                return
            declared.broke = True
            own = ToldElements()
            own.add(broken, declared.view.itemsize)
            for inferred, seen in list(self._latest.items()):
                same = own.have(np.array([seen.first.start]), seen.first.nbytes).any()
                if same and not seen.overtaken and not self._written_since(seen.order, seen.first):
                    declared.key, inferred.key = inferred.key, f"{inferred.key} beyond"
                    self._latest[inferred] = replace(seen, overtaken=True)
                    return

    def _written_since(self, order: int, where: ByteRange) -> bool:
        """Whether a range may have been written after a time."""
        writes = list(self._writes)
        if len(writes) == _WRITES and writes[0].order > order:
            return True
        return any(noted.order > order and noted.write.ranges.overlaps(where) for noted in writes)

    def _found(
        self,
        invariant: Invariant,
        whole: ByteRange,
        breach: Breach,
        checkpoint: Checkpoint,
        reader: Reader | None,
        sure: bool,
    ) -> None:
        broken = _first(invariant, whole, breach)
        writer = self._last_writer(invariant, whole, broken, checkpoint)
        phase, graph, replay = self._blame(writer, broken, checkpoint)
        confidence = "medium" if invariant.inferred else "high"
        self.context.report(
            Detection(
                code=CODE,
                checkpoint=checkpoint,
                buffer=invariant.buffer,
                first=broken.start,
                last=broken.stop - 1,
                count=breach.count * invariant.view.itemsize,
                ranges=((broken.start, broken.stop - 1),),
                ranges_total=breach.count,
                culprits=(writer.write,) if writer else (),
                phase=phase,
                graph=graph,
                replay=replay,
                reader=reader,
                facts=RuleDetail(f"{invariant.rule.name}: {breach.shown}"),
                severity=Severity.ERROR if sure else Severity.NOTE,
                confidence=confidence if sure else "low",
                key=invariant.key,
            )
        )

    def _last_writer(
        self, invariant: Invariant, whole: ByteRange, broken: ByteRange, checkpoint: Checkpoint
    ) -> _Noted | None:
        """The last write to the broken element; for an ordering also to the element before it, which may be the wrong
        one.

        A write after the bytes were requested does not count: a device may deliver them late.
        """
        if (checkpoint.order or inf) > self.unobserved_since:
            return None
        if invariant.rule is nondecreasing:
            broken = ByteRange(max(whole.start, broken.start - invariant.view.itemsize), broken.stop)
        for noted in reversed(self._writes.copy()):  # at once: other threads write
            early = not checkpoint.order or noted.order < checkpoint.order
            if early and noted.write.ranges.overlaps(broken):
                return noted
        return None

    def _blame(self, writer: _Noted | None, broken: ByteRange, checkpoint: Checkpoint) -> Blame:
        """Phase, graph and replay of the last write, as they were when it happened."""
        if writer is None:
            return draft_phase(self.context, checkpoint, broken, ())
        if writer.graph is not None:
            return Phase.REPLAY, writer.graph, writer.done.get(writer.graph.serial, writer.graph.replays)
        blame = eager_phase(self.context, checkpoint.graph, broken, (writer.write,), writer.done)
        return blame if writer.phase is None or blame[0] is writer.phase else (writer.phase, None, None)

    def _usable(self, invariant: Invariant, part: ByteRange) -> ByteRange:
        """Whole elements of a part."""
        item = invariant.view.itemsize
        return ByteRange(part.start, part.start + part.nbytes // item * item)

    def _breach(self, invariant: Invariant, part: ByteRange, data: bytes) -> Breach | None:
        values = np.frombuffer(data, dtype=np.dtype(invariant.view.dtype))
        if not invariant.rule.prefix_safe:
            values = values.reshape(invariant.view.shape)
        try:
            return invariant.rule.breach(values, (part.start - invariant.view.start) // invariant.view.itemsize)
        except Exception as error:  # a rule is the user's code: its exception is not a breach
            internal_errors.note(f"{PROGRAMS_RULE} {invariant.rule.name}", error)
            return None


def _addresses(invariant: Invariant, whole: ByteRange, breach: Breach) -> Addresses:
    """Addresses of the elements that break a rule."""
    return whole.start + breach.elements.astype(np.int64) * invariant.view.itemsize


def _first(invariant: Invariant, whole: ByteRange, breach: Breach) -> ByteRange:
    """The first element that breaks a rule."""
    start = whole.start + breach.index * invariant.view.itemsize
    return ByteRange(start, start + invariant.view.itemsize)


def _kind(rule: Rule) -> str:
    return rule.name.split("(", 1)[0]


def _is_indptr(owner: Owner) -> bool:
    return _INDPTR.search(owner.path.rsplit(".", 1)[-1]) is not None


def _is_list_of_integers(view: TensorView) -> bool:
    return len(view.shape) == 1 and view.shape[0] >= 2 and view.contiguous and view.dtype.startswith("int")


def _hull(graph: Graph) -> ByteRange:
    spans = list(graph.spans)
    return ByteRange(spans[0].start, spans[-1].stop) if spans else ByteRange(0, 0)
