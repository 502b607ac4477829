"""Guarded storages of exact size on the host: blocks of the arena, and pools that reuse them."""

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

SPARE_BYTES, SPARE_BLOCKS = 64 << 20, 256  # of freed static buffers that are kept for the next ones


def size_class(nbytes: int) -> int:
    """Bytes of a block for a static buffer: at most an eighth more than asked for, so that freed blocks fit again."""
    step = max(ALIGNMENT, 1 << max(0, nbytes.bit_length() - 4))
    return max(ALIGNMENT, -(-nbytes // step) * step)


@dataclass(slots=True, eq=False)
class Block:
    """A piece of the arena: head guard, `capacity` bytes for tenants, tail guard."""

    address: int
    capacity: int
    guards: GuardSizes
    policy: GuardPolicy | None = None  # whose budget the guards are part of


@dataclass(slots=True, eq=False, weakref_slot=True)
class Tenancy:
    """A graph's claim to write a buffer's bytes at each replay, also after the buffer was freed.

    Lives as long as the graph's node that holds it; the allocator refers to it weakly.
    """

    buffer: Buffer
    handover: Handover | None = None  # from the tenant that it took a block over from last


class Pool:
    """Blocks that may be handed out again, by rounded size, the last freed first.

    Attributes
    ----------
    hold
        While true, freed blocks wait in quarantine (layout ``isolate`` during a capture).
    users
        Graphs that refer to the pool. With none, freed blocks go back to the arena.
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
        """Free blocks."""
        return sum(map(len, self._free.values()))

    def take(self, capacity: int) -> Block | None:
        blocks = self._free.get(capacity)
        return blocks.pop() if blocks else None

    def oldest(self) -> Block:
        """Take out the block of the most frequent size that was freed first."""
        capacity = max(self._free, key=lambda size: size * len(self._free[size]))
        return self._free[capacity].pop(0)

    def give(self, block: Block) -> None:
        if self.hold:
            self._quarantine.append(block)
        else:
            self._free.setdefault(block.capacity, []).append(block)

    def release_quarantine(self) -> None:
        """Let blocks freed while `hold` was set be reused."""
        waiting, self._quarantine = self._quarantine, []
        for block in waiting:
            self._free.setdefault(block.capacity, []).append(block)

    def empty(self) -> list[Block]:
        """Take every free block out of the pool."""
        self.release_quarantine()
        free, self._free = self._free, {}
        return [block for blocks in free.values() for block in blocks]


class HostAllocator:
    """Hands out storages of exact size with guards around them and keeps the ledger.

    A storage owns its block until its last reference dies, views and tensors saved for backward included; then the
    block goes back to its pool, and from a pool that no graph uses to the arena. The arena itself lives as long as
    the process. Thread-safe; frees are noted when `shadowgraph.common.finalizer_safe_lock` lets finalizers work.

    Attributes
    ----------
    policy
        Guard sizes for new blocks, or None for no guards.
    tenants
        The buffer whose guards stand around each block now, by block address; it may be freed already.
    before_retire
        Called with a tenant just before its guards make way for another's.
    isolate_captures
        Whether memory freed during a capture waits for its end before it is reused.
    waiting
        Work that enters what captures allocated; a capture must not wait for it (`enter_waiting`).
    """

    device = "cpu"

    def __init__(self, arena: HostArena | None = None) -> None:
        self._lock = FinalizerSafeLock()
        self._arena = arena
        self._last_pool = 0
        self.ledger = Ledger()
        self.policy: GuardPolicy | None = None
        self.tenants: dict[int, Buffer] = {}
        self.tenancies = 0  # changes of tenant or of where its guards stand, so far, those of `turns` not counted
        self.turns = 0  # blocks that went to the tenant that a replay gives them to in its course
        self._claims: dict[int, list[weakref.ref[Tenancy]]] = {}  # by block address
        self.before_retire: Callable[[Buffer], None] | None = None
        self.isolate_captures = False
        self.waiting: deque[Callable[[], None]] = deque()
        self.static_pool = self.new_pool(users=1)
        self.unguarded_for_memory = 0

    @property
    def lock(self) -> FinalizerSafeLock:
        """Held while blocks change hands and guards move; nobody who holds it may wait for a debugger's lock."""
        return self._lock

    @property
    def arena(self) -> HostArena:
        if self._arena is None:
            with self._lock.section:
                if self._arena is None:
                    self._arena = HostArena()
        return self._arena

    def new_pool(self, users: int = 0) -> Pool:
        """A pool with a serial of its own; it lives as long as somebody holds it or a storage out of it."""
        with self._lock.section:
            self._last_pool += 1
            return Pool(self._last_pool, users)

    def issued(self, serial: int) -> bool:
        """Whether `new_pool` gave out a serial, the pool of static buffers aside."""
        return self.static_pool.serial < serial <= self._last_pool

    def enter_pool(self, pool: Pool) -> None:
        """A graph begins to use a pool."""
        with self._lock.section:
            pool.users += 1

    def leave_pool(self, pool: Pool) -> None:
        """A graph is done with a pool. After the last one free blocks go back now, others when their tensors die."""
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
        """A storage of exactly `nbytes` > 0 bytes with its guards armed, and its ledger entry.

        Parameters
        ----------
        stack
            Who asks; walked here when not given.
        guarded
            Rather none than one without guards.

        Raises
        ------
        MemoryError
            When the arena is used up, also without guards; with `guarded` when the budget for guards is.
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
        """Note that a graph writes a buffer at each replay, for as long as the caller holds what is returned."""
        tenancy = Tenancy(buffer)
        with self._lock.section:
            standing = [claim for claim in self._claims.get(buffer.start, ()) if claim() is not None]
            self._claims[buffer.start] = [*standing, weakref.ref(tenancy)]
        return tenancy

    def install_tenant(self, buffer: Buffer) -> None:
        """Let a buffer's guards stand around its block; those of the tenant before it are looked at a last time.

        While a tensor lives, tenants of other graphs do not move its guards: that would overwrite its bytes. So its
        tail guard starts after the largest of them. A tenant that was freed makes way, and its guards are exact.
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
        """`install_tenant` in a replay, which does it again each time: a block goes from and to the same tenants.

        Where the guards of the one before are intact it is not said that it retires, and they stay where they are.
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
        """Whether `replay_tenant` could be done so that nothing of it is told."""
        buffer, known = tenancy.buffer, tenancy.handover
        with self._lock.within:  # a replay settles by itself
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
        """Arm every standing guard anew, without looking at it."""
        with self.batch():
            for buffer in list(self.tenants.values()):
                self.arm(buffer)

    def confirm(self, guard: Guard, extent: tuple[int, int], order: int, clock: Iterator[int]) -> bool:
        """Whether what changed in a guard that no check arms again is damage, and not told before.

        `extent`: first and last changed byte; `order`: when the check ran, by `clock`.
        """
        return True

    def may_arm(self, guard: Guard, clock: Iterator[int]) -> bool:
        """Whether a guard that was broken stands still, so that it can be armed again. Called with the lock.

        `clock` as for `confirm`.
        """
        return self.tenants.get(guard.buffer.start) is guard.buffer

    def batch(self) -> AbstractContextManager[None]:
        """Context in which guards may be armed together at its end."""
        return nullcontext()

    def enter_waiting(self) -> None:
        """Do the work that captures left, oldest first; to call before ledger or guards are looked at."""
        while self.waiting:
            with self._lock.section, suppress(IndexError), error_barrier("buffers of a capture"):
                self.waiting.popleft()()

    def fill(self, where: ByteRange) -> None:
        """Fill a range of the arena with its canary."""
        arena = self.arena
        arena.view(where.start, where.stop).data[:] = canary(where.start - arena.base, where.nbytes)

    def holds(self, address: int) -> bool:
        """Whether an address lies in memory of ours."""
        return self.arena.holds(address)

    def in_private_pool(self, where: ByteRange) -> bool:
        """Whether freed memory lies in a pool of a graph's or the program's own, which eager code does not share."""
        return False

    def _storage_at(self, address: int, nbytes: int) -> torch.UntypedStorage:
        return storage_at(address, nbytes)

    def _take(self, pool: Pool, capacity: int) -> Block | None:
        """A free block; of static buffers only one whose guards are the present policy's own."""
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
        """Return a block's span to the arena; its last tenant's guards are looked at a last time."""
        tenant = self.tenants.pop(block.address, None)
        self._claims.pop(block.address, None)
        try:
            if tenant is not None:
                self.tenancies += 1
                with suppress(FindingsError):  # it is in the book; a finalizer has nobody to raise it to
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
        """Bytes past a tenant's end that live graphs other than its own may write while it lives."""
        if not buffer.alive:
            return 0
        claims = [claim() for claim in self._claims.get(buffer.start, ())]
        others = [c.buffer.stop for c in claims if c is not None and c.buffer.graph != buffer.graph]
        return max(0, max(others, default=0) - buffer.stop)

    def _move_guard(self, buffer: Buffer) -> None:
        """Let a standing tail guard start earlier, where graphs that kept it back are gone or the tensor died.

        Never when a tensor dies: that may be in the middle of another graph's replay, over bytes that it just wrote.
        """
        old, gap = buffer.guard_start, self._gap(buffer)
        if gap < buffer.gap:
            buffer.keep_back(gap)
            self.tenancies += 1
            self.fill(ByteRange(buffer.guard_start, old))


_allocator: HostAllocator | None = None
_allocator_lock = threading.Lock()


def host_allocator() -> HostAllocator:
    """The process's allocator; made at the first call."""
    global _allocator
    with _allocator_lock:
        if _allocator is None:
            _allocator = HostAllocator()
        return _allocator
