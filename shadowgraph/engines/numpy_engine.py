"""The host engine: checks memory of this process through numpy, where there is no GPU.

No lock of its own: checks run with the allocator's lock held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shadowgraph.engines.base import (
    LARGEST_COPY,
    MIRRORED,
    RANGES,
    RANGES_COPIED,
    WINDOW,
    Evidence,
    Fetching,
    NodeCheck,
    NodePart,
    Result,
    Shadow,
)
from shadowgraph.engines.near_parts import NearParts
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.canary import canary
from shadowgraph.model.guards import Guard, Side
from shadowgraph.model.host_copies import HostBlock
from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking.foreign import still_there
from shadowgraph.tracking.memory import raw_bytes

Bytes = npt.NDArray[np.uint8]
_KNOWN = 8  # tuples of guards whose `NearParts` are cached


@dataclass(slots=True)
class NumpyShadow:
    """Copies in host memory; None before the first copy, and for a part whose memory no longer existed."""

    parts: tuple[tuple[object, ByteRange], ...]
    copies: tuple[Bytes | None, ...] | None = None

    def last_values(self) -> list[tuple[object, ByteRange, bytes]]:
        """The small parts as last copied."""
        pairs = zip(self.parts, self.copies or (), strict=False)
        return [(k, r, copy.tobytes()) for (k, r), copy in pairs if copy is not None and r.nbytes <= MIRRORED]


@dataclass(slots=True)
class _OfGraph:
    """The ranges of a graph that are compared across each of its replays: as the head of a replay has copied them."""

    parts: tuple[NodePart, ...]
    copied: int = 0  # the last replay whose head has
    copies: tuple[Bytes | None, ...] = ()
    reported: set[int] = field(default_factory=set)  # places in `parts`


@dataclass(frozen=True, slots=True)
class NumpyMirror:
    """Copies that are ready at once."""

    copies: list[bytes]

    def read(self) -> list[bytes] | None:
        return self.copies


class _Arrived:
    """Bytes that are ready at once."""

    def passed(self) -> bool:
        return True


_ARRIVED = _Arrived()


class NumpyEngine:
    """Compares at once; `poll` returns the evidence of the checks before it.

    Parameters
    ----------
    origin
        Address at which canary positions start, so that a run does not depend on the arena's address.
    keeps
        Whether the contents of a broken guard stay until it is armed.
    """

    def __init__(self, origin: int, keeps: bool = False) -> None:
        self.origin, self.keeps = origin, keeps
        self._kept: dict[int, bytes] = {}  # reported contents of broken guards, by start address
        self.dropped = 0  # no records can be lost
        self._checked_replays = 0
        self.asynchronous = False
        self.lost: str | None = None
        self._results: list[Result] = []
        self._turn = -1
        self._of_graphs: dict[int, _OfGraph] = {}
        self._near: list[NearParts] = []  # of recently checked guards, the latest first

    def write_canaries(self, ranges: Sequence[ByteRange], here: bool = False) -> None:
        for where in ranges:
            self._kept.pop(where.start, None)
            _view(where)[:] = self._canary(where)

    def order_canaries(self) -> None:
        """No effect: nothing is queued on the host."""

    def list_guards(self, guards: Sequence[Guard]) -> None:
        """No effect: graphs of the host backend carry no check nodes."""

    def withdraw_guards(self, starts: Sequence[int]) -> None:
        """No effect, as `list_guards`."""

    def list_shadows(self, graph: int, parts: Sequence[NodePart]) -> None:
        known, wanted = self._of_graphs.get(graph), tuple(parts)
        if not wanted:
            self._of_graphs.pop(graph, None)
        elif known is None or known.parts != wanted or known.reported:
            self._of_graphs[graph] = _OfGraph(wanted)

    def withdraw_shadows(self, buffer: int) -> None:
        """No effect: a check asks whether a buffer lives."""

    def clear_shadows(self) -> None:
        self._of_graphs.clear()

    @property
    def checked_replays(self) -> int:
        return self._checked_replays

    def pause(self, paused: bool) -> None:
        """No effect, as `list_guards`."""

    def arrival(self) -> Callable[[], bool]:
        return lambda: bool(self._results)

    def shadow(self, parts: Sequence[tuple[object, ByteRange]]) -> NumpyShadow:
        return NumpyShadow(tuple(parts))

    def check(
        self,
        tag: object,
        guards: Sequence[Guard],
        take: Shadow | None = None,
        compare: Shadow | None = None,
        in_full: bool = False,
    ) -> None:
        self._turn += 1
        self._checked_replays += isinstance(tag, NodeCheck) and tag.end
        evidence = self._broken(guards, in_full)
        if isinstance(tag, NodeCheck):
            evidence += self._across(tag)
        if take is not None:
            assert isinstance(take, NumpyShadow)
            take.copies = _copies(take.parts)
        if compare is not None:
            assert isinstance(compare, NumpyShadow)
            evidence += self._changed(compare)
        if evidence:
            self._results.append(Result(tag, tuple(evidence)))

    def _across(self, tag: NodeCheck) -> list[Evidence[object]]:
        """What a check node does with its graph's ranges: copy them, or tell which have changed since."""
        shadow = self._of_graphs.get(tag.graph)
        if shadow is None:
            return []
        if not tag.end:
            shadow.copied = tag.replay
            shadow.copies = tuple(_view(part.where).copy() if _lives(part.key) else None for part in shadow.parts)
            return []
        evidence: list[Evidence[object]] = []
        for place, (part, before) in enumerate(zip(shadow.parts, shadow.copies, strict=False)):
            if shadow.copied != tag.replay or place in shadow.reported or before is None or not _lives(part.key):
                continue
            now = _view(part.where)
            found = None if np.array_equal(before, now) else differences(part.key, part.where, before, now.copy())
            if found is not None:
                shadow.reported.add(place)
                evidence.append(found)
        return evidence

    def _broken(self, guards: Sequence[Guard], in_full: bool) -> list[Evidence[object]]:
        evidence: list[Evidence[object]] = []
        if not guards:
            return evidence
        near = self._near_parts(guards)
        for index in self._to_read_in_full(near, in_full):
            guard = guards[index]
            if near.is_intact(index):
                self._kept.pop(guard.whole.start, None)
                continue
            held = _view(guard.whole).copy()
            found = differences(guard, guard.whole, self._canary(guard.whole), held)
            if found is not None and self._is_news(guard, held):
                evidence.append(found)
                if guard.rearm and not self.keeps:
                    self.write_canaries((guard.whole,))
        return evidence

    def _is_news(self, guard: Guard, held: Bytes) -> bool:
        """Whether a broken guard's contents differ from those last reported."""
        if not self.keeps:
            return True
        told, now = self._kept.get(guard.whole.start), held.tobytes()
        self._kept[guard.whole.start] = now
        return told != now

    def _to_read_in_full(self, near: NearParts, in_full: bool) -> Sequence[int]:
        """Indices of guards with a broken near part, and of the next one in rotation; ascending."""
        count = len(near.guards)
        return range(count) if in_full else sorted(near.broken() | {self._turn % count})

    def _near_parts(self, guards: Sequence[Guard]) -> NearParts:
        known = self._near
        if known and known[0].guards is guards:
            return known[0]
        near = next((each for each in known if each.guards is guards), None)
        if near is not None:
            self._near = [near, *(each for each in known if each is not near)]
            return near
        near = NearParts(guards, self.origin)
        self._near = [*known[: _KNOWN - 1], near]  # the last place is for guards that are checked only once
        return near

    def _changed(self, shadow: NumpyShadow) -> list[Evidence[object]]:
        evidence: list[Evidence[object]] = []
        for (key, where), before in zip(shadow.parts, shadow.copies or (), strict=True):
            if before is None or not _is_there(key):
                continue
            now = _view(where)
            if not np.array_equal(before, now):
                found = differences(key, where, before, now.copy())
                if found is not None:
                    evidence.append(found)
        return evidence

    def fetch(self, tag: object, parts: Sequence[tuple[object, ByteRange]]) -> Fetching | None:
        self._results.append(Result(tag, (), tuple((key, self.read(where)) for key, where in parts)))
        return _ARRIVED

    def host_block(self, address: int) -> HostBlock | None:
        return None

    def read(self, where: ByteRange) -> bytes:
        return _view(where).tobytes()

    def read_many(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        room = np.empty(sum(where.nbytes for where in ranges), dtype=np.uint8)  # one block, so that it has huge pages
        views, at = [], 0
        for where in ranges:
            part = room[at : at + where.nbytes]
            part[:] = _view(where)
            views.append(part.data)
            at += where.nbytes
        return views

    def mirror(self, ranges: Sequence[ByteRange]) -> NumpyMirror:
        few = [ByteRange(r.start, min(r.stop, r.start + LARGEST_COPY)) for r in ranges[:RANGES_COPIED]]
        return NumpyMirror([self.read(where) for where in few])

    def lose(self, reason: str) -> None:
        self.lost = self.lost or reason

    def poll(self, wait: bool = False, here: bool = False) -> list[Result]:
        results, self._results = self._results, []
        return results

    def _canary(self, where: ByteRange) -> Bytes:
        return np.frombuffer(canary(where.start - self.origin, where.nbytes), dtype=np.uint8)


def _view(where: ByteRange) -> Bytes:
    return raw_bytes(where.start, where.nbytes)


def _copies(parts: Sequence[tuple[object, ByteRange]]) -> tuple[Bytes | None, ...]:
    return tuple(_view(where).copy() if _is_there(key) else None for key, where in parts)


def _lives(key: object) -> bool:
    """Whether the buffer of a part has not been freed; its memory stays mapped."""
    buffer = getattr(key, "buffer", None)
    return not isinstance(buffer, Buffer) or buffer.alive


def _is_there(key: object) -> bool:
    """Whether a part may be read: foreign memory may have been freed since the part was listed."""
    buffer = getattr(key, "buffer", None)
    return not isinstance(buffer, Buffer) or buffer.role is not Role.FOREIGN or still_there(buffer)


def differences(subject: object, where: ByteRange, expected: Bytes, found: Bytes) -> Evidence[object] | None:
    """Evidence of the bytes that differ between two arrays for one range, or None."""
    changed = np.flatnonzero(expected != found)
    if not changed.size:
        return None
    first, last = int(changed[0]), int(changed[-1])
    breaks = np.flatnonzero(np.diff(changed) > 1)
    starts = np.concatenate(([changed[0]], changed[breaks + 1]))
    stops = np.concatenate((changed[breaks], [changed[-1]]))
    pairs = [(where.start + int(a), where.start + int(b)) for a, b in zip(starts[:RANGES], stops[:RANGES], strict=True)]
    before = isinstance(subject, Guard) and subject.side is Side.BEFORE
    window = max(0, last + 1 - WINDOW) if before else max(0, first - 16)
    return Evidence(
        subject=subject,
        first=where.start + first,
        last=where.start + last,
        count=int(changed.size),
        ranges=tuple(pairs),
        ranges_total=int(starts.size),
        window=where.start + window,
        expected=expected[window : window + WINDOW].tobytes(),
        found=found[window : window + WINDOW].tobytes(),
        truncated=isinstance(subject, Guard) and (first == 0 if before else last == expected.size - 1),
    )
