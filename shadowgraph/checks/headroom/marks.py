"""What is kept of the uses of one region: the highest, the lowest, and the last points.

Used by `Headroom`, under the debugger's lock; any thread may read.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from shadowgraph.checks.headroom.forecast import Point, grows
from shadowgraph.checks.headroom.regions import Region
from shadowgraph.model.findings import Batch
from shadowgraph.model.high_water import Forecast, HighWaterMark, MarkedBatch, MarkedBy

_KEPT = 64  # points
_AGAIN = 1 / 32  # of the capacity: growth after which the same buffer is judged again


@dataclass(slots=True, eq=False)
class Mark:
    """The uses of one region.

    Attributes
    ----------
    used, graph, replay, batch
        The highest use, the first replay that had it, and its batch.
    by_row
        Whether the points count within a row.
    forecast
        As of the note.
    judged, rose
        The use when it was last judged, and whether the last point is higher than all before.
    name
        The region's name when it was last asked for: names end with the memory.
    """

    region: Region
    used: int = -1
    least: int = -1
    graph: str = ""
    replay: int = 0
    steps: int = 0
    batch: Batch | None = None
    by_row: bool = False
    forecast: Forecast | None = None
    name: str = ""
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=_KEPT))
    judged: int = -1
    rose: bool = False

    def add(self, point: Point, graph: str, replay: int, batch: Batch | None) -> None:
        """Add the use of a replay."""
        if self.by_row is not self.region.by_row:  # it was taken for a whole buffer while only full rows were written
            self.by_row, self.used, self.steps, self.judged = self.region.by_row, -1, 0, -1
            self.points.clear()
        self.rose = point.used > self.used
        if self.rose:
            self.used, self.graph, self.replay, self.batch = point.used, graph, replay, batch
        self.least = min(self.least, point.used) if self.steps else point.used
        self.steps += 1
        self.points.append(point)

    @property
    def is_due(self) -> bool:
        """Whether the use has grown, and enough since it was last judged."""
        capacity = self.region.capacity
        if not self.rose or self.used - self.judged < capacity * _AGAIN:
            return False
        points = tuple(self.points)
        if not grows(points, capacity):
            return False
        self.judged = self.used
        return True

    @property
    def tells(self) -> bool:
        """Whether a report has a row for it: not for a buffer that each step fills to its end, as it is meant to."""
        return self.steps > 0 and self.least < self.region.capacity

    def row(self, name: str) -> HighWaterMark:
        """The mark as a row of a report."""
        region, batch = self.region, self.batch
        return HighWaterMark(
            buffer=name,
            dtype=region.buffer.dtype if region.is_whole else region.dtype,
            shape=region.buffer.shape if region.is_whole else region.view().shape,
            used=self.used,
            capacity=region.capacity,
            by_row=self.by_row,
            graph=self.graph,
            replay=self.replay,
            least=self.least,
            latest=self.points[-1].used,
            steps=self.steps,
            source=MarkedBy.PLAN if region.by_plan else MarkedBy.GRAPH if region.inside else MarkedBy.PREPARE,
            batch=_batch(batch) if batch is not None else None,
            forecast=self.forecast,
        )


def _batch(batch: Batch) -> MarkedBatch:
    return MarkedBatch(batch.size, batch.padded_to, max(batch.lengths, default=0), sum(batch.lengths))
