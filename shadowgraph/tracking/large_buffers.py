"""Guards behind large buffers, in memory that stays the program's: the tail is laid when an operator allocates, and no
byte is moved.

`LargeBuffers` is for a device. Torch's own allocator serves the operator, out of a segment that has room for a tail
behind it; `SegmentSource` arranges that. The tensor is the one that the program would have had, with a storage of
torch's, and its buffer is one of foreign memory with a guard behind it. The tail is another allocation there. It is
kept until the tensor's storage is gone and its guard has been checked a last time; then the whole segment is torch's.

Called in the thread that allocates, resizes or frees; changes guards under the allocator's lock, and calls torch's
allocator without it. Storage finalizers arrive through `frees`.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from shadowgraph.common.finalizer_safe_lock import FinalizerSafeLock
from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.model.buffers import Buffer, Ledger
from shadowgraph.model.coverage import LargeGuards
from shadowgraph.model.guards import GuardPolicy, GuardSizes
from shadowgraph.model.stacks import Stack, current_stack
from shadowgraph.tracking.foreign import still_there, track_foreign
from shadowgraph.tracking.frees import finalized
from shadowgraph.tracking.guard_keeper import GuardKeeper

NO_MEMORY = "no memory for a guard"
OTHER_PLACE = "torch's allocator left no room behind them"
UNMAPPABLE = "their memory may be unmapped (a memory saver or a sleep mode)"
SHORT_LIVED = "made by a line whose results die before the next capture"
_DEATHS = 4  # of one line's buffers between two captures, after which the line's results are no static buffers


@dataclass(frozen=True, slots=True)
class Request:
    """A large allocation that is about to be made.

    Attributes
    ----------
    run
        The program's operator, which allocates once and has no other effect.
    build
        The operator's result over memory of another owner.
    nbytes
        Bytes of its storage.
    """

    run: Callable[[], torch.Tensor]
    build: Callable[[torch.UntypedStorage], torch.Tensor]
    nbytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Laid:
    """An operator's result, and the allocation behind it.

    Attributes
    ----------
    tail
        What stands behind the result in its segment, or why nothing does.
    room
        Bytes from the end of the result to the end of the tail.
    added
        Bytes of device memory beyond what the operator alone would have taken.
    """

    tensor: torch.Tensor
    tail: object | str
    room: int = 0
    added: int = 0


class SegmentSource(Protocol):
    """Has an operator allocate where there is room behind its result."""

    def refusal(self) -> str | None:
        """Why nothing may be arranged now, or None."""

    def lay(self, run: Callable[[], torch.Tensor], nbytes: int, tail: int) -> Laid | None:
        """Run an operator whose result has `nbytes`, with at least `tail` bytes behind it; None, and nothing has
        happened, where there is no memory for that."""


class LargeTally:
    """What the guards of large buffers take. The caller holds the allocator's lock.

    Attributes
    ----------
    now, most
        Now, and when it was most since the last `begin`.
    runs
        Calls of `begin`.
    """

    def __init__(self) -> None:
        self.now = self.most = LargeGuards()
        self.runs = 0

    def begin(self) -> None:
        """Another run begins."""
        self.most, self.runs = self.now, self.runs + 1

    def add(self, buffer: LargeGuards) -> None:
        """One more buffer."""
        self.now = self.now + buffer
        if (self.now.added, self.now.nbytes) >= (self.most.added, self.most.nbytes):
            self.most = self.now

    def remove(self, buffer: LargeGuards) -> None:
        """One buffer less."""
        self.now = self.now - buffer


@dataclass(slots=True, eq=False)
class _Entry:
    """A guarded large buffer."""

    buffer: Buffer
    tail: object
    sizes: GuardSizes
    policy: GuardPolicy
    counted: LargeGuards
    site: tuple[str, int] | None
    made: int  # captures begun before


class LargeBuffers:
    """The large buffers of one device whose tails are kept.

    Parameters
    ----------
    lock
        The allocator's lock.
    """

    def __init__(
        self, lock: FinalizerSafeLock, guards: GuardKeeper, ledger: Ledger, source: SegmentSource, tally: LargeTally
    ) -> None:
        self._lock, self._guards, self._ledger, self._source, self._tally = lock, guards, ledger, source, tally
        self._entries: dict[int, _Entry] = {}  # by address
        self._captures = self._run = 0
        self._elsewhere = False  # torch's allocator is set up otherwise: a segment was made in vain, and none is again
        self._deaths: Counter[tuple[str, int]] = Counter()  # by the allocating line

    def make(self, request: Request, policy: GuardPolicy) -> tuple[torch.Tensor | None, str | None]:
        """Run an operator with a guard behind its result.

        Returns
        -------
        tuple
            The result, or None where the operator has not run; and why the result has no guard, if it has none.
        """
        self.sweep()
        self._start_over()
        stack = current_stack()
        site = (stack[0].file, stack[0].line) if stack else None
        refused = self._refusal(site)
        if refused is not None:
            return None, refused
        with self._lock.section:
            sizes = _tail_only(policy, request.nbytes)
        if sizes is None:
            return None, NO_MEMORY
        laid: Laid | None = None
        try:
            laid = self._source.lay(request.run, request.nbytes, sizes.tail)
            if laid is not None and not isinstance(laid.tail, str):
                self._enter(laid, sizes, policy, stack, site)
                return laid.tensor, None
        except BaseException:
            self._give_up(sizes, policy)
            raise
        self._give_up(sizes, policy)
        self._elsewhere = laid is not None and laid.tail == OTHER_PLACE
        return (None, NO_MEMORY) if laid is None else (laid.tensor, str(laid.tail))

    def capture_begins(self) -> None:
        """Buffers that live now may be those of a graph."""
        self._captures += 1
        self.sweep()

    def sweep(self) -> None:
        """Give up guards behind memory that the program has freed or moved while its storage lives."""
        if self._entries:
            for entry in [each for each in list(self._entries.values()) if not still_there(each.buffer)]:
                self._release(entry)

    def _start_over(self) -> None:
        """Forget what another run has learnt."""
        if self._run != self._tally.runs:
            self._run, self._elsewhere = self._tally.runs, False
            self._deaths.clear()

    def _refusal(self, site: tuple[str, int] | None) -> str | None:
        if self._elsewhere:
            return OTHER_PLACE
        return SHORT_LIVED if site is not None and self._deaths[site] >= _DEATHS else self._source.refusal()

    def _enter(
        self, laid: Laid, sizes: GuardSizes, policy: GuardPolicy, stack: Stack, site: tuple[str, int] | None
    ) -> None:
        buffer = track_foreign(self._ledger, laid.tensor, stack)
        counted = LargeGuards(1, buffer.nbytes, sizes.tail, laid.added)
        entry = _Entry(buffer, laid.tail, sizes, policy, counted, site, self._captures)
        finalizer = weakref.finalize(
            laid.tensor.untyped_storage(), finalized, entry.buffer, partial(self._release, entry)
        )
        finalizer.atexit = False
        with self._lock.section:
            self._entries[buffer.start] = entry
            self._tally.add(counted)
            buffer.tail_guard = min(laid.room, sizes.tail)
            with error_barrier("guard behind a large buffer"):
                self._guards.arm(buffer)
                return
            buffer.tail_guard = 0

    def _give_up(self, sizes: GuardSizes, policy: GuardPolicy) -> None:
        with self._lock.section:
            policy.release(sizes)

    def _release(self, entry: _Entry) -> None:
        """The buffer's memory is torch's again, or is about to be."""
        buffer = entry.buffer
        with self._lock.section:
            if self._entries.get(buffer.start) is not entry:
                return
            del self._entries[buffer.start]
            if self._guards.tenants.get(buffer.start) is buffer:
                self._guards.retire(buffer.start)
            self._ledger.free(buffer)
            entry.policy.release(entry.sizes)
            self._tally.remove(entry.counted)
            if entry.site is not None and entry.made == self._captures:
                self._deaths[entry.site] += 1
        entry.tail = None  # outside of the lock: torch's allocator takes its own


def _tail_only(policy: GuardPolicy, nbytes: int) -> GuardSizes | None:
    """The tail within the budget, counted as used until it is released; None past it."""
    sizes = policy.grant(nbytes)
    if not sizes.tail:
        return None
    policy.release(GuardSizes(sizes.head, 0))
    return GuardSizes(0, sizes.tail)
