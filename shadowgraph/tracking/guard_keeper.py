"""The owner of all guards: which guards stand where, and every change of that.

Five verbs: guards are *armed* (they come to stand, with their canaries), *moved* (to other bytes or another buffer),
*checked* (for the last time, before other guards replace them), *re-armed* (the canary of a broken guard is written
again) and *retired* (they stand no more). Guards come to stand in three ways:

- around a block of an allocator, for the tensor in it (`arm`); a replay moves them with the tenants of the block
  (`move_in_replay`);
- around a segment of an isolated pool (`arm`);
- in the free bytes of a program's own pool (`move`), where `InPlacePools` finds room.

One keeper for each allocator; it outlives debuggers, as the buffers do. Any thread. Guards change under the allocator's
lock, which every method takes that needs it; its holder must not wait for a debugger's lock.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from shadowgraph.common.errors import FindingsError
from shadowgraph.common.finalizer_safe_lock import FinalizerSafeLock
from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.guards import Guard
from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking.free_gaps import Placement
from shadowgraph.tracking.handover import Handover


class CanaryWriter(Protocol):
    """Writes canaries into memory: the engine of the cuda backend, `HostCanaries` on the host."""

    @property
    def origin(self) -> int:
        """Address at which canary positions start."""

    def write_canaries(self, ranges: Sequence[ByteRange], here: bool = False) -> None:
        """Write the canary over ranges, several in one launch, before every later check; or, with `here`, in order with
        the work of the current stream, and not while that stream captures."""

    def order_canaries(self) -> None:
        """Order later `write_canaries` without `here` behind the work queued on the current stream."""

    def withdraw_guards(self, starts: Sequence[int]) -> None:
        """Let no check node compare guards that begin at these addresses: they are about to move or to end."""

    def withdraw_shadows(self, buffer: int) -> None:
        """Let no check node compare bytes of the buffer with this serial: they are about to go to another owner."""


class ExternalPoolOwner(Protocol):
    """Finds room for guards in memory of another allocator, which may allocate it. Called with the allocator's lock."""

    def confirm(self, guard: Guard, extent: tuple[int, int], order: int, clock: Iterator[int]) -> bool:
        """As `GuardKeeper.confirm`."""

    def may_rearm(self, guard: Guard, clock: Iterator[int]) -> bool:
        """Whether a guard stands and its bytes are unallocated; `clock` as for `GuardKeeper.rearm`."""

    def refit(self) -> None:
        """Restrict guards to bytes that are still free."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Tenancy:
    """A graph's claim to write a buffer's bytes at each replay, also after the buffer was freed.

    Lives as long as the graph node that holds it; the keeper refers to it weakly.
    """

    buffer: Buffer
    handover: Handover | None = None  # from the tenant that it last took the block over from


class GuardKeeper:
    """Which guards stand where, and every change of that.

    Parameters
    ----------
    lock
        The allocator's lock.

    Attributes
    ----------
    tenants
        The buffer whose guards stand around each block now, by block address; it may be freed already.
    changes
        Changes of tenants and of guard positions so far, without those in `turns`.
    turns
        Tenant changes that a replay repeats each time.
    last_check
        Checks the guards of a tenant, which are about to be moved or retired; set by the debugger, called with the
        allocator's lock held.
    external
        The owner of pools in which guards stand between memory of another allocator.
    waiting
        Deferred guards and ledger entries of captures; a capture must not wait for them (`enter_waiting`).
    """

    def __init__(self, lock: FinalizerSafeLock, canaries: CanaryWriter) -> None:
        self._lock, self._canaries = lock, canaries
        self.tenants: dict[int, Buffer] = {}
        self.changes = 0
        self.turns = 0
        self.last_check: Callable[[Buffer], None] | None = None
        self.external: ExternalPoolOwner | None = None
        self.waiting: deque[Callable[[], None]] = deque()
        self._claims: dict[int, list[weakref.ref[Tenancy]]] = {}  # by block address
        self._batched: list[ByteRange] | None = None

    def enter_waiting(self) -> None:
        """Run the deferred work of captures, oldest first; call it before reading the ledger or guards."""
        while self.waiting:
            with self._lock.section, suppress(IndexError), error_barrier("buffers of a capture"):
                self.waiting.popleft()()

    # -- arm ---------------------------------------------------------------------------------------------------

    def arm(self, buffer: Buffer, given: int = 0) -> None:
        """Arm a buffer's guards around its block, after a last check of the previous tenant's guards.

        While a tensor lives, tenants of other graphs do not move its guards: that would overwrite its bytes. So its
        tail guard starts after the largest of them. A freed tenant gives way, and the new guards are exact.

        Parameters
        ----------
        given
            Bytes of the block that the program may have written since it was given them: guards there are not checked.
        """
        if self.tenants.get(buffer.start) is buffer and not buffer.gap:
            return
        with self._lock.section:
            if self.tenants.get(buffer.start) is buffer:
                self._close_gap(buffer)
                return
            previous = self.tenants.get(buffer.start)
            if previous is not None and previous.alive and previous.graph != buffer.graph:
                return
            if previous is not None:
                if previous.guard_start >= buffer.start + given:
                    self._check(previous)
                self._withdraw(previous)
            if buffer.guarded:
                buffer.keep_back(self._gap(buffer))
            self._write_guards(buffer)
            self.tenants[buffer.start] = buffer
            self.changes += 1

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Write all canaries of the block together at its end. The caller holds the allocator's lock."""
        if self._batched is not None:  # part of an outer batch
            yield
            return
        self._batched = []
        try:
            yield
        finally:
            ranges, self._batched = self._batched, None
            self._canaries.write_canaries(ranges)

    # -- move --------------------------------------------------------------------------------------------------

    def move(self, buffer: Buffer, placement: Placement, readable: bool = True) -> None:
        """Move a buffer's guards, or arm its first ones, after a last check of those that stand; a placement without
        bytes retires them. Guards that stand there already stay.

        Parameters
        ----------
        readable
            Whether the bytes of those that stand are still unallocated; else there is no check.
        """
        with self._lock.section:
            standing = self.tenants.get(buffer.start) is buffer
            wanted = bool(placement.head or placement.tail)
            if standing is wanted and (buffer.head_guard, buffer.tail_guard) == (placement.head, placement.tail):
                buffer.gap = placement.gap
                return
            if standing:
                if readable:
                    self._check(buffer)
                self._withdraw(buffer)
                del self.tenants[buffer.start]
            buffer.head_guard, buffer.tail_guard, buffer.gap = placement.head, placement.tail, placement.gap
            if wanted:
                self.tenants[buffer.start] = buffer
                self._write_guards(buffer)
            self.changes += 1

    def move_to(self, buffer: Buffer, before: Buffer) -> None:
        """Move the guards of `before` to another buffer of the same range: they stay as they are."""
        buffer.head_guard, buffer.tail_guard, buffer.gap = before.head_guard, before.tail_guard, before.gap
        with self._lock.section:
            if self.tenants.get(before.start) is before:
                self.tenants[buffer.start] = buffer
                self.changes += 1

    def claim(self, buffer: Buffer) -> Tenancy:
        """Record that a graph writes a buffer at each replay, for as long as the caller holds the result."""
        tenancy = Tenancy(buffer)
        with self._lock.section:
            standing = [claim for claim in self._claims.get(buffer.start, ()) if claim() is not None]
            self._claims[buffer.start] = [*standing, weakref.ref(tenancy)]
        return tenancy

    def claimed(self) -> dict[int, list[Buffer]]:
        """The buffers that graphs write at each replay, freed ones too, by block address; on the host."""
        with self._lock.section:
            found = {
                at: [tenancy.buffer for each in claims if (tenancy := each())] for at, claims in self._claims.items()
            }
        return {at: buffers for at, buffers in found.items() if buffers}

    def move_in_replay(self, tenancy: Tenancy) -> None:
        """Move a block's guards to the tenant that a replay puts there: `arm`, but each replay repeats it, and a block
        passes between the same tenants.

        Where the previous tenant's guards are intact, there is no last check of them, and the guards stay in place.
        """
        if self.move_intact(tenancy):
            return
        buffer = tenancy.buffer
        with self._lock.within:
            previous = self.tenants.get(buffer.start)
            self.arm(buffer)
            tenancy.handover = None
            if previous is not None and self.tenants.get(buffer.start) is buffer is not previous:
                tenancy.handover = Handover(self._canaries.origin, previous, buffer)

    def move_intact(self, tenancy: Tenancy) -> bool:
        """Try the fast path of `move_in_replay`, which calls no listener; returns whether it applied."""
        buffer, known = tenancy.buffer, tenancy.handover
        with self._lock.within:  # a replay calls `run_deferred` itself
            previous = self.tenants.get(buffer.start)
            if previous is buffer and not buffer.gap:
                return True
            if known is None or known.previous is not previous or not known.is_possible(buffer):
                return False
            if (buffer.freed_at is None and self._gap(buffer)) or not known.intact():
                return False
            known.write_difference()
            self.tenants[buffer.start] = buffer
            self.turns += 1
        return True

    def close_gaps(self, pool: int) -> None:
        """A graph has left a pool: move the guards of its living tensors closer, where only that graph kept them
        back."""
        with self._lock.section:
            for tenant in [b for b in self.tenants.values() if b.gap and b.alive and b.pool == pool]:
                self._close_gap(tenant)

    # -- check -------------------------------------------------------------------------------------------------

    def confirm(self, guard: Guard, extent: tuple[int, int], order: int, clock: Iterator[int]) -> bool:
        """Whether a change in a guard that no check rearms is damage that was not reported before: its memory may have
        been allocated meanwhile.

        `extent`: first and last changed byte; `order`: time of the check, by `clock`.
        """
        with self._lock.section:
            return self.external is None or self.external.confirm(guard, extent, order, clock)

    def _check(self, tenant: Buffer) -> None:
        """Check a tenant's guards a last time."""
        if self.last_check is not None:
            with error_barrier("check of a retiring tenant"):
                self.last_check(tenant)
        self._canaries.order_canaries()  # the check is only queued; the next canaries may overwrite the same bytes

    # -- re-arm ------------------------------------------------------------------------------------------------

    def rearm(self, guard: Guard, engine: CanaryWriter, clock: Iterator[int]) -> None:
        """Re-arm a broken guard if it still stands, in order with the work of the current stream.

        Parameters
        ----------
        engine
            The engine that found it broken, which also forgets the contents that it has reported.
        clock
            As for `confirm`.
        """
        with self._lock.within:  # meanwhile no block changes owner
            if self._may_rearm(guard, clock):
                engine.write_canaries((guard.whole,), here=True)

    def rearm_all(self) -> None:
        """Re-arm every standing guard, without a check.

        Queued work of the program may still write to unchecked guards: their canaries are written behind it, and not
        over memory that was allocated since they were placed.
        """
        self.enter_waiting()
        self._canaries.order_canaries()
        with self._lock.section, self.batch():
            if self.external is not None:
                self.external.refit()
            for buffer in list(self.tenants.values()):
                self._write_guards(buffer)

    def _may_rearm(self, guard: Guard, clock: Iterator[int]) -> bool:
        """Whether a broken guard still stands, in memory that was not allocated meanwhile."""
        if guard.rearm or self.external is None:
            return self.tenants.get(guard.buffer.start) is guard.buffer
        return self.external.may_rearm(guard, clock)

    # -- retire ------------------------------------------------------------------------------------------------

    def retire(self, address: int, readable: bool = True) -> Buffer | None:
        """Retire the guards of a block that ends, after a last check of them.

        Parameters
        ----------
        readable
            Whether the guards may still be read; else there is no check.

        Returns
        -------
        Buffer or None
            Their buffer.
        """
        with self._lock.section:
            tenant = self.tenants.pop(address, None)
            self._claims.pop(address, None)
            if tenant is not None:
                self.changes += 1
                if readable:
                    with suppress(FindingsError):  # the finding is stored; a finalizer cannot raise
                        self._check(tenant)
                self._withdraw(tenant)
            return tenant

    def ended(self, buffer: Buffer) -> None:
        """A buffer's tensor is gone, and its bytes are about to go to another owner: no check node reads them from here
        on. Its guards stand until that owner comes. The caller holds the allocator's lock."""
        self._canaries.withdraw_shadows(buffer.serial)

    # -- parts -------------------------------------------------------------------------------------------------

    def _withdraw(self, buffer: Buffer) -> None:
        self._canaries.withdraw_guards((buffer.start - buffer.head_guard, buffer.guard_start))

    def _write_guards(self, buffer: Buffer) -> None:
        if buffer.head_guard:
            self._write(ByteRange(buffer.start - buffer.head_guard, buffer.start))
        if buffer.tail_guard:
            self._write(ByteRange(buffer.guard_start, buffer.guard_start + buffer.tail_guard))

    def _write(self, where: ByteRange) -> None:
        if self._batched is not None:
            self._batched.append(where)
        else:
            self._canaries.write_canaries((where,))

    def _gap(self, buffer: Buffer) -> int:
        """Bytes past a live tenant's end that live graphs other than its own may write."""
        if not buffer.alive:
            return 0
        claims = [claim() for claim in self._claims.get(buffer.start, ())]
        others = [c.buffer.stop for c in claims if c is not None and c.buffer.graph != buffer.graph]
        return max(0, max(others, default=0) - buffer.stop)

    def _close_gap(self, buffer: Buffer) -> None:
        """Start a tail guard earlier, where graphs that kept it back are gone or the tensor died.

        Never when a tensor dies: that may be in the middle of another graph's replay, over bytes that it just wrote.
        """
        old, gap = buffer.guard_start, self._gap(buffer)
        if gap < buffer.gap:
            buffer.keep_back(gap)
            self.changes += 1
            self._write(ByteRange(buffer.guard_start, old))
