"""Where guards stand and how large they may be. What they hold is `canary`; who compares them is an engine."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import StrEnum

from shadowgraph.model.alignment import ALIGNMENT, round_up
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.ranges import ByteRange

_FAR_SMALLEST = 4 << 10
_FAR_LARGEST = 1 << 20


class Side(StrEnum):
    """Which side of a buffer was written."""

    BEFORE = "before"
    AFTER = "after"
    SLACK = "slack"  # inside the buffer, beyond what this graph captured of it
    ROW = "row"  # inside the buffer, past the end of a row


@dataclass(frozen=True, slots=True)
class Guard:
    """One side's canary: the near part is read at every check, the whole after a near hit and in turn.

    Attributes
    ----------
    rearm
        Whether a check that finds it broken may write it; else the host does, once it knows that nobody has the bytes.
    """

    buffer: Buffer
    side: Side
    near: ByteRange
    whole: ByteRange
    rearm: bool = True


def guards_of(buffer: Buffer, near: int) -> tuple[Guard, ...]:
    """The guards that stand around a buffer now."""
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
    """Guard bytes asked for before a block and after its rounded size; multiples of the alignment."""

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
        Guard bytes standing now.
    shrunk, dropped
        How many blocks got smaller guards than asked, and none.
    """

    def __init__(self, near: int, far: int | None, budget: int) -> None:
        self.near, self.far, self.budget = near, far, budget
        self.used = self.shrunk = self.dropped = 0
        self._lock = threading.Lock()

    def wanted(self, nbytes: int) -> GuardSizes:
        """Sizes with no budget in the way. The far guard follows the buffer: an index that misses a factor overruns
        by about as much as the buffer holds."""
        far = self.far if self.far is not None else min(max(nbytes, _FAR_SMALLEST), _FAR_LARGEST)
        return GuardSizes(round_up(self.near), round_up(self.near + far))

    def near_only(self) -> GuardSizes:
        return GuardSizes(round_up(self.near), round_up(self.near))

    def grant(self, nbytes: int) -> GuardSizes:
        """Sizes that the budget allows; counted as used until `release`."""
        with self._lock:
            for attempt, sizes in enumerate((self.wanted(nbytes), self.near_only())):
                if self.used + sizes.added <= self.budget:
                    self.used += sizes.added
                    self.shrunk += attempt
                    return sizes
            self.dropped += 1
            return NO_GUARDS

    def release(self, sizes: GuardSizes) -> None:
        with self._lock:
            self.used -= sizes.added

    def shrink(self, sizes: GuardSizes) -> GuardSizes:
        """The next smaller sizes, after an allocation with `sizes` ran out of memory."""
        near = self.near_only()
        smaller = near if sizes.added > near.added else NO_GUARDS
        counted_as_shrunk = sizes == near and near != self.wanted(0)
        with self._lock:
            self.used += smaller.added - sizes.added
            self.shrunk += (smaller.added > 0) - counted_as_shrunk
            self.dropped += smaller.added == 0
        return smaller


__all__ = ["ALIGNMENT", "NO_GUARDS", "Guard", "GuardPolicy", "GuardSizes", "Side", "guards_of"]
