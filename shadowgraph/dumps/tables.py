"""Conversion of collected contents to a manifest: texts and stacks stored once, pointers as buffer and offset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import msgspec

from shadowgraph.common.settings import Settings
from shadowgraph.dumps.collecting import Bytes, Collected, GraphNow, Unread
from shadowgraph.dumps.device_rows import device_row
from shadowgraph.dumps.schema import (
    BufferRow,
    GraphRow,
    GuardRow,
    JournalRow,
    LaunchRow,
    Manifest,
    OwnerRow,
    PayloadRow,
    PointerRow,
    ReplayRow,
    StoreRow,
    UnreadRow,
    View,
    WriteSetRow,
    WrittenRow,
    form_of_manifest,
)
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.kinds import decode_detail
from shadowgraph.model.launches import Launch
from shadowgraph.model.ranges import RangeIndex
from shadowgraph.model.stacks import Stack
from shadowgraph.model.views import TensorView
from shadowgraph.model.write_sets import WriteSets
from shadowgraph.tracking.aliases import alias_groups
from shadowgraph.tracking.names import Owner

T = TypeVar("T")


def manifest_of(collected: Collected, crcs: Sequence[int]) -> Manifest:
    """The complete manifest, with a row for every payload; `crcs` are the payloads' checksums."""
    tables = _Tables(collected.live, collected.freed)
    groups = _alias_groups(collected.owners)
    return Manifest(
        reason=clean(collected.reason),
        time=collected.time,
        pid=collected.pid,
        versions=collected.versions,
        facts=writable(msgspec.structs.replace(collected.facts, last_values=())),
        form=form_of_manifest(),
        argv=tuple(map(clean, collected.argv)),
        settings=_settings(collected.settings),
        packages=collected.packages,
        redacted=collected.redacted,
        buffers=tuple(tables.buffer(b, None) for b in collected.live),
        freed=tuple(tables.buffer(b, b.freed_at) for b in collected.freed),
        owners=tuple(map(tables.owner, collected.owners)),
        alias_groups=groups,
        graphs=tuple(map(tables.graph, collected.graphs)),
        guards=tuple(
            GuardRow(g.buffer.serial, g.side, g.near.start, g.near.nbytes, g.whole.start, g.whole.nbytes)
            for g in collected.guards
        ),
        replays=tuple(ReplayRow(*replayed) for replayed in collected.replays),
        launches=tuple(
            JournalRow(tables.launch(ran.launch), ran.time, ran.phase, ran.graph, ran.node)
            for ran in collected.launches
        ),
        payloads=tuple(map(_payload, range(len(crcs)), collected.bytes, crcs)),
        unread=tuple(map(_unread, collected.unread)),
        left_out=collected.left_out,
        stores=tuple(StoreRow(*key, *stored) for key, stored in collected.stored.items()),
        write_sets=tuple(_write_sets(serial, sets) for serial, sets in collected.write_sets.items()),
        input_rows=collected.input_rows,
        strings=tuple(tables.strings),
        frames=tuple(tables.frames),
        stacks=tuple(tables.stacks),
    )


def _alias_groups(owners: Sequence[Owner]) -> tuple[tuple[int, ...], ...]:
    """Groups of owners that share memory, each owner as its place among all."""
    place = {id(owner): index for index, owner in enumerate(owners)}
    return tuple(tuple(place[id(owner)] for owner in group) for group in alias_groups(owners))


def _write_sets(graph: int, sets: WriteSets) -> WriteSetRow:
    written = tuple(WrittenRow(one.node, one.buffer, one.first, one.last, one.count) for one in sets.written)
    return WriteSetRow(graph, sets.replay, written, len(sets.looked_at), len(sets.left_out), sets.dropped)


def _payload(index: int, each: Bytes, crc32: int) -> PayloadRow:
    """The index entry of the payload with this number."""
    piece, mirrored = each.piece, each.name is not None
    return PayloadRow(
        tensor=f"payload.{index}",
        start=piece.where.start,
        nbytes=piece.where.nbytes,
        buffer=piece.buffer.serial,
        offset=piece.where.start - piece.buffer.start,
        why=piece.why,
        crc32=crc32,
        name=clean(each.name) if each.name is not None else None,
        dtype=piece.buffer.dtype if mirrored else None,
        graph=each.graph,
    )


