"""Buffer names of a dump, and lookup of buffers by name or address."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from shadowgraph.common.console import tame
from shadowgraph.common.errors import UnknownBufferError, UsageError
from shadowgraph.dumps.schema import Manifest
from shadowgraph.dumps.tables import Holders
from shadowgraph.model.buffers import Buffer, allocation_name
from shadowgraph.model.owner_paths import ends_of, is_end, rank
from shadowgraph.model.owners import Owner
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.views import TensorView

_OFFERED = 3
_CANDIDATES = 8  # names that a text is the end of
_LONGEST = 120
_COMPARED = 5_000  # names compared letter by letter with an unknown one


class Named(Protocol):
    """Something with a buffer's serial."""

    @property
    def serial(self) -> int: ...


class Opened(Protocol):
    """The part of an open dump that naming reads."""

    manifest: Manifest

    @property
    def buffers(self) -> tuple[Buffer, ...]: ...

    @property
    def freed(self) -> tuple[Buffer, ...]: ...


class BufferNames:
    """Names by serial and by address, computed from a dump once.

    A buffer has the name that reports use: the path of the owner whose view fits it best, among equals a bare variable,
    then the shortest path; if its owners died, the name known to a finding; else the line that allocated it.
    """

    def __init__(self, dump: Opened) -> None:
        self._buffers = [*dump.freed, *dump.buffers]  # live buffers come last and take precedence
        self._holders = Holders(dump.buffers, dump.freed)
        self._owners: dict[int, list[Owner]] = {}
        for owner in dump.manifest.owners:
            home = self.holder(owner.view)
            if home is not None:
                self._owners.setdefault(home.serial, []).append(owner)
        facts = dump.manifest.facts
        self._found = {f.buffer.serial: f.buffer for f in (*facts.damage, *facts.notes)}
        self._best: dict[int, str] = {}

    def name(self, buffer: Buffer) -> str:
        """The best name of a buffer."""
        known = self._best.get(buffer.serial)
        if known is None:
            known = self._best[buffer.serial] = self._name(buffer)
        return known

    def owners(self, buffer: Buffer) -> list[Owner]:
        """Owner paths that lead into a buffer, with their views; best fit first."""
        owners = self._owners.get(buffer.serial, [])
        if len(owners) < 2:  # the usual case in a large dump
            return list(owners)
        return sorted(owners, key=lambda owner: (_misfit(owner.view, buffer), rank(owner.path)))

    def at(self, address: int) -> tuple[str, int] | None:
        """Name of the buffer that holds an address, and the offset in bytes; None where no buffer does."""
        buffer = self.buffer_at(address)
        return (self.name(buffer), address - buffer.start) if buffer is not None else None

    def buffer_at(self, address: int) -> Buffer | None:
        """The buffer that holds an address: the smallest live one, else the one freed last."""
        return self._holders.of(address, address)

    def buffer_during(self, address: int, began: int, ended: int, without: Collection[int]) -> Buffer | None:
        """The same of the buffers that lived at some time between two serials of the ledger, some serials left out."""
        there = [each for each in self._holders.all_of(address) if each.serial <= ended and each.serial not in without]
        found = [each for each in there if each.freed_at is None or each.freed_at >= began]
        live = [each for each in found if each.alive]
        return min(live, key=lambda b: b.nbytes) if live else max(found, key=lambda b: b.freed_at or 0, default=None)

    def holder(self, where: TensorView | ByteRange) -> Buffer | None:
        """The buffer that holds a view or a range of bytes: the smallest live one, else the one freed last."""
        return self._holders.of(where.start, where.stop)

    def live_in(self, start: int, stop: int) -> list[Buffer]:
        """Live buffers with a byte of ``[start, stop)``; if there are none, the one that ends next before it."""
        found = [buffer for _, buffer in self._holders.live.overlapping(start, stop)]
        before = self._holders.live.before(start) if not found else None
        return [before[1]] if before is not None else found

    def known(self) -> list[str]:
        """Every name that `find` accepts."""
        return list(dict.fromkeys(name for buffer in self._buffers for name in self._names(buffer)))

    def find(self, text: str) -> list[ByteRange]:
        """The memory ranges of `buffers`."""
        return [buffer.range for buffer in self.buffers(text)]

    def buffers(self, text: str) -> list[Buffer]:
        """Buffers for an owner path, the end of a path, or an address; empty if there are none.

        Live buffers come last.

        Raises
        ------
        UsageError
            When the text is the end of names of several buffers.
        """
        address = address_of(text)
        if address is not None:
            buffer = self.buffer_at(address)
            return [buffer] if buffer is not None else []
        pairs = [(name, buffer) for buffer in self._buffers for name in self._names(buffer)]
        return only_one(text, fitting(text, pairs))

    def nearest(self, address: int) -> str:
        """The live buffer nearest to an address that no buffer holds, and its distance; empty without live buffers."""
        ends: list[tuple[int, str, Buffer]] = []
        before, after = self._holders.live.before(address), self._holders.live.after(address)
        if before is not None:
            ends.append((address - before[0].stop, "ends {:,} bytes before it", before[1]))
        if after is not None:
            ends.append((after[0].start - address, "begins {:,} bytes after it", after[1]))
        if not ends:
            return ""
        gap, said, buffer = min(ends, key=lambda end: end[0])
        return f"{offered([self.name(buffer)])} {said.format(gap)}"

    def _names(self, buffer: Buffer) -> Iterable[str]:
        yield self.name(buffer)
        yield from (owner.path for owner in self._owners.get(buffer.serial, ()))
        if buffer.serial in self._found:
            yield from self._found[buffer.serial].names

    def _name(self, buffer: Buffer) -> str:
        owners = self._owners.get(buffer.serial)
        if owners and len(owners) == 1:
            return owners[0].path
        if owners:
            return min(owners, key=lambda owner: (_misfit(owner.view, buffer), rank(owner.path))).path
        seen = self._found.get(buffer.serial)
        return seen.name if seen is not None else allocation_name(buffer)


