"""The array work that checks need, behind one protocol.

An engine is handed ranges and answers with `Evidence`, raw facts without names. Work is submitted with a tag and comes
back through `poll`, because on a device it runs behind the program's own work; the host engine has it ready at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from shadowgraph.model.guards import Guard
from shadowgraph.model.ranges import ByteRange

WINDOW = 256  # bytes of expected and found values kept
RANGES = 16  # changed ranges kept
RANGES_COPIED = 8  # by one call of `mirror`
LARGEST_COPY = 16 << 10  # bytes of each
MIRRORED = 64 << 10  # shadowed parts up to this size are copied to the host too, where their last values survive

Subject = TypeVar("Subject", covariant=True)


@dataclass(frozen=True, slots=True)
class Evidence(Generic[Subject]):
    """Bytes that differ from what they should be. Addresses are absolute; ranges inclusive pairs.

    Attributes
    ----------
    subject
        What was compared: a guard, or the key of a snapshot's part.
    first, last, count
        Extreme changed bytes and how many changed.
    window, expected, found
        Address of the values kept, and up to `WINDOW` bytes of each.
    truncated
        The change reaches a guard's far end, so that there may be more beyond; never so for a snapshot.
    """

    subject: Subject
    first: int
    last: int
    count: int
    ranges: tuple[tuple[int, int], ...]
    ranges_total: int
    window: int
    expected: bytes
    found: bytes
    truncated: bool

    @property
    def parts(self) -> tuple[ByteRange, ...]:
        """The changed ranges; all that `ranges` has no room for as one more, up to `last`."""
        listed = [ByteRange(first, last + 1) for first, last in self.ranges]
        if self.ranges_total > len(self.ranges):
            listed.append(ByteRange(listed[-1].stop, self.last + 1))
        return tuple(listed)


class Result(NamedTuple):
    """What a check found, or what was fetched."""

    tag: object
    evidence: tuple[Evidence[object], ...]
    fetched: tuple[tuple[object, bytes], ...] = ()


class Shadow(Protocol):
    """Room for copies of ranges, with the key that each belongs to. Owned by whoever asked for it."""

    @property
    def parts(self) -> Sequence[tuple[object, ByteRange]]: ...

    def last_values(self) -> list[tuple[object, ByteRange, bytes]]:
        """The small parts as they were when last copied, from host memory; needs no device."""


class Mirror(Protocol):
    """Copies of ranges in host memory, which survive the device."""

    def read(self) -> list[bytes] | None:
        """The bytes of each range, or None where they did not arrive or are gone; needs no device."""


class Engine(Protocol):
    """Fill, compare, copy and diff. See `numpy_engine` for the reference behaviour."""

    def arm(self, guard: Guard) -> None:
        """Fill a guard with its canary."""

    def shadow(self, parts: Sequence[tuple[object, ByteRange]]) -> Shadow:
        """Room for copies of ranges; nothing is copied yet."""

    def check(
        self,
        tag: object,
        guards: Sequence[Guard],
        take: Shadow | None = None,
        compare: Shadow | None = None,
        in_full: bool = False,
    ) -> None:
        """Compare guards, and in the same step copy into a shadow or compare with one; evidence comes from `poll`.

        Of every guard the near part is read, and of a few in turn a piece of what lies beyond; with `in_full` all of
        all. A guard that does not hold its canary is measured over its whole length, and armed again if it asks for it.
        Where the engine `keeps`, it is not armed again, and told again only when it holds something else.
        """

    def rearm(self, guard: Guard) -> None:
        """Fill a guard that was broken, behind what the current stream has queued and before what it is given next."""

    def fetch(self, tag: object, parts: Sequence[tuple[object, ByteRange]]) -> None:
        """Ask for the bytes that ranges hold at this point of the stream; they come from `poll`, each with its key."""

    def read(self, where: ByteRange) -> bytes:
        """Bytes of a range, now. Waits for the device."""

    def read_many(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Bytes of ranges, now, in host memory that lives as long as the views; waits for the device once."""

    def mirror(self, ranges: Sequence[ByteRange]) -> Mirror:
        """Ask for copies of a few small ranges as they are at this point of the stream; of a larger one the first
        `LARGEST_COPY` bytes. Kept until some megabytes of newer ones have come."""

    @property
    def lost(self) -> str | None:
        """Why nothing can be read any more, or None."""

    @property
    def asynchronous(self) -> bool:
        """Whether results arrive later than they are asked for."""

    @property
    def keeps(self) -> bool:
        """Whether what broke a guard stays there: the program may go on to read it, and must find what it wrote."""

    @property
    def dropped(self) -> int:
        """Records that were lost before they could be read."""

    def lose(self, reason: str) -> None:
        """The device is gone, if it was not known yet: what has reached the host is all that comes."""

    def poll(self, wait: bool = False, here: bool = False) -> list[Result]:
        """Outcomes that have arrived since the last poll, in order of submission; with `wait` all of them, or with
        `here` all that the current stream was asked for. A check that found nothing has none."""
