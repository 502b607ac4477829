"""The engine protocol: the array work of checks, and the `Evidence` that it returns.

An engine receives ranges and returns raw facts without names. Work is submitted with a tag and its results come back
through `poll`, because on a device it runs behind the program's own work; the host engine has them ready at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from shadowgraph.model.check_log import RANGES as RANGES
from shadowgraph.model.check_log import WINDOW as WINDOW
from shadowgraph.model.guards import Guard
from shadowgraph.model.host_copies import HostBlock
from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking.guard_keeper import CanaryWriter

RANGES_COPIED = 8  # by one call of `mirror`
LARGEST_COPY = 16 << 10  # bytes of each
MIRRORED = 64 << 10  # shadowed parts up to this size are also copied to the host, where their last values survive

Subject = TypeVar("Subject", covariant=True)


@dataclass(frozen=True, slots=True)
class Evidence(Generic[Subject]):
    """Bytes that differ from their expected values. Addresses are absolute; ranges are inclusive pairs.

    Attributes
    ----------
    subject
        The compared object: a guard, or the key of a shadow's part.
    first, last, count
        Extreme changed bytes, and the number of changed bytes.
    window, expected, found
        Address of the kept values, and up to `WINDOW` bytes of each.
    truncated
        The change reaches a guard's far end, so that there may be more beyond; never set for a shadow.
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
        """The changed ranges, plus one up to `last` for all ranges beyond the capacity of `ranges`."""
        listed = [ByteRange(first, last + 1) for first, last in self.ranges]
        if self.ranges_total > len(self.ranges):
            listed.append(ByteRange(listed[-1].stop, self.last + 1))
        return tuple(listed)


class NodeCheck(NamedTuple):
    """The tag of a check that is a node of a graph.

    Attributes
    ----------
    graph
        The graph's serial.
    replay
        Number of the replay, as the device counts them from the capture on.
    end
        Whether it is the check at the replay's end.
    """

    graph: int
    replay: int
    end: bool


class NodePart(NamedTuple):
    """A range that check nodes compare across each replay of a graph.

    Attributes
    ----------
    key
        The subject of its evidence.
    buffer
        Serial of the buffer that it lies in.
    undecided
        Whether a change may be legal, so that a record of it is no damage yet.
    """

    key: object
    where: ByteRange
    buffer: int
    undecided: bool = False


class Result(NamedTuple):
    """The evidence of a check, or fetched bytes. The tag is the one given to `Engine.check`, or a `NodeCheck`."""

    tag: object
    evidence: tuple[Evidence[object], ...]
    fetched: tuple[tuple[object, bytes], ...] = ()


class Shadow(Protocol):
    """Shadow copies of ranges, each with its key. Owned by the caller of `Engine.shadow`."""

    @property
    def parts(self) -> Sequence[tuple[object, ByteRange]]: ...

    def last_values(self) -> list[tuple[object, ByteRange, bytes]]:
        """The small parts as last copied, from host memory; needs no device."""


class Mirror(Protocol):
    """Copies of ranges in host memory, which survive a device loss."""

    def read(self) -> list[bytes] | None:
        """The bytes of each range, or None where they did not arrive or were overwritten; needs no device."""


class Fetching(Protocol):
    """Copies to the host that were queued."""

    def passed(self) -> bool:
        """Whether the work that was queued before them has been done; never waits."""


class Engine(CanaryWriter, Protocol):
    """Write canaries, compare, copy and diff. The host engine is the reference behaviour."""

    def shadow(self, parts: Sequence[tuple[object, ByteRange]]) -> Shadow:
        """Allocate shadow copies of ranges; nothing is copied yet."""

    def check(
        self,
        tag: object,
        guards: Sequence[Guard],
        take: Shadow | None = None,
        compare: Shadow | None = None,
        in_full: bool = False,
    ) -> None:
        """Compare guards, and in the same launch copy into a shadow or compare with one; evidence comes from `poll`.

        Reads the near part of every guard, and in rotation a piece of the far parts of a few; with `in_full` reads
        every guard in full. A broken guard is measured over its whole length, and rearmed if its `rearm` is set. Where
        the engine `keeps`, it is not rearmed, and reported again only when its contents change.
        """

    def list_guards(self, guards: Sequence[Guard]) -> None:
        """Let check nodes compare these guards, and no others, from about now on."""

    def list_shadows(self, graph: int, parts: Sequence[NodePart]) -> None:
        """Let the check nodes of a graph compare these ranges, and no others, across each replay that begins from about
        now on. Each is reported once, until it is listed again: by a call after its evidence has come. Their memory
        must stay mapped; `withdraw_shadows` is called before it goes to another owner."""

    def clear_shadows(self) -> None:
        """Let no check node compare a range."""

    def pause(self, paused: bool) -> None:
        """Let check nodes count replays only, or compare again."""

    @property
    def checked_replays(self) -> int:
        """Replays that check nodes have checked at their ends, since the process began; on a device as it counts
        them, which may lag. Takes no lock; not for the path of a replay."""

    def arrival(self) -> Callable[[], bool]:
        """A function that tells whether evidence has arrived that `poll` would return. It takes no lock and a fraction
        of a microsecond: it is called at every replay."""

    def fetch(self, tag: object, parts: Sequence[tuple[object, ByteRange]]) -> Fetching | None:
        """Queue reads of ranges at this point of the stream; the bytes come from `poll`, each with its key. None where
        nothing was queued, since the stream captures or the ranges are empty."""

    def host_block(self, address: int) -> HostBlock | None:
        """What the driver knows of an address of the host; None for memory of a device, and where there is no
        driver."""

    def read(self, where: ByteRange) -> bytes:
        """Read a range now. Waits for the device."""

    def read_many(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Read ranges now, into host memory that lives as long as the views; waits for the device once."""

    def mirror(self, ranges: Sequence[ByteRange]) -> Mirror:
        """Queue host copies of a few small ranges at this point of the stream; of a larger one the first
        `LARGEST_COPY` bytes. Kept until some megabytes of newer copies overwrite them."""

    @property
    def lost(self) -> str | None:
        """Why the device can no longer be read, or None."""

    @property
    def asynchronous(self) -> bool:
        """Whether results arrive after the call that submits the work."""

    @property
    def keeps(self) -> bool:
        """Whether the contents of a broken guard stay: the program may read them, and must find the values it wrote."""

    @property
    def dropped(self) -> int:
        """Number of records that were lost before they could be read."""

    def lose(self, reason: str) -> None:
        """Mark the device as lost, unless it is already: only results that have reached the host will come."""

    def poll(self, wait: bool = False, here: bool = False) -> list[Result]:
        """Results that arrived since the last poll, in order of submission; with `wait` all results, or with
        `here` all results of the current stream. A check without evidence has no result."""