_T = TypeVar("_T", bound=Named)


def fitting(text: str, pairs: Sequence[tuple[str, _T]]) -> list[tuple[str, _T]]:
    """The names that are a text, else those whose last parts it is, else those that end with it."""
    for fits in (text.__eq__, partial(is_end, text), lambda name: name.endswith(text)):
        found = [(name, buffer) for name, buffer in pairs if fits(name)]
        if found:
            return found
    return []


def only_one(text: str, found: Sequence[tuple[str, _T]]) -> list[_T]:
    """The buffers of matching names, each once.

    Raises
    ------
    UsageError
        For different names of different buffers.
    """
    names = list(dict.fromkeys(name for name, _ in found))
    buffers = {buffer.serial: buffer for _, buffer in found}
    if len(names) > 1 and len(buffers) > 1:
        raise UsageError(f"{text!r} is the end of several names: {offered(names, _CANDIDATES)}")
    return list(buffers.values())


def address_of(text: str) -> int | None:
    """An address in any integer notation, or None."""
    try:
        return int(text, 0)
    except ValueError:
        return None


def require_known(text: str, books: Iterable[BufferNames]) -> None:
    """Refuse a name or address that no dump knows, and suggest the nearest ones.

    Raises
    ------
    UnknownBufferError
    """
    books = list(books)
    address = address_of(text)
    if address is None:
        near = nearest_of(text, [name for book in books for name in book.known()])
        raise UnknownBufferError(f"no buffer is called {text!r}{near}")
    near = next(filter(None, (book.nearest(address) for book in books)), "")
    raise UnknownBufferError(f"no buffer holds {address:#x}{f'; {near}' if near else ''}")


def nearest_of(text: str, names: list[str]) -> str:
    """``; the nearest names are: ...``, or an empty text without names."""
    names = list(dict.fromkeys(names))
    holding = [name for name in names if text.casefold() in name.casefold()]
    some = names[:_COMPARED]
    close = difflib.get_close_matches(text, some, _OFFERED, 0.5)
    ends = ends_of(some)
    close += [ends[end] for end in difflib.get_close_matches(text, list(ends), _OFFERED, 0.6)]
    best = list(dict.fromkeys([*close, *holding])) or names
    return f"; the nearest names are: {offered(best)}" if best else ""


def offered(names: list[str], most: int = _OFFERED) -> str:
    """The first few names, sanitised for one line of a terminal."""
    return ", ".join(tame(name[:_LONGEST]) for name in names[:most]) + (
        f" and {len(names) - most:,} more" if len(names) > most else ""
    )


def _misfit(view: TensorView, buffer: Buffer) -> int:
    """Bytes of the buffer outside the view plus bytes of the view outside the buffer."""
    common = view.hull.intersect(buffer.range)
    shared = common.nbytes if common is not None else 0
    return (buffer.nbytes - shared) + (view.hull.nbytes - shared)
