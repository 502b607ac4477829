"""SG101: a write outside its buffer, into slack that the graph did not capture, or past a row's end.

Guards are checked at every checkpoint, and slack across a replay. The hooks run under the debugger's lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shadowgraph.checks.attribution import draft_phase, suspects
from shadowgraph.checks.base import Check, Checkpoint, Detection, bytes_in
from shadowgraph.checks.out_of_bounds import CODE
from shadowgraph.checks.out_of_bounds.facts import OverrunDetail, RowOverrun
from shadowgraph.checks.out_of_bounds.rows import TableOverruns, overwritten, row_overruns, stored_twice, table_overruns
from shadowgraph.checks.out_of_bounds.table_views import tables_of
from shadowgraph.checks.out_of_bounds.unguarded_overruns import unguarded_stores
from shadowgraph.engines.base import Evidence
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.graphs import Graph
from shadowgraph.model.guards import Guard, Side
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.stores import StoreLog
from shadowgraph.tracking.writes import Write

_LOST_BYTES = 256  # lost elements whose two values a finding keeps


@dataclass(frozen=True, slots=True)
class _Slack:
    """Key of a part of a shadow copy: bytes of a buffer that a graph captured no view of."""

    buffer: Buffer
    where: ByteRange


class OutOfBounds(Check):
    """Checks guards at every checkpoint; slack across a replay only, because the host may legitimately fill it in
    prepare."""

    def parts(self, graph: Graph) -> Iterable[tuple[object, ByteRange]]:
        for buffer in self.context.ledger:
            if buffer.role is Role.POOL or buffer.nbytes > self.context.settings.shadow_limit:
                continue
            for where in slack_of(graph, buffer):
                yield _Slack(buffer, where), where

    def owns(self, key: object) -> bool:
        return isinstance(key, _Slack)

    def changed(self, evidence: Evidence[object], checkpoint: Checkpoint) -> None:
        assert isinstance(evidence.subject, _Slack)
        writes = checkpoint.writes.culprits(*evidence.parts)
        if writes and all(write.node is None for write in writes):
            return  # eager code of another thread filled it while this graph ran
        self._report(evidence, evidence.subject.buffer, Side.SLACK, checkpoint)

    def broken_guard(self, evidence: Evidence[object], checkpoint: Checkpoint) -> None:
        """A guard no longer holds its canary (an engine without `keeps` has armed it again)."""
        assert isinstance(evidence.subject, Guard)
        self._report(evidence, evidence.subject.buffer, evidence.subject.side, checkpoint)

    def checkpoint_ends(self, checkpoint: Checkpoint) -> None:
        """Damage known from a launch's own stores where no guard could break: lost rows, and overruns of unguarded
        buffers."""
        for write in checkpoint.writes.stored():
            for buffer, side, where in unguarded_stores(write, self.context.ledger):
                self._report_stray(write, buffer, side, where, checkpoint)
            if write.stores is not None:
                self._check_rows(write, write.stores, checkpoint)

    def _check_rows(self, write: Write, stores: StoreLog, checkpoint: Checkpoint) -> None:
        told: set[int] = set()  # serials of buffers; a table may have been given in several forms
        for view, buffer in self._tables(write, stores).items():
            if buffer.serial not in told:
                found = table_overruns(stores, view, _extent(buffer))
                if found.lost:
                    told.add(buffer.serial)
                    self._report_rows(write, buffer, view, found, checkpoint)

    def _report(self, evidence: Evidence[object], buffer: Buffer, side: Side, checkpoint: Checkpoint) -> None:
        culprits = suspects(self.context, checkpoint, buffer, evidence.parts)
        phase, graph, replay = draft_phase(self.context, checkpoint, buffer.range, culprits)
        unsure = _late(evidence) and (self.context.engine.asynchronous or not culprits)
        self.context.report(
            Detection.of(
                CODE,
                checkpoint,
                buffer,
                evidence,
                side=side,
                truncated=evidence.truncated,
                culprits=culprits,
                phase=phase,
                graph=graph,
                replay=replay,
                facts=OverrunDetail(rows_of(culprits[-1], buffer) if culprits else ()),
                confidence="low" if unsure else "high",
                key=culprits[-1].launch.name if culprits else "",
            )
        )

    def _report_stray(self, write: Write, buffer: Buffer, side: Side, where: ByteRange, checkpoint: Checkpoint) -> None:
        phase, graph, replay = draft_phase(self.context, checkpoint, buffer.range, (write,))
        self.context.report(
            Detection(
                code=CODE,
                checkpoint=checkpoint,
                buffer=buffer,
                first=where.start,
                last=where.stop - 1,
                count=where.nbytes,
                ranges=((where.start, where.stop - 1),),
                side=side,
                culprits=(write,),
                phase=phase,
                graph=graph,
                replay=replay,
                facts=OverrunDetail(rows_of(write, buffer)),
                key=write.launch.name,
            )
        )

    def _report_rows(
        self, write: Write, buffer: Buffer, view: TensorView, found: TableOverruns, checkpoint: Checkpoint
    ) -> None:
        phase, graph, replay = draft_phase(self.context, checkpoint, buffer.range, (write,))
        window, expected, found_there = _lost_values(write, found)
        self.context.report(
            Detection(
                code=CODE,
                checkpoint=checkpoint,
                buffer=buffer,
                **bytes_in(found.lost),
                window=window,
                expected=expected,
                found=found_there,
                side=Side.ROW,
                culprits=(write,),
                phase=phase,
                graph=graph,
                replay=replay,
                facts=OverrunDetail(found.rows),
                view=view,
                key=write.launch.name,
            )
        )

    def _tables(self, write: Write, stores: StoreLog) -> dict[TensorView, Buffer]:
        """The tables that a launch was given and in which it stored anything twice, with their buffers. Not those that
        it also ran out of: the finding of a guard lists the rows."""
        owners: dict[int, tuple[Buffer, list[TensorView]]] = {}
        for view in dict.fromkeys(p.view for p in write.launch.pointers):
            buffer = self.context.ledger.owner(view.start, view.stop)
            if buffer is not None:
                owners.setdefault(buffer.serial, (buffer, []))[1].append(view)
        found: dict[TensorView, Buffer] = {}
        for buffer, views in owners.values():
            if stored_twice(stores, buffer.range) and not _past_guards(write, buffer):
                found |= {table: buffer for view in views for table in tables_of(view, buffer)}
        return found


def _lost_values(write: Write, found: TableOverruns) -> tuple[int | None, bytes, bytes]:
    """The window of a finding about rows: from the first lost element on, as far as the next one follows it."""
    first = next(iter(found.lost))
    itemsize = write.stores.within(first)[0].itemsize if write.stores is not None else 1
    where = ByteRange(first.start, min(first.stop, first.start + _LOST_BYTES // itemsize * itemsize))
    values = overwritten(write.stores, where) if write.stores is not None else None
    return (where.start, *values) if values is not None else (None, b"", b"")


def _late(evidence: Evidence[object]) -> bool:
    """Whether the damage was seen only when a far part of the guard was due to be read: it may be old."""
    guard = evidence.subject
    if not isinstance(guard, Guard):
        return False
    return evidence.first >= guard.near.stop if guard.side is Side.AFTER else evidence.last < guard.near.start


def _past_guards(write: Write, buffer: Buffer) -> bool:
    """Whether the launch also wrote outside the buffer, so that a guard's finding already lists the rows."""
    outside = (_extent(buffer).start, buffer.start), (buffer.stop, _extent(buffer).stop)
    return any(start < stop and write.ranges.overlaps(ByteRange(start, stop)) for start, stop in outside)


def _extent(buffer: Buffer) -> ByteRange:
    return ByteRange(buffer.start - buffer.head_guard, buffer.guard_start + buffer.tail_guard)


def rows_of(write: Write, buffer: Buffer) -> tuple[RowOverrun, ...]:
    """Rows that a launch overran in a buffer, from the first table in it that shows any."""
    if write.stores is None:
        return ()
    for pointer in write.launch.pointers:
        if buffer.start <= pointer.view.start < buffer.stop:
            for table in tables_of(pointer.view, buffer):
                rows = row_overruns(write.stores, table, _extent(buffer))
                if rows:
                    return rows
    return ()


def slack_of(graph: Graph, buffer: Buffer) -> list[ByteRange]:
    """Bytes of a buffer outside the views that a graph captured of it.

    Only views with the buffer's own number of dimensions count: kernels are commonly handed a whole buffer as a pointer
    to one row or to a flattened view.
    """
    spans = RangeSet()
    for _, pointer in graph.pointing_into(buffer.range):
        view = pointer.view
        if len(view.shape) < len(buffer.shape):
            return []
        spans.add(ByteRange(max(view.start, buffer.start), min(view.stop, buffer.stop)))
    if not spans:
        return []
    return list(RangeSet.of([buffer.range]) - spans)
