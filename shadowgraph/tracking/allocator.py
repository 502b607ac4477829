"""The host allocator: guarded storages of exact size, in blocks of the arena, and pools that reuse the blocks.

Thread-safe under one finalizer-safe lock (`HostAllocator.lock`), which a thread may take while it holds a debugger's
lock; its holder must not wait for a debugger's lock. Storage finalizers reach it through `defer`.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial

import torch

from shadowgraph.common.errors import FindingsError
from shadowgraph.common.finalizer_safe_lock import FinalizerSafeLock, defer
from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.model.alignment import ALIGNMENT, round_up
from shadowgraph.model.buffers import Buffer, Ledger, Role
from shadowgraph.model.canary import canary
from shadowgraph.model.guards import NO_GUARDS, Guard, GuardPolicy, GuardSizes
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import Stack, current_stack
from shadowgraph.tracking.arena import HostArena
from shadowgraph.tracking.handover import Handover
from shadowgraph.tracking.memory import storage_at

SPARE_BYTES, SPARE_BLOCKS = 64 << 20, 256  # of freed static buffers, kept for reuse


def size_class(nbytes: int) -> int:
    """Block size for a static buffer: at most an eighth above the request, so that freed blocks fit again."""
    step = max(ALIGNMENT, 1 << max(0, nbytes.bit_length() - 4))
    return max(ALIGNMENT, -(-nbytes // step) * step)


@dataclass(slots=True, eq=False)
class Block:
    """A span of the arena: head guard, `capacity` bytes for tenants, tail guard."""

    address: int
    capacity: int
    guards: GuardSizes
    policy: GuardPolicy | None = None  # the guards count against its budget


@dataclass(slots=True, eq=False, weakref_slot=True)
class Tenancy:
    """A graph's claim to write a buffer's bytes at each replay, also after the buffer was freed.

    Lives as long as the graph node that holds it; the allocator refers to it weakly.
    """

    buffer: Buffer
    handover: Handover | None = None  # from the tenant that it last took the block over from


class Pool:
    """Free blocks for reuse, by rounded size, the last freed first. Has no lock.

    Attributes
    ----------
    hold
        While true, freed blocks wait in quarantine (layout ``isolate`` during a capture).
    users
        Number of graphs that refer to the pool. At zero, freed blocks go back to the arena.
    """

    def __init__(self, serial: int, users: int = 0) -> None:
        self.serial = serial
        self.hold = False
        self.users = users
        self._free: dict[int, list[Block]] = {}
        self._quarantine: list[Block] = []

    @property
    def spare(self) -> int:
        """Bytes in free blocks."""
        return sum(capacity * len(blocks) for capacity, blocks in self._free.items())

    @property
    def spare_blocks(self) -> int:
        """Number of free blocks."""
        return sum(map(len, self._free.values()))

    def take(self, capacity: int) -> Block | None:
        blocks = self._free.get(capacity)
        return blocks.pop() if blocks else None

    def oldest(self) -> Block:
        """Remove the block that was freed first, of the size that holds most bytes."""
        capacity = max(self._free, key=lambda size: size * len(self._free[size]))
        return self._free[capacity].pop(0)

    def give(self, block: Block) -> None:
        if self.hold:
            self._quarantine.append(block)
        else:
            self._free.setdefault(block.capacity, []).append(block)

    def release_quarantine(self) -> None:
        """Allow reuse of blocks freed while `hold` was set."""
        waiting, self._quarantine = self._quarantine, []
        for block in waiting:
            self._free.setdefault(block.capacity, []).append(block)

    def empty(self) -> list[Block]:
        """Remove every free block from the pool."""
        self.release_quarantine()
        free, self._free = self._free, {}
        return [block for blocks in free.values() for block in blocks]


class HostAllocator:
    """Allocates guarded storages of exact size and keeps the ledger.

    A storage owns its block until its last reference dies, views and tensors saved for backward included; then the
    block goes back to its pool, and from a pool that no graph uses to the arena. The arena itself lives as long as the
    process. Thread-safe; frees are recorded when `shadowgraph.common.finalizer_safe_lock` lets finalizers run.

    Attributes
    ----------
    policy
        Guard sizes for new blocks, or None for no guards.
    tenants
        The buffer whose guards stand around each block now, by block address; it may be freed already.
    before_retire
        Called with a tenant just before the guards of another tenant replace its own.
    isolate_captures
        Whether memory freed during a capture waits for its end before it is reused.
    waiting
        Deferred ledger entries of captures; a capture must not wait for them (`enter_waiting`).
    """

    device = "cpu"

    def __init__(self, arena: HostArena | None = None) -> None:
        self._lock = FinalizerSafeLock()
        self._arena = arena
        self._last_pool = 0
        self.ledger = Ledger()
        self.policy: GuardPolicy | None = None
        self.tenants: dict[int, Buffer] = {}
        self.tenancies = 0  # changes of tenants and of guard positions so far, without those in `turns`
        self.turns = 0  # tenant changes that a replay repeats each time
        self._claims: dict[int, list[weakref.ref[Tenancy]]] = {}  # by block address
        self.before_retire: Callable[[Buffer], None] | None = None
        self.isolate_captures = False
        self.waiting: deque[Callable[[], None]] = deque()
        self.static_pool = self.new_pool(users=1)

    @property
    def lock(self) -> FinalizerSafeLock:
        """Held while blocks change tenants and guards move; its holder must not wait for a debugger's lock."""
        return self._lock

    @property
    def arena(self) -> HostArena:
        if self._arena is None:
            with self._lock.section:
                if self._arena is None:
                    self._arena = HostArena()
        return self._arena

    def new_pool(self, users: int = 0) -> Pool:
        """A new pool with its own serial; a caller or a storage allocated from it keeps it alive."""
        with self._lock.section:
            self._last_pool += 1
            return Pool(self._last_pool, users)

    def issued(self, serial: int) -> bool:
        """Whether `new_pool` issued a serial, except that of the static pool."""
        return self.static_pool.serial < serial <= self._last_pool

    def enter_pool(self, pool: Pool) -> None:
        """Count one more graph that uses a pool."""
        with self._lock.section:
            pool.users += 1

    def leave_pool(self, pool: Pool) -> None:
        """Count one graph less. After the last one free blocks go back now, other blocks when their tensors die."""
        with self._lock.section:
            pool.users -= 1
            if not pool.users:
                for block in pool.empty():
                    self._give_back(block)
            for tenant in [b for b in self.tenants.values() if b.gap and b.alive and b.pool == pool.serial]:
                self._move_guard(tenant)

    def storage(
        self,
        nbytes: int,
        pool: Pool,
        role: Role,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        graph: int | None = None,
        stack: Stack | None = None,
        guarded: bool = False,
    ) -> tuple[torch.UntypedStorage, Buffer]:
        """Allocate a storage of exactly `nbytes` > 0 bytes with armed guards, and its ledger entry.

        Parameters
        ----------
        stack
            The allocating stack; walked here when not given.
        guarded
            Fail rather than return a storage without guards.

        Raises
        ------
        MemoryError
            When the arena is exhausted, even without guards; with `guarded` also when the guard budget is exhausted.
        """
        with self._lock.section:
            capacity = size_class(nbytes) if pool is self.static_pool else round_up(nbytes)
            block = self._take(pool, capacity) or self._new_block(nbytes, capacity)
            if guarded and not block.guards.tail:
                pool.give(block)
                raise MemoryError("guard memory is used up")
            buffer = Buffer(
                serial=self.ledger.next_serial(),
                start=block.address,
                nbytes=nbytes,
                role=role,
                dtype=str(dtype).removeprefix("torch."),
                shape=shape,
                itemsize=dtype.itemsize,
                stack=current_stack() if stack is None else stack,
                device=self.device,
                graph=graph,
                pool=pool.serial,
                head_guard=block.guards.head,
                tail_guard=block.guards.tail + block.capacity - nbytes if block.guards.tail else 0,
            )
            try:
                self.install_tenant(buffer)
            except BaseException:  # a finding in sync mode
                pool.give(block)
                raise
            self.ledger.add(buffer)
        storage = self._storage_at(block.address, nbytes)
        finalizer = weakref.finalize(storage, defer, partial(self._release, block, buffer, pool))
        finalizer.atexit = False
        return storage, buffer

    def claim(self, buffer: Buffer) -> Tenancy:
        """Record that a graph writes a buffer at each replay, for as long as the caller holds the result."""
        tenancy = Tenancy(buffer)
        with self._lock.section:
            standing = [claim for claim in self._claims.get(buffer.start, ()) if claim() is not None]
            self._claims[buffer.start] = [*standing, weakref.ref(tenancy)]
        return tenancy

    def install_tenant(self, buffer: Buffer) -> None:
        """Place a buffer's guards around its block, after a final check of the previous tenant's guards.

        While a tensor lives, tenants of other graphs do not move its guards: that would overwrite its bytes. So its
        tail guard starts after the largest of them. A freed tenant gives way, and the new guards are exact.
        """
        if self.tenants.get(buffer.start) is buffer and not buffer.gap:
            return
        with self._lock.section:
            if self.tenants.get(buffer.start) is buffer:
                self._move_guard(buffer)
                return
            previous = self.tenants.get(buffer.start)
            if previous is not None and previous.alive and previous.graph != buffer.graph:
                return
            if previous is not None:
                self._final_check(previous)
            if buffer.guarded:
                buffer.keep_back(self._gap(buffer))
            self.arm(buffer)
            self.tenants[buffer.start] = buffer
            self.tenancies += 1

    def replay_tenant(self, tenancy: Tenancy) -> None:
        """`install_tenant` during a replay, which repeats it each time: a block passes between the same tenants.

        Where the previous tenant's guards are intact, `before_retire` is not called, and the guards stay in place.
        """
        if self.hand_over(tenancy):
            return
        buffer = tenancy.buffer
        with self._lock.within:
            previous = self.tenants.get(buffer.start)
            self.install_tenant(buffer)
            tenancy.handover = None
            if previous is not None and self.tenants.get(buffer.start) is buffer is not previous:
                tenancy.handover = Handover(self.arena, previous, buffer)

    def hand_over(self, tenancy: Tenancy) -> bool:
        """Try the fast path of `replay_tenant`, which calls no listener; returns whether it applied."""
        buffer, known = tenancy.buffer, tenancy.handover
        with self._lock.within:  # a replay calls `run_deferred` itself
            previous = self.tenants.get(buffer.start)
            if previous is buffer and not buffer.gap:
                return True
            if known is None or known.previous is not previous or not known.is_possible(buffer):
                return False
            if (buffer.freed_at is None and self._gap(buffer)) or not known.intact():
                return False
            known.arm()
            self.tenants[buffer.start] = buffer
            self.turns += 1
        return True

    def arm(self, buffer: Buffer) -> None:
        """Fill a buffer's guards with canaries."""
        if buffer.head_guard:
            self.fill(ByteRange(buffer.start - buffer.head_guard, buffer.start))
        if buffer.tail_guard:
            self.fill(ByteRange(buffer.guard_start, buffer.guard_start + buffer.tail_guard))

    def rearm(self) -> None:
        """Rearm every standing guard, without a check."""
        with self.batch():
            for buffer in list(self.tenants.values()):
                self.arm(buffer)

    def confirm(self, guard: Guard, extent: tuple[int, int], order: int, clock: Iterator[int]) -> bool:
        """Whether a change in a guard that no check rearms is damage that was not reported before.

        `extent`: first and last changed byte; `order`: time of the check, by `clock`.
        """
        return True

    def may_arm(self, guard: Guard, clock: Iterator[int]) -> bool:
        """Whether a broken guard still stands, so that it can be rearmed. The caller holds the allocator's lock.

        `clock` as for `confirm`.
        """
        return self.tenants.get(guard.buffer.start) is guard.buffer

    def batch(self) -> AbstractContextManager[None]:
        """Context that may arm its guards together at the end."""
        return nullcontext()

    def enter_waiting(self) -> None:
        """Run the deferred work of captures, oldest first; call it before reading the ledger or guards."""
        while self.waiting:
            with self._lock.section, suppress(IndexError), error_barrier("buffers of a capture"):
                self.waiting.popleft()()

    def fill(self, where: ByteRange) -> None:
        """Fill a range of the arena with its canary."""
        arena = self.arena
        arena.view(where.start, where.stop).data[:] = canary(where.start - arena.base, where.nbytes)

    def holds(self, address: int) -> bool:
        """Whether an address lies in this allocator's memory."""
        return self.arena.holds(address)

    def in_private_pool(self, where: ByteRange) -> bool:
        """Whether freed memory lies in a private pool of a graph or of the program, which eager code does not share."""
        return False

    def _storage_at(self, address: int, nbytes: int) -> torch.UntypedStorage:
        return storage_at(address, nbytes)

    def _take(self, pool: Pool, capacity: int) -> Block | None:
        """A free block; for a static buffer only one whose guards come from the current policy."""
        block = pool.take(capacity)
        while block is not None and pool is self.static_pool and block.policy is not self.policy:
            self._give_back(block)
            block = pool.take(capacity)
        return block

    def _new_block(self, nbytes: int, capacity: int) -> Block:
        sizes = self.policy.grant(nbytes) if self.policy else NO_GUARDS
        while True:
            try:
                span = self._span(sizes.head + capacity + sizes.tail)
                break
            except MemoryError:
                if self.policy is None or sizes == NO_GUARDS:
                    raise
                sizes = self.policy.shrink(sizes)
        return Block(span + sizes.head, capacity, sizes, self.policy)

    def _span(self, nbytes: int) -> int:
        """Address of a span of the arena."""
        return self.arena.take(nbytes)

    def _release(self, block: Block, buffer: Buffer, pool: Pool) -> None:
        with self._lock.section:
            self.ledger.free(buffer)
            if pool.users:
                pool.give(block)
            else:
                self._give_back(block)
            while pool is self.static_pool and (pool.spare > SPARE_BYTES or pool.spare_blocks > SPARE_BLOCKS):
                self._give_back(pool.oldest())

    def _give_back(self, block: Block) -> None:
        """Return a block's span to the arena, after a final check of its last tenant's guards."""
        tenant = self.tenants.pop(block.address, None)
        self._claims.pop(block.address, None)
        try:
            if tenant is not None:
                self.tenancies += 1
                with suppress(FindingsError):  # the finding is stored; a finalizer cannot raise
                    self._final_check(tenant)
        finally:
            if block.policy is not None:
                block.policy.release(block.guards)
            self.arena.give(block.address - block.guards.head, block.guards.added + block.capacity)

    def _final_check(self, tenant: Buffer) -> None:
        if self.before_retire is not None:
            with error_barrier("check of a retiring tenant"):
                self.before_retire(tenant)

    def _gap(self, buffer: Buffer) -> int:
        """Bytes past a live tenant's end that live graphs other than its own may write."""
        if not buffer.alive:
            return 0
        claims = [claim() for claim in self._claims.get(buffer.start, ())]
        others = [c.buffer.stop for c in claims if c is not None and c.buffer.graph != buffer.graph]
        return max(0, max(others, default=0) - buffer.stop)

    def _move_guard(self, buffer: Buffer) -> None:
        """Start a tail guard earlier, where graphs that kept it back are gone or the tensor died.

        Never when a tensor dies: that may be in the middle of another graph's replay, over bytes that it just wrote.
        """
        old, gap = buffer.guard_start, self._gap(buffer)
        if gap < buffer.gap:
            buffer.keep_back(gap)
            self.tenancies += 1
            self.fill(ByteRange(buffer.guard_start, old))


_allocator: HostAllocator | None = None
_allocator_lock = fork_safe(threading.Lock())


def host_allocator() -> HostAllocator:
    """The allocator of the process; created at the first call. Any thread."""
    global _allocator
    with _allocator_lock:
        if _allocator is None:
            _allocator = HostAllocator()
        return _allocator
