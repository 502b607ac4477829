"""SG101 from write sets: a node wrote outside the view that it was given, or over a row's end into the next row.

The locator calls it after a probed replay, under the debugger's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from shadowgraph.checks.base import Context, Detection
from shadowgraph.checks.out_of_bounds import CODE
from shadowgraph.checks.out_of_bounds.check import slack_of
from shadowgraph.checks.out_of_bounds.facts import OverrunDetail, RowOverrun
from shadowgraph.checks.out_of_bounds.view_overruns import ViewOverrun, view_overruns
from shadowgraph.checks.out_of_bounds.view_partition import runs_of
from shadowgraph.checks.pending_confirmation import Suspicions
from shadowgraph.checks.probed import CellChange, Probed, ProbedCheck, draft_of, report_all
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.findings import Severity
from shadowgraph.model.graphs import Graph
from shadowgraph.model.guards import Side
from shadowgraph.model.ranges import ByteRange, RangeSet


class GivenViews(ProbedCheck):
    """Checks probed replays for writes outside the given views.

    Attributes
    ----------
    suspicions
        Suspected nodes, which the next replay must confirm before they are named.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.suspicions = Suspicions(context.engine.asynchronous)
        self.pending = self.suspicions.by_graph

    def probed(self, seen: Probed) -> None:
        """Buffers were compared cell by cell after every node of a replay."""
        found = {(spill.node, spill.buffer.serial): spill for spill in self._spills(seen)}
        sure = self.suspicions.settle(seen.graph.serial, {key: spill.buffer for key, spill in found.items()})
        alike: dict[tuple[int, str, Side | None], list[ViewOverrun]] = {}
        for key, spill in found.items():
            if key in sure:
                side = Side.ROW if row_overrun(spill) is not None else None
                alike.setdefault((spill.buffer.serial, spill.name, side), []).append(spill)
        report_all(self.context, (self._draft(seen, side, spills) for (*_, side), spills in alike.items()))

    def cells_wanted(self, graph: int) -> Iterable[Buffer]:
        return self.suspicions.buffers(graph)

    def _spills(self, seen: Probed) -> Iterator[ViewOverrun]:
        slack: dict[int, RangeSet] = {}
        for spill in view_overruns(seen.graph, seen.cells):
            known = slack.setdefault(spill.buffer.serial, RangeSet.of(self._told_as_slack(seen.graph, spill.buffer)))
            outside = tuple(change for change in spill.outside if not known.overlaps(change.extent))
            if outside and not any(seen.meanwhile.overlaps(change.extent) for change in outside):
                yield replace(spill, outside=outside)

    def _told_as_slack(self, graph: Graph, buffer: Buffer) -> Iterable[ByteRange]:
        """Bytes that no node may change in a replay: `OutOfBounds` compares these at every replay."""
        if buffer.role is Role.POOL or buffer.nbytes > self.context.settings.shadow_limit:
            return ()
        return slack_of(graph, buffer)

    def _draft(self, seen: Probed, side: Side | None, spills: list[ViewOverrun]) -> Detection:
        """One detection for all launches of a kernel; an error of one launch makes the whole detection an error."""
        order = sorted(spills, key=lambda spill: (spill.severity is not Severity.ERROR, spill.node))
        first, changes = order[0], [change for spill in order for change in spill.outside]
        where = RangeSet.of(change.extent for change in changes)
        sure = "medium" if self.context.engine.asynchronous or not first.by_signature else "high"
        draft = draft_of(
            CODE, self.context, seen, first.buffer, tuple(spill.node for spill in order), where,
            min(where.nbytes, sum(change.hit.count for change in changes)), sure,
        )  # fmt: skip
        rows = sorted((row for row in map(row_overrun, order) if row is not None), key=lambda row: row.row)
        return replace(draft, side=side, facts=OverrunDetail(tuple(rows)), severity=first.severity, key=first.name)


def row_overrun(spill: ViewOverrun) -> RowOverrun | None:
    """The row of a two-dimensional buffer whose end a node wrote over, or None if it did not.

    `lost` counts elements that the launches of both rows changed, as far as the extremes of each launch's changes tell.
    """
    buffer = spill.buffer
    if len(buffer.shape) != 2 or buffer.nbytes % max(1, buffer.shape[0]):
        return None
    stride, size = buffer.nbytes // buffer.shape[0], buffer.itemsize
    given = _given(spill)
    row = (given.start - buffer.start) // stride
    end = buffer.start + (row + 1) * stride
    if given.stop > end or min(change.cell.start for change in spill.outside) < end:
        return None  # more than a row, or not over its end
    reached = max(change.hit.last for change in spill.outside)
    into = range(row + 1, (reached - buffer.start) // stride + 1)
    lost = sum(_shared(change, spill.theirs.get(change.cell, ()), size) for change in spill.outside)
    return RowOverrun(row, buffer.shape[1], -(-(reached + 1 - end) // size), lost, tuple(into), buffer.shape[0])


def _given(spill: ViewOverrun) -> ByteRange:
    """From the first to the last byte of the views that the node was given."""
    runs = [run for pointer in spill.own for run in runs_of(pointer.view)]
    return ByteRange(min(run.start for run in runs), max(run.stop for run in runs))


def _shared(change: CellChange, theirs: tuple[CellChange, ...], size: int) -> int:
    """Elements of a cell that a node and another one changed."""
    most = 0
    for other in theirs:
        both = change.extent.intersect(other.extent)
        if both is not None:
            start = change.cell.start
            elements = (both.stop - 1 - start) // size - (both.start - start) // size + 1
            most = max(most, min(elements, change.hit.count, other.hit.count))
    return most
