"""Buffers and alias groups as table rows for a notebook cell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from shadowgraph.common.html_repr import namer_of
from shadowgraph.common.source_paths import short
from shadowgraph.common.words import form, plural
from shadowgraph.model.buffers import Buffer, allocation_name
from shadowgraph.model.owners import Owner
from shadowgraph.model.views import describe_slice
from shadowgraph.render.text.finding_rows import FactRow
from shadowgraph.views.alias_list import AliasGroup, AliasOwner

_OWNERS = 40  # owners of one group


@dataclass(frozen=True, slots=True)
class BufferRow:
    """A buffer in a list."""

    name: str
    form: str
    nbytes: int
    address: str
    role: str
    guards: str
    allocated: str


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """An owner, its bytes from the first owner's start, and its relation to the first owner."""

    path: str
    form: str
    bytes: str
    relation: str


@dataclass(frozen=True, slots=True)
class OwnersTable:
    """A group of owners that share bytes, the widest first."""

    owners: tuple[OwnerRow, ...]
    more: int


def name_of(buffer: Buffer) -> str:
    """The best name of a buffer in a live run or an open dump, else its allocation site."""
    namer = namer_of(buffer)
    return namer.called(buffer) if namer is not None else allocation_name(buffer)


def buffer_rows(buffers: Iterable[Buffer]) -> tuple[BufferRow, ...]:
    """One row for each buffer."""
    return tuple(_buffer_row(buffer) for buffer in buffers)


def _buffer_row(buffer: Buffer) -> BufferRow:
    frame = buffer.stack[0] if buffer.stack else None
    return BufferRow(
        name=name_of(buffer),
        form=form(buffer.dtype, buffer.shape),
        nbytes=buffer.nbytes,
        address=f"{buffer.start:#x}",
        role=f"{buffer.role}{'' if buffer.alive else ', freed'}",
        guards=f"{buffer.head_guard:,} + {buffer.tail_guard:,}" if buffer.head_guard or buffer.tail_guard else "none",
        allocated=f"{short(frame.file)}:{frame.line}" if frame is not None else "",
    )


def buffer_facts(buffer: Buffer) -> Iterator[FactRow]:
    """The facts of a buffer as rows."""
    where = f"{plural(buffer.nbytes, 'byte')} at {buffer.start:#x} on {buffer.device}"
    yield FactRow("buffer", f"{form(buffer.dtype, buffer.shape)}  {where}, {buffer.role}, allocation {buffer.serial}")
    if buffer.graph is not None:
        yield FactRow("graph", f"allocated during the capture with serial {buffer.graph}")
    gap = f", {plural(buffer.gap, 'byte')} after its end" if buffer.gap and buffer.tail_guard else ""
    fenced = ", and a fence" if buffer.fence >= 0 else ""
    guards = f"{plural(buffer.head_guard, 'byte')} before, {plural(buffer.tail_guard, 'byte')} after{gap}{fenced}"
    yield FactRow("guards", guards if buffer.head_guard or buffer.tail_guard else "none")
    if not buffer.alive:
        yield FactRow("freed", "it has been freed")
    for place, frame in enumerate(buffer.stack):
        yield FactRow("" if place else "allocated", f"{short(frame.file)}:{frame.line} in {frame.function}")


def live_owners(group: Sequence[Owner]) -> OwnersTable:
    """A group of owners of a live run."""
    ranked = sorted(group, key=lambda o: (-o.view.hull.nbytes, len(o.path), o.path))
    chief = ranked[0].view
    rows = []
    for owner in ranked[:_OWNERS]:
        view = owner.view
        said = "" if owner is ranked[0] else _relation(describe_slice(view, chief), ranked[0].path)
        first = view.start - chief.start
        rows.append(
            OwnerRow(owner.path, form(view.dtype, view.shape), _bytes(first, first + view.hull.nbytes - 1), said)
        )
    return OwnersTable(tuple(rows), len(ranked) - len(rows))


def dumped_owners(group: AliasGroup) -> OwnersTable:
    """A group of owners of a dump."""
    chief = group.owners[0]
    rows = tuple(_owner_row(owner, chief) for owner in group.owners[:_OWNERS])
    return OwnersTable(rows, len(group.owners) - len(rows))


def _owner_row(owner: AliasOwner, chief: AliasOwner) -> OwnerRow:
    said = "" if owner is chief else _relation(owner.relation, chief.path)
    return OwnerRow(owner.path, form(owner.dtype, owner.shape), _bytes(owner.first, owner.last), said)


def _relation(relation: str | None, chief: str) -> str:
    if relation is None:
        return "beside it, joined by another owner"
    return f"{chief}{relation if relation[:1] in ('', '[', '.') else f' {relation}'}"


def _bytes(first: int, last: int) -> str:
    return f"{first:,} to {last:,}"
