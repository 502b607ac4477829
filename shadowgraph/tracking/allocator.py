"""The host allocator: storages of exact size with room for guards, in blocks of the arena, and pools that reuse the
blocks. What stands in that room is up to `GuardKeeper`.

Thread-safe under one finalizer-safe lock (`HostAllocator.lock`), which a thread may take while it holds a debugger's
lock; its holder must not wait for a debugger's lock. Storage finalizers reach it through `defer`.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from functools import partial

import torch

from shadowgraph.common.finalizer_safe_lock import FinalizerSafeLock, defer
from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.common.internal_errors import error_barrier_all
from shadowgraph.model.alignment import ALIGNMENT, round_up
from shadowgraph.model.buffers import Buffer, Ledger, Role
from shadowgraph.model.coverage import LargeGuards
from shadowgraph.model.guards import NO_GUARDS, GuardPolicy, GuardSizes
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import Stack, current_stack
from shadowgraph.tracking.arena import HostArena, HostCanaries
from shadowgraph.tracking.fences import FencedSpans
from shadowgraph.tracking.frees import finalized
from shadowgraph.tracking.guard_keeper import CanaryWriter, GuardKeeper
from shadowgraph.tracking.large_buffers import NO_MEMORY, LargeTally, Request
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
    place: int = -1  # as `Buffer.place`, of its last tenant
    fences: FencedSpans | None = None  # whose span it is, instead of the arena's


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
        self._places: dict[int, list[int]] = {}  # of blocks in quarantine that would be free without it, by size

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

    def settle_place(self, block: Block) -> None:
        """Note where a block would be if none were in quarantine: in the place of the one of its size freed last."""
        places = self._places.get(block.capacity)
        block.place = places.pop() if places else block.address

    def oldest(self) -> Block:
        """Remove the block that was freed first, of the size that holds most bytes."""
        capacity = max(self._free, key=lambda size: size * len(self._free[size]))
        return self._free[capacity].pop(0)

    def give(self, block: Block) -> None:
        if self.hold:
            self._quarantine.append(block)
            self._places.setdefault(block.capacity, []).append(block.place)
        else:
            self._free.setdefault(block.capacity, []).append(block)

    def release_quarantine(self) -> None:
        """Allow reuse of blocks freed while `hold` was set."""
        waiting, self._quarantine, self._places = self._quarantine, [], {}
        for block in waiting:
            self._free.setdefault(block.capacity, []).append(block)

    def empty(self) -> list[Block]:
        """Remove every free block from the pool."""
        self.release_quarantine()
        free, self._free = self._free, {}
        return [block for blocks in free.values() for block in blocks]


class HostAllocator:
    """Allocates storages of exact size, hands their blocks to the guard keeper, and keeps the ledger.

    A storage owns its block until its last reference dies, views and tensors saved for backward included; then the
    block goes back to its pool, and from a pool that no graph uses to the arena. The arena itself lives as long as the
    process. Thread-safe; frees are recorded when `shadowgraph.common.finalizer_safe_lock` lets finalizers run.

    Attributes
    ----------
    policy
        Guard sizes for new blocks, or None for no guards.
    guards
        The owner of the guards around this allocator's blocks.
    isolate_captures
        Whether memory freed during a capture waits for its end before it is reused.
    large
        What the guards behind large buffers take.
    fences
        Where buffers with a fence come from; None as long as none was wanted.
    """

    device = "cpu"

    def __init__(self, arena: HostArena | None = None, canaries: CanaryWriter | None = None) -> None:
        self._lock = FinalizerSafeLock()
        self._arena, self._host = arena, HostCanaries(arena)
        self.guards = GuardKeeper(self._lock, canaries if canaries is not None else self._host)
        self._last_pool = 0
        self.ledger = Ledger()
        self.policy: GuardPolicy | None = None
        self.isolate_captures = False
        self.large = LargeTally()
        self.static_pool = self.new_pool(users=1)
        self.fences: FencedSpans | None = None
        self._unpooled = Pool(self.static_pool.serial)  # freed spans with a fence go back at once
        self._storages: weakref.WeakValueDictionary[int, torch.UntypedStorage] = weakref.WeakValueDictionary()

    @property
    def lock(self) -> FinalizerSafeLock:
        """Held while blocks change tenants and guards move; its holder must not wait for a debugger's lock."""
        return self._lock

    @property
    def arena(self) -> HostArena:
        if self._arena is None:
            with self._lock.section:
                if self._arena is None:
                    self._host.arena = self._arena = HostArena()
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
            self.guards.close_gaps(pool.serial)

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
        fenced: bool = False,
    ) -> tuple[torch.UntypedStorage, Buffer]:
        """Allocate a storage of exactly `nbytes` > 0 bytes with armed guards, and its ledger entry.

        Parameters
        ----------
        stack
            The allocating stack; walked here when not given.
        guarded
            Fail rather than return a storage without guards.
        fenced
            Lay a fence behind it.

        Raises
        ------
        MemoryError
            When the arena is exhausted, even without guards; with `guarded` also when the guard budget is exhausted;
            with `fenced` where no fence can be laid.
        """
        with self._lock.section:
            fence = self._fenced_block(nbytes, dtype.itemsize) if fenced else None
            pool = self._unpooled if fence is not None else pool
            reused = pool is self.static_pool and nbytes <= SPARE_BYTES
            capacity = size_class(nbytes) if reused else round_up(nbytes)
            block = fence or self._take(pool, capacity) or self._new_block(nbytes, capacity)
            if guarded and not (block.guards.tail or fence):
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
                tail_guard=block.guards.tail + block.capacity - nbytes if block.guards.tail or fence else 0,
                fence=block.capacity - nbytes if fence else -1,
            )
            pool.settle_place(block)
            if block.place != block.address:
                buffer.place = block.place
            try:
                self.guards.arm(buffer)
            except BaseException:  # a finding in sync mode
                pool.give(block)
                raise
            self.ledger.add(buffer)
        storage = self._storage_at(block.address, nbytes)
        finalizer = weakref.finalize(storage, finalized, buffer, partial(self._release, block, buffer, pool))
        finalizer.atexit = False
        return storage, buffer

    def make_large(self, request: Request) -> tuple[torch.Tensor | None, str | None]:
        """Make a large tensor with a guard behind it, where its memory is allocated: no byte is moved.

        Returns
        -------
        tuple
            The tensor, or None where the program's operator has not run and is to run as it is; and why there is no
            guard, if there is none.
        """
        try:
            storage, buffer = self.storage(
                request.nbytes, self.static_pool, Role.STATIC, request.dtype, request.shape, guarded=True
            )
        except MemoryError:
            return None, NO_MEMORY
        guards = buffer.head_guard + buffer.tail_guard
        counted = LargeGuards(1, buffer.nbytes, guards, guards)
        with self._lock.section:
            self.large.add(counted)
        finalizer = weakref.finalize(storage, defer, partial(self._forget_large, counted))
        finalizer.atexit = False
        return request.build(storage), None

    def _forget_large(self, counted: LargeGuards) -> None:
        with self._lock.section:
            self.large.remove(counted)

    def sweep_large(self) -> None:
        """Give up guards behind large buffers whose memory the program has freed or moved."""

    def holds(self, address: int) -> bool:
        """Whether an address lies in this allocator's memory."""
        return self.arena.holds(address) or (self.fences is not None and self.fences.holds(address))

    def in_private_pool(self, where: ByteRange) -> bool:
        """Whether freed memory lies in a private pool of a graph or of the program, which eager code does not share."""
        return False

    def lends(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage is over memory that may be a pool's without owning it: a raw pointer, a weak reference."""
        return self.holds(storage.data_ptr()) and self._storages.get(id(storage)) is not storage

    def _storage_at(self, address: int, nbytes: int) -> torch.UntypedStorage:
        storage = storage_at(address, nbytes)
        self._storages[id(storage)] = storage
        return storage

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

    def _fenced_block(self, nbytes: int, itemsize: int) -> Block:
        """A block with a fence, and a guard before it."""
        fences = self.fences
        if fences is None:
            raise MemoryError("none were prepared")
        head = round_up(self.policy.near) if self.policy is not None else 0
        room = fences.room(nbytes, itemsize)
        return Block(self._fenced_span(fences, head + room) + head, room, GuardSizes(head, 0), fences=fences)

    def _fenced_span(self, fences: FencedSpans, nbytes: int) -> int:
        """Address of a span that ends at a fence; raises `MemoryError`."""
        fences.settle(lambda: True)
        return fences.take(nbytes)

    def _span(self, nbytes: int) -> int:
        """Address of a span of the arena."""
        return self.arena.take(nbytes)

    def _release(self, block: Block, buffer: Buffer, pool: Pool) -> None:
        with self._lock.section:
            self.ledger.free(buffer)
            with error_barrier_all("end of a buffer"):
                self.guards.ended(buffer)
            if pool.users:
                pool.give(block)
            else:
                self._give_back(block)
            while pool is self.static_pool and (pool.spare > SPARE_BYTES or pool.spare_blocks > SPARE_BLOCKS):
                self._give_back(pool.oldest())

    def _give_back(self, block: Block) -> None:
        """Return a block's span to the arena; the guards of its last tenant are retired."""
        try:
            self.guards.retire(block.address)
        finally:
            if block.policy is not None:
                block.policy.release(block.guards)
            (block.fences or self.arena).give(block.address - block.guards.head, block.guards.added + block.capacity)


_allocator: HostAllocator | None = None
_allocator_lock = fork_safe(threading.Lock())


def host_allocator() -> HostAllocator:
    """The allocator of the process; created at the first call. Any thread."""
    global _allocator
    with _allocator_lock:
        if _allocator is None:
            _allocator = HostAllocator()
        return _allocator
