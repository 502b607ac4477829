"""Alias groups of a dump: owners that share bytes, their byte ranges and their relation to the widest owner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from shadowgraph.common.html_repr import HtmlRepr
from shadowgraph.dumps.naming import BufferNames
from shadowgraph.dumps.reader import Dump
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.owners import Owner
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
    groups = (_group(dump, book, members) for members in _members(dump, book, wanted))
    return sorted(groups, key=lambda group: group.address)


def _members(dump: Dump, book: BufferNames, wanted: Sequence[Buffer] | None) -> Iterator[list[Owner]]:
    """The owners of each group."""
    owners = dump.manifest.owners
    spans = {buffer.serial: buffer.range for buffer in wanted or ()}
    for group in dump.manifest.alias_groups:
        known = [owners[index] for index in group]
        if known and (wanted is None or any(_is_in(book.holder(owner.view), owner, spans) for owner in known)):
            yield known


def _is_in(home: Buffer | None, owner: Owner, spans: Mapping[int, ByteRange]) -> bool:
    """Whether an owner is in one of the buffers, given as ranges by serial, or untracked and shares bytes with one."""
    if home is not None:
        return home.serial in spans
    return any(span.overlaps(owner.view.hull) for span in spans.values())


def _group(dump: Dump, book: BufferNames, members: list[Owner]) -> AliasGroup:
    members.sort(key=lambda owner: (-owner.view.hull.nbytes, len(owner.path), owner.path))
    chief = members[0].view
    homes = [book.holder(owner.view) for owner in members]
    owners = [_owner(owner, home, chief) for owner, home in zip(members, homes, strict=True)]
    hull = _hull(owner.view for owner in members)
    return AliasGroup(
        pid=dump.manifest.pid,
        dump=str(dump.path),
        address=hull.start,
        nbytes=hull.nbytes,
        device=chief.device,
        buffers=tuple(book.name(home) for home in {home.serial: home for home in homes if home is not None}.values()),
        owners=(owners[0], *sorted(owners[1:], key=lambda o: (o.first, -o.last, len(o.path), o.path))),
    )


def _owner(owner: Owner, home: Buffer | None, chief: TensorView) -> AliasOwner:
    view = owner.view
    return AliasOwner(
        path=owner.path,
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
