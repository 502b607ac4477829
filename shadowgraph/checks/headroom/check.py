"""SG113: how far each step fills the static buffers that graphs read, and a note where their growth leads past the end.

A step's use of a buffer is taken at the start of a replay: the bytes that host code wrote since the last replay that
reads the buffer, or the entries that a plan for it has told, or, where host code writes none, what the graph's own
kernels stored in the replay before. Observed replays only: in the steady state a step that is larger than all before it
is observed (`shadowgraph.tracking.novelty`), so that marks miss little. The highest use of each buffer is a row of the
report (`Headroom.rows`); a note is made once for a buffer (`shadowgraph.checks.headroom.forecast`).

Nothing is read from memory, and a replay for which no such buffer was written costs a look-up.
"""

from __future__ import annotations

from collections import Counter, deque

from shadowgraph.checks.base import Check, Checkpoint, Context, Detection
from shadowgraph.checks.headroom import CODE
from shadowgraph.checks.headroom.facts import HeadroomDetail
from shadowgraph.checks.headroom.forecast import Limits, Point, forecast
from shadowgraph.checks.headroom.marks import Mark
from shadowgraph.checks.headroom.regions import Region, Regions
from shadowgraph.model.buffers import allocation_name
from shadowgraph.model.findings import Batch, Severity
from shadowgraph.model.graphs import Graph
from shadowgraph.model.high_water import Forecast, HighWaterMark, fullest_first
from shadowgraph.model.phases import Phase
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.writes import Write

_PAST = 64  # marks of buffers that are gone
_TOLD = 256  # plans between two replays
_MOST = 512  # regions with a mark
_OF_ONE = 4  # rows of the report on the parts of one buffer


