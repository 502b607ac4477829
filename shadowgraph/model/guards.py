"""Guards: canary ranges before and after a buffer, and the policy that decides their sizes.

`canary` defines their contents, an engine compares them. `GuardPolicy` has its own lock: any thread that allocates or
frees calls it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import StrEnum

from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.model.alignment import ALIGNMENT, round_up
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.ranges import ByteRange

_FAR_SMALLEST = 4 << 10
_FAR_LARGEST = 1 << 20


class Side(StrEnum):
    """The side of a buffer that was written."""

    BEFORE = "before"
    AFTER = "after"
    SLACK = "slack"  # inside the buffer, beyond the views that this graph captured
    ROW = "row"  # inside the buffer, past the end of a row


@dataclass(frozen=True, slots=True)
class Guard:
    """The guard of one side: each check reads the near part; it reads the whole after a near hit and in rotation.

    Attributes
    ----------
    rearm
        Whether a check that finds it broken may rewrite it; else the host does, once it knows that the bytes are free.
    row
        The guard in the layout of an engine's table, kept from the first table on (`engines.guard_table`).
    """

    buffer: Buffer
    side: Side
    near: ByteRange
    whole: ByteRange
    rearm: bool = True
    row: bytes = field(default=b"", init=False, compare=False, repr=False)


def guards_of(buffer: Buffer, near: int) -> tuple[Guard, ...]:
    """The guards around a buffer now."""
    guards = []
    if buffer.head_guard:
        whole = ByteRange(buffer.start - buffer.head_guard, buffer.start)
        close = ByteRange(buffer.start - min(near, whole.nbytes), buffer.start)
        guards.append(Guard(buffer, Side.BEFORE, close, whole, not buffer.lent))
    if buffer.tail_guard:
        whole = ByteRange(buffer.guard_start, buffer.guard_start + buffer.tail_guard)
        close = ByteRange(whole.start, whole.start + min(near, whole.nbytes))
        guards.append(Guard(buffer, Side.AFTER, close, whole, not buffer.lent))
    return tuple(guards)


@dataclass(frozen=True, slots=True)
class GuardSizes:
    """Guard bytes before a block and after its rounded size; multiples of the alignment."""

    head: int
    tail: int

    @property
    def added(self) -> int:
        return self.head + self.tail


NO_GUARDS = GuardSizes(0, 0)


class GuardPolicy:
    """Decides guard sizes within a budget; past it guards shrink to the near ones, then stop. Thread-safe.

    Attributes
    ----------
    used
        Guard bytes in use now.
    shrunk, dropped
        How many blocks got smaller guards than wanted, and none.
    """

    def __init__(self, near: int, far: int | None, budget: int) -> None:
        self.near, self.far, self.budget = near, far, budget
        self.used = self.shrunk = self.dropped = 0
        self._lock = fork_safe(threading.Lock())

    def wanted(self, nbytes: int) -> GuardSizes:
        """Sizes without regard to the budget. The far guard scales with the buffer: an index that misses a factor
        overruns by about the size of the buffer."""
        far = self.far if self.far is not None else min(max(nbytes, _FAR_SMALLEST), _FAR_LARGEST)
        return GuardSizes(round_up(self.near), round_up(self.near + far))

    def near_only(self) -> GuardSizes:
        return GuardSizes(round_up(self.near), round_up(self.near))

    def grant(self, nbytes: int) -> GuardSizes:
        """Sizes within the budget; counted as used until `release`."""
        with self._lock:
            for attempt, sizes in enumerate((self.wanted(nbytes), self.near_only())):
                if self.used + sizes.added <= self.budget:
                    self.used += sizes.added
                    self.shrunk += attempt
                    return sizes
            self.dropped += 1
            return NO_GUARDS

    def drop(self) -> None:
        """Count a block that gets no guards since there was no memory for it beside the program's own."""
        with self._lock:
            self.dropped += 1

    def release(self, sizes: GuardSizes) -> None:
        with self._lock:
            self.used -= sizes.added

    def shrink(self, sizes: GuardSizes) -> GuardSizes:
        """The next smaller sizes after an allocation with `sizes` ran out of memory."""
        near = self.near_only()
        smaller = near if sizes.added > near.added else NO_GUARDS
        counted_as_shrunk = sizes == near and near != self.wanted(0)
        with self._lock:
            self.used += smaller.added - sizes.added
            self.shrunk += (smaller.added > 0) - counted_as_shrunk
            self.dropped += smaller.added == 0
        return smaller


__all__ = ["ALIGNMENT", "NO_GUARDS", "Guard", "GuardPolicy", "GuardSizes", "Side", "guards_of"]
