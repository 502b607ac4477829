"""Names for buffers: attribute paths of registered objects, and relations between owners of the same bytes.

Any thread. `NameBook` has its own lock: naming a finding, `Debugger.name` and dumps use it.
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from shadowgraph.common.compat import weak_reference
from shadowgraph.common.finalizer_safe_lock import FinalizerSafeLock
from shadowgraph.common.html_repr import HtmlRepr
from shadowgraph.common.words import plural
from shadowgraph.model.buffers import Buffer, Ledger, Role, allocation_name, buffer_view
from shadowgraph.model.owner_paths import rank
from shadowgraph.model.owners import Owner
from shadowgraph.model.ranges import ByteRange, RangeIndex
from shadowgraph.model.views import TensorView, describe_slice, overlaps
from shadowgraph.tracking.names import walk
from shadowgraph.tracking.pool_watch import Sight, borrowers

__all__ = ["NameBook", "OwnerGroups", "Relation", "alias_groups", "allocation_name", "buffer_view"]

_UNTRACKED = -1  # the serial of memory outside the ledger
_NUMBERED = "#"  # in names of objects that have none of their own
_REMEMBERED = 1024  # buffers whose former owners are kept


@dataclass(frozen=True, slots=True)
class Relation:
    """An owner as an expression on the owner that names the buffer: an index, ``""`` for the identical view.

    Attributes
    ----------
    covers
        It is the other way round: the owner covers the one that names the buffer, which is this expression on it.
    """

    owner: Owner
    expression: str
    covers: bool = False


class OwnerGroups(HtmlRepr, list[tuple[Owner, ...]]):
    """Sets of owners with common bytes."""

    __slots__ = ()


class _Walked(NamedTuple):
    """An owner as a walk found it.

    Attributes
    ----------
    serial
        The buffer that its tensor belonged to, or `_UNTRACKED`.
    sight
        When its storage was first seen, if that owns none of its memory.
    """

    owner: Owner
    serial: int
    sight: Sight | None

    def is_of(self, buffer: Buffer | None) -> bool:
        """Whether its tensor belongs to a buffer that was entered into the ledger after the walk, as memory of a
        device's pool is. Unknown for a freed buffer: another one may have the same address and size."""
        view, sight = self.owner.view, self.sight
        return (
            buffer is not None
            and self.serial == _UNTRACKED
            and buffer.alive
            and buffer.role is not Role.STATIC
            and (buffer.start, buffer.nbytes) == (view.storage_address, view.storage_nbytes)
            and not (sight is not None and borrowers.is_older(sight, buffer))
        )


