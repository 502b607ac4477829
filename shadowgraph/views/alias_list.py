"""Alias groups of a dump: owners that share bytes, their byte ranges and their relation to the widest owner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from shadowgraph.common.html_repr import HtmlRepr
from shadowgraph.dumps.models import view_of
from shadowgraph.dumps.naming import BufferNames, Owned
from shadowgraph.dumps.reader import Dump
from shadowgraph.dumps.schema import OwnerRow
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.views import TensorView, describe_slice

_MOST_DIMS = 8  # a view with more dimensions takes long to describe as a slice


class AliasOwner(msgspec.Struct, frozen=True):
    """An owner of bytes in an alias group.

    Attributes
    ----------
    first, last
        Its extreme bytes, inclusive, from the start of the group's first owner; there may be gaps between.
    relation
        How it is made from the first owner: an index or a change of form, empty for the same view, None where the two
        share no byte (a third owner connects them).
    buffer, offset
        The buffer that holds it, and its offset in bytes from that buffer's start; None for untracked memory.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    first: int
    last: int
    relation: str | None
    buffer: int | None
    offset: int


class AliasGroup(HtmlRepr, msgspec.Struct, frozen=True):
    """Owners that each share a byte with another one of the group. The widest comes first, on a tie the shortest path.

    Attributes
    ----------
    buffers
        Names of the buffers that hold the bytes.
    """

    pid: int
    dump: str
    address: int
    nbytes: int
    device: str
    buffers: tuple[str, ...]
    owners: tuple[AliasOwner, ...]


def alias_list(dump: Dump, book: BufferNames, wanted: Sequence[Buffer] | None = None) -> list[AliasGroup]:
    """The alias groups of a dump in order of address; with `wanted`, only groups with bytes of one of these buffers."""
    by_serial = {buffer.serial: buffer for buffer in (*dump.freed, *dump.buffers)}
    groups = (_group(dump, book, by_serial, members) for members in _members(dump, wanted))
    return sorted(groups, key=lambda group: group.address)


def _members(dump: Dump, wanted: Sequence[Buffer] | None) -> Iterator[list[tuple[Owned, int | None]]]:
    """The owners of each group, each with the serial of its buffer."""
    rows = dump.manifest.owners
    spans = {buffer.serial: buffer.range for buffer in wanted or ()}
    for group in dump.manifest.alias_groups:
        known = [rows[index] for index in group]
        if known and (wanted is None or _any_in(dump, known, spans)):
            yield [((row.path, view_of(dump.manifest, row.view)), row.view.buffer) for row in known]


def _any_in(dump: Dump, owners: Sequence[OwnerRow], spans: Mapping[int, ByteRange]) -> bool:
    """Whether an owner is in one of the buffers, given as ranges by serial, or shares bytes with one untracked."""
    if not spans.keys().isdisjoint(row.view.buffer for row in owners):
        return True
    untracked = (view_of(dump.manifest, row.view) for row in owners if row.view.buffer is None)
    return any(span.overlaps(view.hull) for view in untracked for span in spans.values())


def _group(
    dump: Dump, book: BufferNames, buffers: dict[int, Buffer], members: list[tuple[Owned, int | None]]
) -> AliasGroup:
    members.sort(key=lambda member: (-member[0][1].hull.nbytes, len(member[0][0]), member[0][0]))
    chief = members[0][0][1]
    owners = [_owner(owned, serial, chief, buffers) for owned, serial in members]
    hull = _hull(owned[1] for owned, _ in members)
    serials = dict.fromkeys(serial for _, serial in members if serial is not None and serial in buffers)
    return AliasGroup(
        pid=dump.manifest.pid,
        dump=str(dump.path),
        address=hull.start,
        nbytes=hull.nbytes,
        device=chief.device,
        buffers=tuple(book.name(buffers[serial]) for serial in serials),
        owners=(owners[0], *sorted(owners[1:], key=lambda o: (o.first, -o.last, len(o.path), o.path))),
    )


def _owner(owned: Owned, serial: int | None, chief: TensorView, buffers: dict[int, Buffer]) -> AliasOwner:
    path, view = owned
    home = buffers.get(serial) if serial is not None else None
    return AliasOwner(
        path=path,
        dtype=view.dtype,
        shape=view.shape,
        stride=view.stride,
        first=view.start - chief.start,
        last=view.stop - chief.start - 1,
        relation=_relation(view, chief),
        buffer=home.serial if home is not None else None,
        offset=view.start - home.start if home is not None else 0,
    )


def _relation(view: TensorView, chief: TensorView) -> str | None:
    if max(len(view.shape), len(chief.shape)) > _MOST_DIMS:
        common = view.hull.intersect(chief.hull)
        return None if common is None else f"bytes [{common.start - chief.start}, {common.stop - chief.start})"
    return describe_slice(view, chief)


def _hull(views: Iterable[TensorView]) -> ByteRange:
    spans = [view.hull for view in views]
    return ByteRange(min(span.start for span in spans), max(span.stop for span in spans))
