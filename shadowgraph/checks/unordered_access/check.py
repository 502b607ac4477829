"""SG115: host code writes bytes on one stream that a replay on another stream reads, and nothing orders the two.

`tracking.stream_order` knows what is ordered. Two moments are judged. When a replay begins, the writes before it on
other streams that its stream does not wait for. When host code writes, the replays on other streams that its stream
does not wait for. Then the bytes decide (`accesses`): those of a write and those that the graph reads from outside.

Most programs use one stream, and most others order their streams: both moments then cost a comparison of numbers.
Writes and replays are known of one period of observation only; the order begins anew with each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from shadowgraph.checks.base import Check, Checkpoint, Context, Detection, bytes_in
from shadowgraph.checks.unordered_access import CODE
from shadowgraph.checks.unordered_access.accesses import meeting, reads_of, writes_of
from shadowgraph.checks.unordered_access.facts import Missing, UnorderedDetail
from shadowgraph.graphs.unseen_orders import unseen_orders
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.graphs import Graph
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import RangeSet
from shadowgraph.model.stacks import Frame
from shadowgraph.tracking.stream_order import StreamOrder, order
from shadowgraph.tracking.writes import Write

_WRITES = 1024  # of one stream that are kept
_STREAMS = 64  # more streams than torch's pool has for one priority: then the oldest is forgotten


@dataclass(slots=True)
class _Period:
    """What is known of one period of observation.

    Attributes
    ----------
    writes
        Latest writes of host code by stream, each with its number there.
    replays
        The latest replay of each graph by stream: its number there, the graph and the replay.
    latest
        The number of the latest replay of any graph, by stream.
    judged
        By graph and stream of its replays: the number up to which the writes of another stream were judged.
    told
        Writes by their lines, and graphs, that were judged to meet.
    silent
        Whether orders may be unseen, so that nothing more is said in this period.
    """

    number: int
    writes: dict[int, deque[tuple[int, Write]]] = field(default_factory=dict)
    replays: dict[int, dict[int, tuple[int, Graph, int]]] = field(default_factory=dict)
    latest: dict[int, int] = field(default_factory=dict)
    judged: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)
    told: set[tuple[Frame | None, str, int, Missing]] = field(default_factory=set)
    silent: bool = False


class UnorderedAccess(Check):
    """Compares the streams of writes and of replays."""

    needs_every_write = True  # with a write unseen, so may be a wait

    def __init__(self, context: Context, streams: StreamOrder = order) -> None:
        super().__init__(context)
        self._order = streams
        self._now = _Period(-1)

    @property
    def wants_known_writes(self) -> bool:
        return False

    def invalidate_writers(self) -> None:
        """After unseen writes, and unseen waits: all that was submitted so far counts as ordered."""
        if self._order.on:
            self._order.begin()

    # -- events ----------------------------------------------------------------------------------------------------

    def captured(self, graph: Graph) -> None:
        live = self.context.graphs
        for known in self._now.replays.values():
            for serial in [each for each in known if each not in live]:
                del known[serial]
        self._now.judged = {key: upto for key, upto in self._now.judged.items() if key[0] in live}

    def written(self, write: Write, phase: Phase | None, graph: Graph | None) -> None:
        order = self._order
        if graph is not None or not order.on or order.current is None:
            return
        now, stream = self._period(), order.current()
        known = [(other, order.known(stream, other)) for other in now.latest if other != stream]
        number = order.launched(stream)
        writes = now.writes.get(stream)
        if writes is None:
            if len(now.writes) >= _STREAMS:
                del now.writes[next(iter(now.writes))]
            writes = now.writes[stream] = deque(maxlen=_WRITES)
        writes.append((number, write))
        for other, over in known:
            if now.latest[other] > over:
                self._judge_write(write, stream, other, over)

    def replay_begins(self, checkpoint: Checkpoint) -> None:
        order, graph = self._order, checkpoint.graph
        if not order.on or order.current is None or graph is None or checkpoint.replay is None:
            return
        now, stream = self._period(), order.current()
        judged = now.judged.setdefault((graph.serial, stream), {})
        for other, writes in now.writes.items():
            if other != stream and writes:
                over = max(order.known(stream, other), judged.get(other, 0))
                judged[other] = writes[-1][0]
                if writes[-1][0] > over:
                    self._judge_replay(checkpoint, stream, other, over)
        number = now.latest[stream] = order.launched(stream)
        now.replays.setdefault(stream, {})[graph.serial] = number, graph, checkpoint.replay

    def _period(self) -> _Period:
        if self._now.number != self._order.period:
            self._now = _Period(self._order.period)
        return self._now

    # -- judging ---------------------------------------------------------------------------------------------------

    def _judge_replay(self, checkpoint: Checkpoint, stream: int, other: int, over: int) -> None:
        """Judge the writes on another stream that a replay does not wait for."""
        assert checkpoint.graph is not None
        detail = UnorderedDetail(Missing.REPLAY_AFTER_WRITE, other, stream)
        for number, write in tuple(self._now.writes[other]):
            if number > over:
                self._judge(write, checkpoint.graph, checkpoint, detail)

    def _judge_write(self, write: Write, stream: int, other: int, over: int) -> None:
        """Judge the replays on another stream that a write does not wait for."""
        for number, graph, replay in tuple(self._now.replays[other].values()):
            if number > over and graph.serial in self.context.graphs:
                detail = UnorderedDetail(Missing.WRITE_AFTER_REPLAY, stream, other, replay)
                self._judge(write, graph, Checkpoint("launch", Phase.PREPARE, graph, replay + 1), detail)

    def _judge(self, write: Write, graph: Graph, checkpoint: Checkpoint, detail: UnorderedDetail) -> None:
        frame = write.launch.stack[0] if write.launch.stack else None
        site = frame, write.launch.name, graph.serial, detail.missing
        if self._now.silent:
            return
        found, certain = RangeSet(), True
        for common, sure in _meetings(write, graph):
            certain &= sure
            for part in common:
                found.add(part)
        if found and site not in self._now.told:  # it takes long to ask
            self._now.told.add(site)
            self._now.silent = unseen_orders() is not None
        if found and not self._now.silent:
            for buffer, parts in self._by_buffer(found):
                self._report(write, buffer, parts, certain, checkpoint, detail)

    def _by_buffer(self, found: RangeSet) -> Iterator[tuple[Buffer, RangeSet]]:
        by_serial: dict[int, tuple[Buffer, RangeSet]] = {}
        for part in found:
            buffer = self.context.ledger.owner(part.start, part.stop)
            if buffer is not None:
                by_serial.setdefault(buffer.serial, (buffer, RangeSet()))[1].add(part)
        yield from by_serial.values()

    def _report(
        self,
        write: Write,
        buffer: Buffer,
        found: RangeSet,
        certain: bool,
        checkpoint: Checkpoint,
        detail: UnorderedDetail,
    ) -> None:
        assert checkpoint.graph is not None
        self.context.report(
            Detection(
                code=CODE,
                checkpoint=checkpoint,
                buffer=buffer,
                **bytes_in(found),
                culprits=(write,),
                phase=Phase.PREPARE,
                graph=checkpoint.graph,
                replay=checkpoint.replay,
                confidence="high" if certain else "medium",
                key=str(checkpoint.graph.serial),
                facts=detail,
            )
        )


def _meetings(write: Write, graph: Graph) -> Iterator[tuple[RangeSet, bool]]:
    """The bytes that a write has in common with reads of a graph, and whether each of these is certain."""
    for written in writes_of(write):
        for read in reads_of(graph, written.given):
            met = meeting(written, read)
            if met is not None:
                yield met