def clean(text: str) -> str:
    """Text that UTF-8 can encode: file names and arguments may contain invalid bytes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def writable(value: T) -> T:
    """A struct whose texts UTF-8 can encode; in most cases the same object."""
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.convert(_cleaned(msgspec.to_builtins(value)), type(value), dec_hook=decode_detail)
    return value


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    return [_cleaned(item) for item in value] if isinstance(value, (list, tuple)) else value


def _settings(settings: Settings) -> dict[str, bool | int | str | None]:
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    return {k: v if v is None or isinstance(v, (bool, int)) else clean(str(v)) for k, v in values.items()}


def _unread(unread: Unread) -> UnreadRow:
    piece = unread.piece
    where = piece.where
    return UnreadRow(
        where.start, where.nbytes, piece.buffer.serial, piece.why, clean(unread.reason), clean(unread.name)
    )


class _Tables:
    """Texts, frames and stacks by index, and buffers by address."""

    def __init__(self, live: Sequence[Buffer], freed: Sequence[Buffer]) -> None:
        self.strings: dict[str, int] = {}
        self.frames: dict[tuple[int, int, int], int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}
        self._stack_at: dict[int, int] = {}
        self._live = _by_address(live)
        self._freed = _by_address(freed)
        self._owners: dict[tuple[int, int], Buffer | None] = {}

    def text(self, text: str) -> int:
        return self.strings.setdefault(clean(text), len(self.strings))

    def stack(self, stack: Stack) -> int:
        known = self._stack_at.get(id(stack))  # the owner of the stacks outlives these tables
        if known is None:
            frames = tuple(self._frame(self.text(f.file), f.line, self.text(f.function)) for f in stack)
            known = self._stack_at[id(stack)] = self.stacks.setdefault(frames, len(self.stacks))
        return known

    def _frame(self, *frame: int) -> int:
        file, line, function = frame
        return self.frames.setdefault((file, line, function), len(self.frames))

    def buffer(self, b: Buffer, freed_at: int | None) -> BufferRow:
        return BufferRow(
            b.serial,
            b.start,
            b.nbytes,
            b.role,
            self.text(b.dtype),
            b.shape,
            b.itemsize,
            self.stack(b.stack),
            self.text(b.device),
            b.graph,
            b.pool,
            b.head_guard,
            b.tail_guard,
            b.inexact,
            b.gap,
            freed_at,
        )

    def owner(self, owner: Owner) -> OwnerRow:
        return OwnerRow(clean(owner.path), self.view(owner.view))

    def graph(self, graph: GraphNow) -> GraphRow:
        nodes = tuple(self.launch(node.launch) for node in graph.nodes)
        device = None if graph.device is None else tuple(device_row(self, node) for node in graph.device)
        return GraphRow(graph.serial, clean(graph.name), graph.replays, nodes, device, clean(graph.unread))

    def launch(self, launch: Launch) -> LaunchRow:
        pointers = tuple(PointerRow(self.text(p.argument), p.access, self.view(p.view)) for p in launch.pointers)
        source = self.text(launch.source) if launch.source is not None else None
        return LaunchRow(launch.kind, self.text(launch.name), self.stack(launch.stack), pointers, launch.grid, source)

    def view(self, view: TensorView) -> View:
        buffer = self.holder(view.start, view.stop)
        return View(
            view.address,
            view.shape,
            view.stride,
            self.text(view.dtype),
            view.itemsize,
            self.text(view.device),
            view.storage_address,
            view.storage_nbytes,
            buffer.serial if buffer is not None else None,
            view.start - buffer.start if buffer is not None else 0,
        )

    def holder(self, start: int, stop: int) -> Buffer | None:
        """The live buffer that holds the bytes, else the one freed last."""
        place = start, stop
        if place not in self._owners:
            found = [b for _, b in self._live.overlapping(start, max(stop, start + 1))]
            whole = [b for b in found if b.start <= start and stop <= b.stop] or found
            if whole:
                self._owners[place] = min(whole, key=lambda b: b.nbytes)
            else:
                dead = [b for _, b in self._freed.overlapping(start, max(stop, start + 1))]
                self._owners[place] = max(dead, key=lambda b: b.freed_at or 0, default=None)
        return self._owners[place]


def _by_address(buffers: Iterable[Buffer]) -> RangeIndex[Buffer]:
    return RangeIndex((b.range, b) for b in buffers if b.nbytes)
