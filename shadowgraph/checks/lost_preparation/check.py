"""SG114: bytes prepared for a graph's coming replay were overwritten for another replay before it read them.

Eager writes of bytes that graphs read are kept in order. As a graph is about to replay, each byte that it reads shows
the latest write to it since the graph's last replay. That write hides others. One is lost if it was for this graph, and
the write that hides it was for another. Which graph a write was for is known in four ways:

- It was declared: a prepare block, an adapter's, or the plan of an object that the graph was captured with.
- By lines: until now one graph alone has read what the one line wrote, and another graph what the other line did.
- By calls: the two writes were made by two calls, and one graph alone reads all that the one wrote, another graph all
  that the other did.
- By order, at the other graph's replay: both graphs read the one write that hides the other, while in a step before
  each had a write of its own. Without such a step, a second sighting with other values is a note.

So no finding is made for an input that is refreshed once for two graphs, two writes for one replay, a preparation that
was given up and made again, bytes that the graph writes before it reads them, and equal values. Values are compared
where they can be had: on the host after each write, on a device in stream order before the write that hides them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from shadowgraph.checks.base import Check, Checkpoint, Context
from shadowgraph.checks.lost_preparation.comparison import Loss, comparable, limited
from shadowgraph.checks.lost_preparation.facts import Known
from shadowgraph.checks.lost_preparation.inputs import GraphInputs, common
from shadowgraph.checks.lost_preparation.intentions import Intentions, Verdict
from shadowgraph.checks.lost_preparation.pairing import Turns
from shadowgraph.checks.lost_preparation.preparations import NOTHING, Copy, Layer, Preparations, Prepared
from shadowgraph.checks.lost_preparation.reporting import detections
from shadowgraph.checks.row_epochs import is_constant, is_sure
from shadowgraph.checks.stale_rows.static_inputs import REBINDS
from shadowgraph.model.graphs import Graph
from shadowgraph.model.launches import Launch
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.stacks import Stack
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.writes import Write

_BEGUN = 256  # replays remembered
_PLACES = 256  # ranges of writes whose readers are remembered
_ARMED = 256  # ranges of which, on a device, the next lost write is to be copied
_SUSPECTED = 32  # writes that hide others, until a second graph reads them
_OWN = 3  # replays with writes of their own, before one without
_PIECES = 8  # ranges of a write that are looked up one by one


class LostPreparations(Check):
    """Follows eager writes to the replays that read them."""

    needs_every_write = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._inputs: dict[int, GraphInputs] = {}  # by the graph's serial
        self._bound: dict[int, list[ByteRange]] = {}  # until the graph is met
        self._readers: dict[tuple[tuple[int, int], ...], frozenset[int]] = {}  # by ranges: serials of graphs
        self._log, self._turns = Preparations(), Turns()
        self._begun: deque[tuple[int, int]] = deque(maxlen=_BEGUN)  # by the clock, and the graph's serial
        self._intentions = Intentions(context, self._log, self._begun)
        self._suspected: dict[Prepared, list[Loss]] = {}  # by the write that hides another
        self._values: dict[tuple[int, int], list[bytes]] = {}  # of the latest write that was lost by count
        self._waiting: deque[Loss] = deque(maxlen=_SUSPECTED)
        self._armed = RangeSet()

    # -- declarations and launches --------------------------------------------------------------------------------

    def bind(self, graph: Graph, view: TensorView) -> None:
        """A kernel of a graph that is, or was, captured was given this memory as an input, says an adapter."""
        inputs = self._inputs.get(graph.serial)
        if inputs is None:
            self._bound.setdefault(graph.serial, []).append(view.hull)
        else:
            inputs.bound(view.hull)
            self._met(inputs)

    def planned(self, launch: Launch, graph: Graph | None, where: ByteRange) -> None:
        """A planner is about to write some of these bytes for a graph's coming replay, where no launch is seen."""
        self._keep_values(launch, graph, [where])
        serial = graph.serial if graph is not None else None
        self._note(Write(launch, RangeSet.of([where]), opaque=True, prepares=serial))

    @property
    def expects_launches(self) -> bool:
        """Whether `launch_begins` may do anything, on a device; elsewhere values are known already."""
        return bool(self._log)

    def launch_begins(self, launch: Launch, graph: Graph | None) -> None:
        """A launch is about to run that may overwrite what was prepared for a replay; `graph` is the one that it is
        declared to prepare."""
        self._keep_values(launch, graph, [p.view.hull for p in launch.pointers if p.may_write])

    def _keep_values(self, launch: Launch, graph: Graph | None, into: Sequence[ByteRange]) -> None:
        """Copy what a launch is about to overwrite, where it seems to be for another replay."""
        hidden = {run.entry.order: run.entry for where in into for run in self._log.shown(where)}
        for entry in hidden.values():
            if entry.settled:
                continue
            parts = common(entry.ranges, RangeSet.of(into)) - RangeSet.of(copy.where for copy in entry.copies)
            if self._intentions.differ(entry, launch, graph) or any(self._armed.overlaps(part) for part in parts):
                checkpoint = Checkpoint("launch_begins", order=next(self.context.clock))
                entry.copies += self._copied(limited(parts), checkpoint)

    def _copied(self, ranges: Iterable[ByteRange], checkpoint: Checkpoint) -> list[Copy]:
        """Copies of memory as it is now; on a device they arrive later."""
        engine = self.context.engine
        if not engine.asynchronous:
            return [Copy(where, engine.read(where)) for where in ranges]
        copies = [Copy(where) for where in ranges]
        if copies:
            engine.fetch(checkpoint, [(copy, copy.where) for copy in copies])
        return copies

    # -- events ---------------------------------------------------------------------------------------------------

    def captured(self, graph: Graph) -> None:
        for serial in [serial for serial in self._inputs if serial not in self.context.graphs]:
            del self._inputs[serial]
            self._turns.forget(serial)
        inputs = self._inputs[graph.serial] = GraphInputs(graph, not self.context.engine.asynchronous)
        for where in self._bound.pop(graph.serial, ()):
            inputs.bound(where)
        inputs.since = inputs.since or next(self.context.clock)
        self._met(inputs)
        for layer in self._log.layers(graph.serial, inputs.live, 0, inputs.since):
            self._intentions.feed(layer.entry, graph.serial)  # what it was captured with was prepared for it, too

    def _met(self, inputs: GraphInputs) -> None:
        """What a graph reads is known, or has changed."""
        self._readers.clear()
        self._log.met(inputs.graph.serial, inputs.live)

    @property
    def wants_known_writes(self) -> bool:
        return False

    def written(self, write: Write, phase: Phase | None, graph: Graph | None) -> None:
        if graph is not None:
            inputs = self._inputs.get(graph.serial) if write.stores is not None else None
            if inputs is not None and inputs.stored(write.ranges):
                self._readers.clear()
        elif not write.launch.name.startswith(REBINDS):
            self._note(write)

    def _note(self, write: Write) -> None:
        graph = self.context.graphs.get(write.prepares) if write.prepares is not None else None
        entry = Prepared(
            order=next(self.context.clock),
            write=write,
            meant=graph.serial if graph is not None else None,
            replay=graph.replays + 1 if graph is not None else None,
            sure=is_sure(write),
            constant=is_constant(write),
            readers=self._readers_of(write) if self._inputs else frozenset(),
        )
        shared = entry.meant is not None or len(entry.readers) > 1
        if entry.readers and shared and not write.opaque and not self.context.engine.asynchronous:
            entry.copies = [Copy(where, self.context.engine.read(where)) for where in limited(write.ranges)]
        self._log.add(entry, early=entry.meant is not None and entry.meant not in self._inputs)

    def known(self, since: int, graph: Graph | None) -> None:
        """It is known now what undeclared writes from a time on were for: a graph's coming replay, or none."""
        for entry in self._log.kept(since):
            if entry.meant is None and not entry.consumers:
                entry.meant = graph.serial if graph is not None else NOTHING
                entry.replay = graph.replays + 1 if graph is not None else None

    def _readers_of(self, write: Write) -> frozenset[int]:
        """Serials of the graphs that read some of the bytes of a write."""
        parts = list(write.ranges)
        if len(parts) > _PIECES:
            parts = [ByteRange(parts[0].start, parts[-1].stop)]
        key = tuple((part.start, part.stop) for part in parts)
        known = self._readers.get(key)
        if known is None:
            if len(self._readers) >= _PLACES:
                self._readers.clear()
            found = (s for s, inputs in self._inputs.items() if any(inputs.live.overlaps(part) for part in parts))
            known = self._readers[key] = frozenset(found)
        return known

    def host_read(self, view: TensorView, how: str, stack: Stack, checkpoint: Checkpoint) -> None:
        self._log.host_read(view.hull)

    def invalidate_writers(self) -> None:
        """After unseen writes: what a replay finds is not known to be what was prepared."""
        self._log.clear()
        self._suspected.clear()
        now = next(self.context.clock)
        for inputs in self._inputs.values():
            inputs.since = now

    def replay_begins(self, checkpoint: Checkpoint) -> None:
        graph = checkpoint.graph
        inputs = self._inputs.get(graph.serial) if graph is not None else None
        if graph is None or inputs is None:
            return
        if graph.replays > 1 and inputs.replayed():
            self._met(inputs)
        found = self._log.layers(graph.serial, inputs.live, inputs.since)
        self._replays_again(inputs, bool(found))
        for layer, hides in [(layer, [] if layer.is_plain else layer.hides) for layer in found]:
            self._consume(layer, hides, inputs, checkpoint, found)
        inputs.since = checkpoint.order
        self._begun.append((checkpoint.order, graph.serial))

    def owns(self, key: object) -> bool:
        return isinstance(key, Copy)

    def fetched(self, key: object, data: bytes, checkpoint: Checkpoint) -> None:
        assert isinstance(key, Copy)
        key.data = data
        for loss in tuple(self._waiting):
            if not loss.waits:
                self._waiting.remove(loss)
                self._report(loss)

    # -- what is lost for sure ------------------------------------------------------------------------------------

    def _loses(
        self, layer: Layer, hides: Sequence[tuple[Prepared, RangeSet]], inputs: GraphInputs, checkpoint: Checkpoint
    ) -> bool:
        """Look for writes that were for this replay and are hidden by one that was for another; whether there are
        some."""
        left, found = inputs.live.copy(), False
        for entry, hidden in hides:
            parts = common(hidden, left)
            verdict = self._intentions.verdict(entry, layer.entry, inputs.graph) if parts else None
            if verdict is None or self._intentions.given_up(layer.entry, inputs.graph):
                if entry.meant is None and layer.entry.meant is not None:
                    left = left - parts  # the bytes were no longer those of an earlier write
                continue
            found, left = True, left - parts
            loss = self._loss(entry, layer.entry, parts, inputs, checkpoint)
            self._conclude(loss, verdict)
        return found

    # -- what follows from the order of writes and replays --------------------------------------------------------

    def _consume(
        self,
        layer: Layer,
        hides: Sequence[tuple[Prepared, RangeSet]],
        inputs: GraphInputs,
        checkpoint: Checkpoint,
        found: Sequence[Layer],
    ) -> None:
        """A replay finds bytes of a write, and the unread ones that it hides."""
        entry, serial = layer.entry, inputs.graph.serial
        lossy = bool(hides) and self._loses(layer, hides, inputs, checkpoint)
        others = [other for other in entry.consumers if other != serial]
        if not entry.consumers:
            self._note_turn(layer, serial)
            if hides and not lossy:
                self._suspect(layer, hides, inputs, checkpoint)
        elif others and entry in self._suspected:
            losses = self._suspected.pop(entry)
            if not self._is_left_over(entry, found):
                self._decide(losses, inputs, checkpoint)
        elif others and not lossy:
            self._turns.together.update(frozenset((other, serial)) for other in others)
        if serial not in entry.consumers:
            entry.consumers.append(serial)
        if not lossy and entry.meant is None and len(self._inputs) > 1:
            self._intentions.feed(entry, serial)

    def _note_turn(self, layer: Layer, serial: int) -> None:
        """Note that a replay found a write of its own, behind one that another graph had read."""
        before = layer.before
        if before is not None and before.consumers[-1] != serial and layer.entry.differs(before):
            self._turns.apart[before.consumers[-1], serial] += 1

    def _replays_again(self, inputs: GraphInputs, written: bool) -> None:
        """A replay comes without a write of its own: if the one before had two, the first of them was for that one,
        and the second for this. So it is if each replay before had one."""
        serial, turns = inputs.graph.serial, self._turns
        if written:
            turns.own[serial] += 1
            return
        before = [each for by in self._suspected if by.consumers == [serial] for each in self._suspected[by]]
        if turns.own[serial] >= _OWN and not turns.again[serial]:
            for loss in before:
                same = common(loss.lost.ranges, inputs.live) == common(loss.by.ranges, inputs.live)
                if same and loss.graph is inputs.graph and loss.replay == inputs.graph.replays - 1:
                    self._conclude(loss, Verdict(Known.ORDER, inputs.graph, inputs.graph.replays))
        turns.again[serial] += 1

    def _suspect(
        self, layer: Layer, hides: Sequence[tuple[Prepared, RangeSet]], inputs: GraphInputs, checkpoint: Checkpoint
    ) -> None:
        """A write was overwritten before any replay read it: lost, if the next replay of another graph has no write of
        its own either."""
        by = layer.entry
        lost, parts = next((hidden for hidden in hides if not hidden[0].constant), hides[0])
        parts = common(parts, inputs.live)
        if lost.meant != by.meant or not _hold_values(lost, by) or self._was_read(lost, by, inputs.graph):
            return
        if self._intentions.parted(lost, by):
            return
        if len(self._suspected) >= _SUSPECTED:
            del self._suspected[next(iter(self._suspected))]
        self._suspected[by] = [self._loss(lost, by, parts, inputs, checkpoint)]

    def _was_read(self, lost: Prepared, by: Prepared, graph: Graph) -> bool:
        """Whether anything may have read a write before another one hid it."""
        if lost.seen or lost.read_by_others(graph.serial):
            return True
        return any(entry.may_read(lost.ranges) for entry in self._log.between(lost.order, by.order))

    def _is_left_over(self, entry: Prepared, found: Sequence[Layer]) -> bool:
        """Whether a replay finds a later write in the same buffer, too: what it finds of this one lies in rows that its
        own preparation leaves alone, such as padding."""
        at = self.context.ledger.at
        buffers = {buffer.serial for part in entry.ranges if (buffer := at(part.start)) is not None}
        later = (part for each in found if each.entry.order > entry.order for part in each.entry.ranges)
        return any((buffer := at(part.start)) is not None and buffer.serial in buffers for part in later)

    def _decide(self, losses: list[Loss], inputs: GraphInputs, checkpoint: Checkpoint) -> None:
        """A second graph reads a write that hides another."""
        other = inputs.graph
        for loss in losses:
            pair = loss.graph.serial, other.serial
            reader = self._inputs.get(pair[0])
            named = loss.by.meant is not None
            if named or reader is None or frozenset(pair) in self._turns.together or len(loss.by.consumers) > 1:
                continue
            both = common(reader.live, inputs.live)
            if common(loss.lost.ranges, both) != common(loss.by.ranges, both):
                continue  # one of them refreshes a part of what the other did
            if self._turns.apart[pair]:
                self._conclude(loss, Verdict(Known.ORDER, other, checkpoint.replay))
            elif self._is_counted(pair, loss):
                self._conclude(loss, Verdict(Known.COUNT, other, checkpoint.replay))

    def _is_counted(self, pair: tuple[int, int], loss: Loss) -> bool:
        """Whether this is a second sighting, with other values: a write of the same values in each step is a reset.
        Values of a device come too late for that."""
        values = [copy.data for copy in loss.lost.copies if copy.data is not None]
        before, self._values[pair] = self._values.get(pair), values
        return before is not None and before != values and not self.context.engine.asynchronous

    # -- findings -------------------------------------------------------------------------------------------------

    def _loss(self, lost: Prepared, by: Prepared, parts: RangeSet, inputs: GraphInputs, checkpoint: Checkpoint) -> Loss:
        """A write that may be lost, with what the replay finds in its place."""
        doubtful = any(inputs.doubtful.overlaps(part) for part in parts)
        for order, serial in self._begun:
            other = self._inputs.get(serial)
            if order > lost.order and other is not None and serial != inputs.graph.serial:
                parts = parts - other.made
                if self.context.engine.asynchronous:
                    doubtful |= any(other.perhaps_made.overlaps(part) for part in parts)
        parts = RangeSet.of(part for part in parts if self.context.ledger.holds(part))
        if self.context.engine.asynchronous and not lost.copies and len(self._armed) < _ARMED:
            for part in parts:  # next time there will be copies
                self._armed.add(part)
        loss = Loss(lost, by, inputs.graph, inputs.graph.replays, checkpoint, parts, doubtful)
        loss.found = self._copied(comparable(lost, parts), checkpoint)
        return loss

    def _conclude(self, loss: Loss, verdict: Verdict) -> None:
        loss.known, loss.other, loss.other_replay = verdict.known, verdict.other, verdict.other_replay
        if loss.waits:
            self._waiting.append(loss)
        else:
            self._report(loss)

    def _report(self, loss: Loss) -> None:
        for detection in detections(loss, self.context):
            self.context.report(detection)


def _hold_values(*writes: Prepared) -> bool:
    """Whether writes certainly wrote all their bytes, none as a fill."""
    return all(write.sure and not write.constant for write in writes)