class NameBook:
    """Owner names by address.

    An object that supports weak references is walked again at every `refresh`, so that buffers which it creates later
    get names; other objects (plain dicts, lists) are walked once. No object or tensor is kept alive.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._lock = (
            FinalizerSafeLock()
        )  # a thread that retires a tenant asks for names: its finalizers must not need this lock meanwhile
        self._ledger = ledger
        self._roots: dict[str, weakref.ref[object]] = {}
        self._without: dict[str, Container[str]] = {}  # attributes that are not followed, by root
        self._found: set[str] = set()  # roots under names that the program has not given
        self._owners: dict[str, tuple[_Walked, ...]] = {}
        self._index: RangeIndex[_Walked] | None = None
        self._former: dict[int, tuple[Owner, ...]] = {}  # former owners of a buffer, by serial
        self._seen_version = -1
        self._gaps: dict[str, tuple[int, bool]] = {}  # (errors, truncated) of each root's last walk

    def __repr__(self) -> str:
        return f"<NameBook: {plural(len(self._owners), 'named object')}>"

    @property
    def unread(self) -> int:
        """Number of objects and attributes that could not be read and were skipped."""
        return sum(errors for errors, _ in list(self._gaps.values()))

    @property
    def truncated(self) -> int:
        """Number of roots whose walk hit a bound, so that names may be missing."""
        return sum(cut for _, cut in list(self._gaps.values()))

    def add(self, name: str, root: object, without: Container[str] = (), found: bool = False) -> int:
        """Walk an object under a name, without some attributes; returns the number of tensors that it owns.

        With `found` the name was searched, and not given by the program: of buffers that have a given name, it does not
        count as an owner.
        """
        with self._lock.section:
            self._without[name] = without
            (self._found.add if found else self._found.discard)(name)
            try:
                self._roots[name] = weak_reference(root)
            except TypeError:
                self._roots.pop(name, None)
            return self._walk(name, root)

    def forget_if_empty(self, name: str) -> bool:
        """Forget an object whose walk, which was not cut short, found no tensor and is not done again."""
        with self._lock.section:
            if self._owners.get(name) or name in self._roots or self._gaps.get(name, (0, False))[1]:
                return False
            self._owners.pop(name, None)
            self._gaps.pop(name, None)
            return True

    def gives(self, name: str) -> bool:
        """Whether the program has given a name to an object."""
        return name in self._owners and name not in self._found

    def roots(self) -> list[tuple[str, object]]:
        """The living objects that can be walked again, with their names."""
        with self._lock.section:
            pairs = [(name, reference()) for name, reference in self._roots.items()]
        return [(name, root) for name, root in pairs if root is not None]

    def refresh(self, anew: bool = False) -> None:
        """Walk all living roots again, if memory was allocated or freed since the last walk, or in any case."""
        with self._lock.section:
            if self._seen_version == self._ledger.version and not anew:
                return
            self._seen_version = self._ledger.version
            for name in list(self._owners):
                root = self._root(name)
                if root is not None:
                    self._walk(name, root)
                else:
                    self._enter(name)

    def expire(self) -> None:
        """Let the next `refresh` walk all living roots, whatever was allocated or freed: host memory does not count."""
        self._seen_version = -1

    def _get(self, serial: int) -> Buffer | None:
        """The buffer with a serial, in device or host memory."""
        return self._ledger.get(serial) or self._ledger.host.get(serial)

    def _owned(self, view: TensorView) -> Buffer | None:
        """The live buffer that a view belongs to, in device or host memory."""
        found = self._ledger.owner(view.start, view.stop)
        return found if found is not None else self._ledger.host.owner(view.start, view.stop)

    def owners_of(self, where: ByteRange, serial: int | None = None) -> list[Owner]:
        """Owners whose views overlap a range, in order of address; with `serial`, only owners walked while that buffer
        lived. Former owners of a freed buffer that now refer to other memory count as its owners.

        Parameters
        ----------
        where
            Addresses; the stop is exclusive.
        serial
            Allocation serial of a buffer.
        """
        found = self._overlapping(where)
        if serial is None:
            return [each.owner for _, each in found]
        buffer = self._get(serial)
        owners = [each.owner for _, each in found if each.serial == serial or each.is_of(buffer)]
        if owners or (buffer is not None and buffer.alive):
            return owners
        return self._former_owners(where, serial)

    def _former_owners(self, where: ByteRange, serial: int) -> list[Owner]:
        return [owner for owner in self._former.get(serial, ()) if owner.view.hull.overlaps(where)]

    def _overlapping(self, where: ByteRange) -> list[tuple[ByteRange, _Walked]]:
        """Owners whose views overlap a range."""
        with self._lock.section:
            if self._index is None:
                entries = self._counting(self._owners)
                self._index = RangeIndex((each.owner.view.hull, each) for each in entries)
            return self._index.overlapping(where.start, where.stop)

    def name_of(self, buffer: Buffer, part: ByteRange | None = None) -> tuple[str, tuple[str, ...]]:
        """The best name of a buffer, or of a part of it, and every owner path.

        The best name is that of the owner whose view fits best, among equals a bare variable, then the shortest path;
        without owners it is the allocating line.

        Parameters
        ----------
        buffer
            Live or freed.
        part
            Addresses within it; the whole buffer unless given.
        """
        ranked = self._ranked(buffer, part)
        if not ranked:
            return allocation_name(buffer), ()
        return ranked[0].path, tuple(owner.path for owner in ranked)

    def relations(self, buffer: Buffer, part: ByteRange | None = None) -> list[Relation]:
        """The relation of every other owner of a buffer's bytes to the owner that names it.

        Parameters
        ----------
        buffer
            Live or freed.
        part
            Addresses within it; the whole buffer unless given.
        """
        ranked = self._ranked(buffer, part)
        return [_relation(owner, ranked[0].view) for owner in ranked[1:] if overlaps(owner.view, ranked[0].view)]

    def view_of(self, buffer: Buffer, view: TensorView) -> str:
        """The expression that makes a view out of what `name_of` names for it; empty for the whole of that."""
        ranked = self._ranked(buffer, view.hull)
        whole = ranked[0].view if ranked else buffer_view(buffer)
        if not ranked and (view.start, view.nbytes, view.dtype, view.shape) == (
            buffer.start,
            buffer.nbytes,
            buffer.dtype,
            buffer.shape,
        ):
            return ""
        return describe_slice(view, whole) or ""

    def _ranked(self, buffer: Buffer, part: ByteRange | None) -> list[Owner]:
        where = part or buffer.range

        def misfit(owner: Owner) -> int:
            """Bytes of the part that the owner lacks, plus bytes that it covers beyond the part."""
            common = where.intersect(owner.view.hull)
            shared = common.nbytes if common else 0
            return (where.nbytes - shared) + (owner.view.stop - owner.view.start - shared)

        owners = self.owners_of(where, buffer.serial)
        return sorted(owners, key=lambda o: (misfit(o), rank(o.path)))

    def groups(self) -> OwnerGroups:
        """Sets of owners with common bytes: two or more paths to the same memory, partial overlaps included.

        Owners of memory that was freed since their walk are left out.
        """
        return OwnerGroups(alias_groups(self.living()))

    def living(self, fresh: bool = False) -> list[Owner]:
        """Owners of memory that was not freed since their walk, or whose storage owns none; with `fresh`, only those
        that the last `refresh` found, without the objects that are walked once."""
        live = {buffer.serial for ledger in (self._ledger, self._ledger.host) for buffer in ledger} | {_UNTRACKED}
        with self._lock.section:
            roots = [name for name in self._owners if not fresh or self._root(name) is not None]
            return [each.owner for each in self._counting(roots) if each.serial in live or each.sight is not None]

    def _counting(self, roots: Iterable[str]) -> list[_Walked]:
        """The owners under some roots: those of found names only for buffers without a given one.

        A name that an adapter has numbered, such as ``Wrapper#4``, says less than a variable: both count.
        """
        given = {
            each.serial
            for name, walked in self._owners.items()
            if name not in self._found and _NUMBERED not in name
            for each in walked
        }
        given.discard(_UNTRACKED)
        return [
            each for name in roots for each in self._owners[name] if name not in self._found or each.serial not in given
        ]

    def _root(self, name: str) -> object | None:
        """The object registered under a name, if it can be walked again."""
        reference = self._roots.get(name)
        return reference() if reference is not None else None

    def _walk(self, name: str, root: object) -> int:
        result = walk(root, name, without=self._without.get(name, ()))
        self._gaps[name] = result.errors, result.truncated
        pairs = zip(result.owners, result.sights, strict=True)
        walked = tuple(_Walked(owner, self._serial_of(owner.view, sight), sight) for owner, sight in pairs)
        self._remember(self._owners.get(name, ()), {each.serial for each in walked})
        self._owners[name] = walked
        self._index = None
        return len(walked)

    def _serial_of(self, view: TensorView, sight: Sight | None) -> int:
        """The buffer that a view belongs to: of a storage that owns nothing the one that had the memory when it was
        seen, whatever lives there now."""
        buffer = self._owned(view)
        if sight is not None and (buffer is None or borrowers.is_older(sight, buffer)):
            return sight.owner or _UNTRACKED
        return buffer.serial if buffer is not None else _UNTRACKED

    def note_former(self, serial: int, owners: Iterable[Owner]) -> None:
        """Names for a buffer once it is freed, if it has no others."""
        with self._lock.section:
            self._former.setdefault(serial, tuple(owners))
            self._forget_oldest()

    def _remember(self, before: Iterable[_Walked], now: set[int]) -> None:
        """Keep owners that now refer to other memory: a finding may be about their former target."""
        former: dict[int, list[Owner]] = {}
        for owner, serial, _ in before:
            if serial != _UNTRACKED and serial not in now:
                former.setdefault(serial, []).append(owner)
        for serial, owners in former.items():
            self._former[serial] = tuple(owners)
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        while len(self._former) > _REMEMBERED:
            del self._former[next(iter(self._former))]

    def _enter(self, name: str) -> None:
        """Update a root that cannot be walked again: its owners' memory may have been entered into the ledger since."""
        walked = []
        for each in self._owners[name]:
            buffer = self._owned(each.owner.view) if each.serial == _UNTRACKED else None
            walked.append(each._replace(serial=buffer.serial) if buffer is not None and each.is_of(buffer) else each)
        if tuple(walked) != self._owners[name]:
            self._owners[name], self._index = tuple(walked), None


def _relation(owner: Owner, named: TensorView) -> Relation:
    """How an owner relates to the view that names the buffer."""
    view = owner.view
    covers = view.start <= named.start and named.stop <= view.stop and view.nbytes > named.nbytes
    expression = describe_slice(named, view) if covers else describe_slice(view, named)
    return Relation(owner, expression or "", covers)


def alias_groups(owners: Iterable[Owner]) -> list[tuple[Owner, ...]]:
    """Sets of two or more owners with common bytes; each owner is in one set at most."""
    groups: list[list[Owner]] = []
    open_groups: list[list[Owner]] = []  # groups that a later view may still overlap
    reach = -1
    for owner in sorted(owners, key=lambda owner: owner.view.start):
        if owner.view.start >= reach:
            groups += open_groups
            open_groups = []
        met: list[Owner] = []
        apart: list[list[Owner]] = []
        for group in open_groups:
            if any(overlaps(other.view, owner.view) for other in group):
                met += group
            else:
                apart.append(group)
        open_groups = [*apart, [*met, owner]]
        reach = max(reach, owner.view.stop)
    return [tuple(group) for group in groups + open_groups if len(group) > 1]
