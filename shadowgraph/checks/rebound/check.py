"""SG108: a graph reads memory that host code no longer refreshes, because it refreshes memory at another address.

A graph keeps the addresses that it was captured with; host code keeps names. The binding between them is declared: by
an adapter that saw which tensors of an object a kernel was given, or by `Debugger.refreshes`. At the start of a replay
three facts are needed. The values that the graph should read are known: those from a plan for this very replay, or
those of the tensor that the name leads to by now. The graph's own memory holds other values. And it was not refreshed:
no launch that may have written the differing bytes was seen since the graph last began to replay, and they have not
changed since.

So no finding is made for constants, for a plan that is not remade, a refresh with equal values, a refresh by unseen
code, memory that graphs write themselves, and a graph that is no longer replayed. Freed memory is SG104's.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from shadowgraph.checks.base import Check, Checkpoint, Context
from shadowgraph.checks.rebound.bindings import Binding, Planned, first_bytes, led_to, made_by
from shadowgraph.checks.rebound.details import Rebound
from shadowgraph.checks.rebound.drafts import LARGEST, Stale, draft_of, stale_draft
from shadowgraph.checks.row_epochs import is_sure, unequal
from shadowgraph.common.compat import weak_reference
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.graphs import Graph
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.foreign import still_there, track_foreign
from shadowgraph.tracking.writes import Write

_RECENT = 256  # eager writes searched for the memory that was refreshed instead
_INSTEAD = 4  # of these that are compared


@dataclass(slots=True, eq=False)
class _Look:
    """Bytes requested at the start of a replay, and the key of each range: the graph's own first, then the memory that
    they should equal.

    Attributes
    ----------
    wanted
        The values, where they are known; else the first of `others` holds them.
    others
        Other memory, with its buffer if it is tracked, and its last write.
    """

    binding: Binding
    wanted: bytes | None
    written: RangeSet
    now: TensorView | None
    others: list[tuple[ByteRange, Buffer | None, Write | None]]
    parts: list[bytes] = field(default_factory=list)


class ReboundInputs(Check):
    """Compares the actual and the intended values where an input of a planned replay was not seen to be refreshed."""

    needs_every_write = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._bindings: dict[int, list[Binding]] = {}  # by the graph's serial
        self._owned: dict[int, dict[int, Binding]] = {}  # one of each graph, by the owner's id: read at each plan
        self._plans: dict[int, tuple[weakref.ref[Any], Planned]] = {}  # by the object's id
        self._recent: deque[tuple[int, Write]] = deque(maxlen=_RECENT)
        self._made = RangeSet()  # bytes that some graph writes

    # -- declarations -------------------------------------------------------------------------------------------

    def bind(self, graph: Graph, owner: object, attribute: str, tensor: torch.Tensor, planned: bool = True) -> bool:
        """Note that a graph was, or is being, captured with a tensor that an object's attribute leads to.

        Returns
        -------
        bool
            False for a tensor without plain memory, and for a binding that exists already.
        """
        try:
            view = TensorView.of(tensor)
        except ValueError:
            return False
        known = self._bindings.setdefault(graph.serial, [])
        same = any(b.owner() is owner and (b.attribute, b.view.start) == (attribute, view.start) for b in known)
        if same or not view.nbytes or not view.contiguous:
            return False
        buffer = track_foreign(self.context.ledger, tensor)
        known.append(Binding(graph, weak_reference(owner), type(owner).__name__, attribute, view, buffer, planned))
        self._owned.setdefault(id(owner), {})[graph.serial] = known[-1]
        plan = self._plan_of(owner)
        if plan is not None and attribute in plan.values:
            known[-1].before = plan.values[attribute]  # the graph was captured after this plan
        if graph.captured_at:
            self._begin(known[-1])
        return True

    def _begin(self, binding: Binding) -> None:
        """The graph has been captured: save the content of its memory, where a read does not wait for a device."""
        binding.since = next(self.context.clock)
        if not binding.before and not self.context.engine.asynchronous and still_there(binding.buffer):
            binding.before = self.context.engine.read(first_bytes(binding.view, LARGEST))

    def binds(self, graph: Graph, where: ByteRange) -> bool:
        """Whether a graph's memory in a range is declared to belong to an attribute."""
        return any(binding.view.hull.overlaps(where) for binding in self._bindings.get(graph.serial, ()))

    def plan(self, owner: object, planned: Planned) -> None:
        """An object has made a plan for the replays to come."""
        key, plans = id(owner), self._plans
        self._plans[key] = weak_reference(owner, lambda _: plans.pop(key, None)), planned

    def graphs_of(self, owner: object) -> list[Graph]:
        """Live graphs that were captured with memory that an object leads to. Any thread."""
        owned = self._owned.get(id(owner))
        if owned is None:
            return []
        graphs = self.context.graphs
        return [b.graph for serial, b in list(owned.items()) if serial in graphs and b.owner() is owner]

    # -- events -------------------------------------------------------------------------------------------------

    def captured(self, graph: Graph) -> None:
        graphs = self.context.graphs
        self._bindings = {s: b for s, b in self._bindings.items() if s in graphs or not b[0].graph.captured_at}
        self._owned = {}
        for serial, bindings in self._bindings.items():
            for binding in bindings:
                owner = binding.owner()
                if owner is not None:
                    self._owned.setdefault(id(owner), {})[serial] = binding
        for part in made_by(graph, stores_seen=not self.context.engine.asynchronous):
            self._made.add(part)
        for binding in self._bindings.get(graph.serial, ()):
            self._begin(binding)
            binding.since = graph.captured_at

    @property
    def wants_known_writes(self) -> bool:
        return False

    def written(self, write: Write, phase: Phase | None, graph: Graph | None) -> None:
        if not self._bindings:
            return
        if graph is not None:
            for part in write.ranges if write.stores is not None else ():
                self._made.add(part)
            return
        self._recent.append((next(self.context.clock), write))
        sure = is_sure(write)
        for bindings in self._bindings.values():
            for binding in bindings:
                for part in write.ranges.intersection(binding.view.hull):
                    (binding.written if sure else binding.perhaps).add(part)

    def invalidate_writers(self) -> None:
        """After unseen writes: no value is known to be an old one."""
        for bindings in self._bindings.values():
            for binding in bindings:
                binding.before, binding.written, binding.perhaps = b"", RangeSet(), RangeSet()
        self._recent.clear()
        self._plans.clear()

    def replay_begins(self, checkpoint: Checkpoint) -> None:
        assert checkpoint.graph is not None
        bindings = self._bindings.get(checkpoint.graph.serial)
        for binding in bindings or ():
            owner = binding.owner()
            if owner is not None and still_there(binding.buffer):
                if binding.written:
                    binding.before = self._refreshed(binding, owner)
                self._look_at(binding, owner, checkpoint)
            binding.since, binding.written, binding.perhaps = checkpoint.order, RangeSet(), RangeSet()

    # -- comparison ---------------------------------------------------------------------------------------------

    def _refreshed(self, binding: Binding, owner: object) -> bytes:
        """The former content of a binding's memory with the host's writes since, if that can be known without a
        wait."""
        if not self.context.engine.asynchronous:
            known = bytearray(binding.before)  # the rest as it was: it may have been written unseen
            for part in binding.written:
                place = slice(part.start - binding.view.start, part.stop - binding.view.start)
                if known and place.stop <= len(known):
                    known[place] = self.context.engine.read(part)
            return bytes(known)
        plan = self._plan_of(owner)
        if plan is None or RangeSet.of([binding.view.hull]) - binding.written:
            return binding.before
        return plan.values.get(binding.attribute, b"") if plan.order > binding.since else b""

    def _look_at(self, binding: Binding, owner: object, checkpoint: Checkpoint) -> None:
        plan = self._plan_of(owner)
        if plan is not None and plan.order <= binding.since:
            plan = None
        if binding.planned and plan is None:
            return
        now = led_to(owner, binding.attribute)
        into = plan.planned_into.get(binding.attribute) if plan is not None else None
        if into is None:
            moved = now is not None and now.start != binding.view.start
            self._request(binding, plan, now if moved else None, checkpoint)
        elif into != binding.view.start:
            self._report_unseen(binding, now, checkpoint)

    def _request(self, binding: Binding, plan: Planned | None, now: TensorView | None, checkpoint: Checkpoint) -> None:
        """Request the graph's memory and the memory that it should equal.

        Parameters
        ----------
        plan
            The plan for this very replay.
        now
            The attribute's current target, if that is other memory.
        """
        wanted = plan.values.get(binding.attribute) if plan is not None else None
        size = self._compared(binding, plan, wanted, now)
        others = self._others(binding, now, size, plan) if size else []
        if not size and not binding.planned and not binding.before:  # it is seen for the first time
            size = min(binding.view.nbytes, LARGEST)
        if size:
            look = _Look(binding, wanted, binding.written | binding.perhaps, now, others)
            ranges = [first_bytes(binding.view, size), *(where for where, _, _ in others)]
            self.context.engine.fetch(checkpoint, [(look, where) for where in ranges])

    def _compared(self, binding: Binding, plan: Planned | None, wanted: bytes | None, now: TensorView | None) -> int:
        """How many of the first bytes are compared; 0 where the intended values are unknown, or all bytes are
        refreshed."""
        known = len(wanted) if wanted is not None else _known_by_name(binding, plan, now)
        size = min(known, binding.view.nbytes, LARGEST)
        if not size:
            return 0
        left = RangeSet.of([first_bytes(binding.view, size)]) - binding.written - self._made
        return size if left else 0

    def _others(
        self, binding: Binding, now: TensorView | None, size: int, plan: Planned | None
    ) -> list[tuple[ByteRange, Buffer | None, Write | None]]:
        """Other places that may hold the values: where the name leads now, and the host's writes since the last
        replay."""
        found: list[tuple[ByteRange, Buffer | None, Write | None]] = []
        since = [write for order, write in self._recent if order > binding.since]
        if now is not None:
            where = first_bytes(now, size)
            found.append((where, self.context.ledger.owner(now.start, now.stop), _last_to(where, since)))
        for write in reversed(since if plan is not None else []):
            for where, buffer in self._written_by(write, binding, size):
                if all(where != other for other, _, _ in found):
                    found.append((where, buffer, write))
            if len(found) >= _INSTEAD:
                break
        return found[:_INSTEAD]

    def _written_by(self, write: Write, binding: Binding, size: int) -> Iterator[tuple[ByteRange, Buffer]]:
        """Places of `size` bytes outside a binding's own memory where a write may have put the values."""
        for pointer in write.launch.pointers:
            if not pointer.may_write or pointer.view.dtype != binding.view.dtype:
                continue
            buffer = self.context.ledger.owner(pointer.view.start, pointer.view.stop)
            if buffer is None or not still_there(buffer):
                continue
            for start in (pointer.view.start, buffer.start):
                where = ByteRange(start, min(start + size, buffer.stop))
                if where.nbytes == size and not where.overlaps(binding.view.hull):
                    yield where, buffer

    def owns(self, key: object) -> bool:
        return isinstance(key, _Look)

    def fetched(self, key: object, data: bytes, checkpoint: Checkpoint) -> None:
        assert isinstance(key, _Look)
        key.parts.append(data)
        if len(key.parts) == 1 + len(key.others):
            self._judge(key, checkpoint)

    def _judge(self, look: _Look, checkpoint: Checkpoint) -> None:
        binding, found = look.binding, look.parts[0]
        before, binding.before = binding.before, found
        if look.wanted is None and not look.others:
            return
        wanted = look.wanted if look.wanted is not None else look.parts[1]
        size = min(len(found), len(wanted))
        item = binding.view.itemsize
        differs = unequal(found[:size], wanted[:size], item)
        kept = ~unequal(found[:size], before[:size], item) if len(before) >= size else np.zeros(len(differs), bool)
        ours = look.written | RangeSet.of(self._made.intersection(binding.view.hull))
        start = binding.view.start
        stale = [
            at
            for at in np.flatnonzero(differs & kept).tolist()
            if not ours.overlaps(ByteRange(start + at * item, start + (at + 1) * item))
        ]
        if stale:
            old = Stale(binding.view, binding.buffer, stale, found[:size], wanted[:size])
            self._report(look, old, checkpoint)

    def _report(self, look: _Look, stale: Stale, checkpoint: Checkpoint) -> None:
        binding, size = look.binding, len(stale.wanted)
        others = zip(look.others, look.parts[1:], strict=True)
        instead = (other for other, data in others if data[:size] == stale.wanted)
        where, buffer, write = next(instead, (None, None, None))
        facts = Rebound(binding.attribute, binding.kind, look.now, where, buffer, look.wanted is not None)
        sure = not self.context.engine.asynchronous
        self._rename(look.now)
        self.context.report(stale_draft(checkpoint, stale, binding.attribute, write, facts, sure))

    def _report_unseen(self, binding: Binding, now: TensorView | None, checkpoint: Checkpoint) -> None:
        """A plan was written to other memory than the graph's: no comparison is needed."""
        sure = not self.context.engine.asynchronous
        draft = draft_of(checkpoint, binding.view, binding.buffer, binding.attribute, sure)
        self._rename(now)
        self.context.report(replace(draft, facts=Rebound(binding.attribute, binding.kind, now, None, None, True)))

    def _rename(self, now: TensorView | None) -> None:
        """Walk the names again where an attribute leads elsewhere: that alone allocates and frees nothing."""
        if now is not None:
            self.context.names.refresh(anew=True)

    def _plan_of(self, owner: object) -> Planned | None:
        known = self._plans.get(id(owner))
        return known[1] if known is not None and known[0]() is owner else None


def _known_by_name(binding: Binding, plan: Planned | None, now: TensorView | None) -> int:
    """How many of the first bytes are known from the memory that the attribute leads to now."""
    view = binding.view
    if now is None or now.dtype != view.dtype or not now.contiguous:
        return 0
    size = view.nbytes
    if plan is not None:
        size = plan.used.get(binding.attribute, view.nbytes if now.shape == view.shape else 0)
    return min(size, now.nbytes)


def _last_to(where: ByteRange, writes: Sequence[Write]) -> Write | None:
    """The last of the writes that may have written a range."""
    return next((write for write in reversed(writes) if write.ranges.overlaps(where)), None)