class Headroom(Check):
    """Keeps the marks. With writes missing the use of a step would be too small, and its growth wrong."""

    needs_every_write = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._regions = Regions()
        self._marks: dict[Region, Mark] = {}
        self._past: deque[HighWaterMark] = deque(maxlen=_PAST)
        self._touched: dict[Region, None] = {}  # written, or planned for, since the last replay that reads it
        self._began: dict[int, int] = {}  # by the graph's serial: its last replay, by the clock
        self._told: deque[tuple[TensorView, int, int]] = deque(maxlen=_TOLD)  # plans since the last replay
        self._noted: set[int] = set()  # serials of buffers
        self._limits = Limits()

    # -- what adapters know --------------------------------------------------------------------------------------

    def limit(self, limits: Limits) -> None:
        """The configuration allows no larger batches than these; of several limits the strictest holds."""
        self._limits = self._limits.within(limits)

    def planned(self, view: TensorView, nbytes: int, graph: Graph) -> None:
        """A plan for a graph's next replay uses the first bytes of a view. Any thread, without a lock."""
        if view.contiguous and view.nbytes:
            self._told.append((view, nbytes, graph.serial))

    # -- events --------------------------------------------------------------------------------------------------

    @property
    def wants_known_writes(self) -> bool:
        return False

    def captured(self, graph: Graph) -> None:
        self._drop_ended()
        self._retire(self._regions.captured(graph, next(self.context.clock)))

    def written(self, write: Write, phase: Phase | None, graph: Graph | None) -> None:
        if graph is None or write.stores is not None:
            for region in self._regions.written(write, graph is not None):
                self._touched[region] = None

    def invalidate_writers(self) -> None:
        """After unseen writes: the step that is under way is not known."""
        now = next(self.context.clock)
        for region in self._regions:
            region.since = now

    def replay_begins(self, checkpoint: Checkpoint) -> None:
        graph = checkpoint.graph
        assert graph is not None
        while self._told:
            self._take_plan(*self._told.popleft())
        if self._touched:
            taken = [(region, region.take(self._is_complete(region))) for region in self._due(graph.serial)]
            uses = [(region, used) for region, used in taken if used is not None]
            if uses:
                self._note(uses, graph, checkpoint)
        self._began[graph.serial] = checkpoint.order

    def _take_plan(self, view: TensorView, nbytes: int, serial: int) -> None:
        """Note what a plan has told, of a buffer that is tracked."""
        buffer = self.context.ledger.owner(view.start, view.stop)
        if buffer is not None:
            now = next(self.context.clock)
            self._touched[self._regions.planned(buffer, view, nbytes, serial, now)] = None

    def _due(self, serial: int) -> list[Region]:
        """The regions that were written since the last replay of a graph that reads them, which begins now."""
        due = [region for region in self._touched if serial in region.readers]
        for region in due:
            del self._touched[region]
        if any(not region.buffer.alive for region in due):
            self._drop_ended()
            return [region for region in due if region.buffer.alive]
        return due

    def _is_complete(self, region: Region) -> bool:
        """Whether all writes are known since the last replay that reads a region."""
        since, began = region.since, self._began
        return any(began.get(serial, 0) > since for serial in region.readers)

    def _note(self, uses: list[tuple[Region, int]], graph: Graph, checkpoint: Checkpoint) -> None:
        """Add the uses of a step to the marks, and report what they lead to."""
        replay = checkpoint.replay or graph.replays
        batch = self.context.batch_of(graph, replay)
        due = []
        for region, used in uses:
            mark = self._marks.get(region)
            if mark is None:
                if len(self._marks) >= _MOST:
                    continue
                mark = self._marks[region] = Mark(region)
            of_replay, of_batch = replay, batch
            if region.inside:  # its own kernels wrote it in the replay before
                of_replay, of_batch = replay - 1, self.context.batch_of(graph, replay - 1)
            mark.add(_point(used, of_batch), graph.name, of_replay, of_batch)
            if region.buffer.serial not in self._noted and mark.is_due:
                due.append(mark)
        if due:
            self._judge(due, graph, checkpoint)

    def _judge(self, due: list[Mark], graph: Graph, checkpoint: Checkpoint) -> None:
        """Report, for each buffer, the part that overflows first."""
        found: dict[int, tuple[Mark, Forecast]] = {}
        for mark in due:
            leads = forecast(tuple(mark.points), mark.region.capacity, self._limits)
            if leads is None:
                continue
            known = found.get(mark.region.buffer.serial)
            if known is None or leads.overflows_at < known[1].overflows_at:
                found[mark.region.buffer.serial] = mark, leads
        for serial, (mark, leads) in found.items():
            self._noted.add(serial)
            mark.forecast = leads
            self._report(mark, leads, graph, checkpoint)

    def _report(self, mark: Mark, leads: Forecast, graph: Graph, checkpoint: Checkpoint) -> None:
        region = mark.region
        self.context.report(
            Detection(
                code=CODE,
                checkpoint=checkpoint,
                buffer=region.buffer,
                first=region.where.start,
                last=region.where.stop - 1,
                count=0,
                ranges=(),
                ranges_total=0,
                culprits=(region.write,) if region.write is not None and not region.by_plan else (),
                phase=Phase.REPLAY if region.inside else Phase.PREPARE,
                graph=graph,
                replay=mark.replay,
                severity=Severity.NOTE,
                confidence="high" if leads.limit else "medium",
                view=None if region.is_whole else region.view(),
                facts=HeadroomDetail(mark.points[-1].used, region.capacity, mark.by_row, leads, region.row),
            )
        )

    # -- the report ----------------------------------------------------------------------------------------------

    def rows(self) -> tuple[HighWaterMark, ...]:
        """The marks, the fullest first; of a buffer in parts the fullest few. Any thread; takes the name book's
        lock."""
        rows: list[HighWaterMark] = []
        of_buffer: Counter[int] = Counter()
        marks = [mark for mark in list(self._marks.values()) if mark.tells]
        for mark in sorted(marks, key=lambda mark: (mark.forecast is None, -mark.used / mark.region.capacity)):
            serial = mark.region.buffer.serial
            of_buffer[serial] += 1
            if of_buffer[serial] <= _OF_ONE:
                rows.append(mark.row(self._named(mark)))
        return tuple(fullest_first((*rows, *tuple(self._past))))

    def _named(self, mark: Mark) -> str:
        region = mark.region
        if region.buffer.alive:
            names = self.context.names
            whole = names.name_of(region.buffer)[0]
            mark.name = whole if region.is_whole else names.name_of(region.buffer, region.where)[0]
            if region.row is not None and mark.name == whole:
                mark.name = f"{whole}[{region.row}]"
        return mark.name or allocation_name(region.buffer)

    def _drop_ended(self) -> None:
        """Forget freed buffers and graphs that are gone."""
        graphs = self.context.graphs
        self._retire(self._regions.keep(graphs))
        self._began = {serial: order for serial, order in self._began.items() if serial in graphs}

    def _retire(self, ended: list[Region]) -> None:
        """Regions have ended; their marks stay in the report."""
        for region in ended:
            self._touched.pop(region, None)
            mark = self._marks.pop(region, None)
            if mark is not None and mark.tells:
                self._past.append(mark.row(self._named(mark)))


def _point(used: int, batch: Batch | None) -> Point:
    if batch is None:
        return Point(used)
    return Point(used, batch.size, max(batch.lengths, default=0), sum(batch.lengths))
