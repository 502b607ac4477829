"""Guards behind large buffers in memory of torch's, whose caching allocator is played here as far as it matters."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch

from shadowgraph.common.finalizer_safe_lock import FinalizerSafeLock, run_deferred
from shadowgraph.model.buffers import Buffer, Ledger, Role
from shadowgraph.model.guards import GuardPolicy
from shadowgraph.tracking import large_buffers, torch_segments
from shadowgraph.tracking.captures import captures
from shadowgraph.tracking.guard_keeper import GuardKeeper
from shadowgraph.tracking.large_buffers import (
    NO_MEMORY,
    OTHER_PLACE,
    SHORT_LIVED,
    UNMAPPABLE,
    LargeBuffers,
    LargeTally,
    Request,
)
from shadowgraph.tracking.torch_segments import (
    BLOCK,
    CAPTURE,
    EXPANDABLE,
    FILLED,
    OTHER_ALLOCATOR,
    SEGMENT,
    TorchSegments,
)

NEAR, FAR, BUDGET = 128, 1 << 20, 64 << 20
SIZE = 10 << 20  # the smallest that torch gives segments in steps of 2 MiB
RESULT = SIZE + 2048


ROOM = 60 << 20  # bytes of the device


class CachingAllocator:
    """Private pools of torch's allocator: one segment each, blocks served from its front, the rest split off.

    Attributes
    ----------
    split
        Whether a block is split where more than 1 MiB is left.
    room
        Bytes that the device has left.
    """

    def __init__(self) -> None:
        self.memory = torch.zeros(128 << 20, dtype=torch.uint8)
        self.used = -self.memory.data_ptr() % BLOCK
        self.free: list[tuple[int, int]] = []  # offset and bytes, of the pool that is active
        self.split, self.room, self.active = True, ROOM, False
        self.segments: list[int] = []

    def take(self, nbytes: int) -> int:
        """The offset of a block."""
        assert self.active, "a pool must be active"
        wanted = -(-nbytes // BLOCK) * BLOCK
        fitting = sorted((size, at) for at, size in self.free if size >= wanted)
        if not fitting:
            segment = -(-wanted // SEGMENT) * SEGMENT
            if segment > self.room:
                raise torch.OutOfMemoryError("CUDA out of memory")
            self.room -= segment
            self.segments.append(segment)
            fitting = [(segment, self.used)]
            self.free.append((self.used, segment))
            self.used += segment
        size, at = fitting[0]
        self.free.remove((at, size))
        if self.split and size - wanted > 1 << 20:
            self.free.append((at + wanted, size - wanted))
        return at

    def tensor(self, nbytes: int) -> torch.Tensor:
        """A block as a tensor with a storage of exactly its bytes."""
        return (
            torch.from_numpy(self.memory.numpy()[at : at + nbytes])
            if (at := self.take(nbytes)) >= 0
            else NotImplemented
        )

    def allocate(self, nbytes: int) -> torch.Tensor:
        """A block that is freed at once, if it is the first of its pool."""
        whole = not self.free
        made = self.tensor(nbytes)
        if whole:
            start = made.data_ptr() - self.memory.data_ptr()
            self.free = [(start, self.segments[-1])]
        return made

    @contextmanager
    def pool(self) -> Iterator[None]:
        self.active, self.free = True, []
        try:
            yield
        finally:
            self.active = False


class Canaries:
    """Notes what it is asked for, with the tail that still stood then."""

    origin = 0

    def __init__(self) -> None:
        self.log: list[object] = []

    def write_canaries(self, ranges: object, here: bool = False) -> None:
        self.log.append("write")

    def withdraw_guards(self, starts: object) -> None:
        self.log.append("withdraw")

    def withdraw_shadows(self, buffer: int) -> None:
        pass

    def order_canaries(self) -> None:
        self.log.append("order")


class Bench:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache = CachingAllocator()
        self.segments = TorchSegments(0, False, lambda address: address in self.unmappable)
        self.unmappable: set[int] = set()
        monkeypatch.setattr(self.segments, "_own_pool", self.cache.pool)
        monkeypatch.setattr(torch_segments, "relaxed_capture", nullcontext)
        monkeypatch.setattr(self.segments, "_allocate", self.cache.allocate)
        monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        self.lock, self.ledger, self.canaries = FinalizerSafeLock(), Ledger(), Canaries()
        self.guards = GuardKeeper(self.lock, self.canaries)
        self.guards.last_check = lambda buffer: self.canaries.log.append(("check", buffer.serial))
        self.tally = LargeTally()
        self.large = LargeBuffers(self.lock, self.guards, self.ledger, self.segments, self.tally)
        self.policy = GuardPolicy(NEAR, FAR, BUDGET)
        self.runs = 0

    def run(self, nbytes: int) -> torch.Tensor:
        self.runs += 1
        return self.cache.tensor(nbytes)

    def request(self, nbytes: int = RESULT) -> Request:
        def build(storage: torch.UntypedStorage) -> torch.Tensor:
            raise AssertionError("on a device the program's operator runs")

        return Request(lambda: self.run(nbytes), build, nbytes, torch.uint8, (nbytes,))

    def make(self, nbytes: int = RESULT) -> tuple[torch.Tensor | None, str | None]:
        return self.large.make(self.request(nbytes), self.policy)

    def made(self, nbytes: int = RESULT) -> tuple[torch.Tensor, Buffer]:
        tensor, reason = self.make(nbytes)
        assert (reason, tensor is not None) == (None, True)
        assert tensor is not None
        return tensor, self.guards.tenants[tensor.data_ptr()]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


@pytest.mark.parametrize("nbytes", [SIZE, SIZE + 1, RESULT, SIZE + SEGMENT - 512, SIZE + SEGMENT // 2, SIZE + 777_777])
def test_the_guard_stands_right_behind_the_result(nbytes: int, bench: Bench) -> None:
    tensor, buffer = bench.made(nbytes)
    assert (bench.runs, tensor.untyped_storage().nbytes()) == (1, nbytes)
    assert (buffer.start, buffer.nbytes, buffer.role) == (tensor.data_ptr(), nbytes, Role.FOREIGN)
    assert (buffer.exact, buffer.head_guard, buffer.tail_guard) == (True, 0, 1 << 20 | 512)
    assert len(bench.cache.segments) == 1, "the guard took no second segment"
    plain = -(-nbytes // SEGMENT) * SEGMENT
    assert bench.tally.now.added == bench.cache.segments[0] - plain <= SEGMENT
    assert buffer.guard_start + buffer.tail_guard <= tensor.data_ptr() + bench.cache.segments[0]


def test_what_rounding_leaves_is_enough(bench: Bench) -> None:
    bench.made(RESULT)
    assert bench.tally.now.added == 0


def test_all_ends_with_the_storage_after_a_last_check(bench: Bench) -> None:
    tensor, buffer = bench.made()
    assert bench.policy.used == buffer.tail_guard
    entry = bench.large._entries[buffer.start]
    kept = entry.tail
    bench.guards.last_check = lambda buffer: bench.canaries.log.append(("check", entry.tail is kept))
    view = tensor[5:]
    del tensor
    gc.collect()
    assert bench.guards.tenants, "a view keeps the storage"
    bench.canaries.log.clear()
    del view
    run_deferred()
    assert bench.canaries.log[0] == ("check", True), "the tail outlives the check"
    assert "withdraw" in bench.canaries.log
    assert (bench.guards.tenants, bench.policy.used, buffer.alive, entry.tail) == ({}, 0, False, None)
    assert (bench.tally.now.buffers, bench.tally.now.nbytes, bench.tally.most.buffers) == (0, 0, 1)


def test_a_resized_storage_gives_its_guard_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor, buffer = bench.made()
    bench.large.sweep()
    assert bench.guards.tenants == {buffer.start: buffer}
    with monkeypatch.context() as patched:  # as after ``storage.resize_(0)``
        patched.setattr(large_buffers, "still_there", lambda buffer: False)
        bench.large.sweep()
    assert (bench.guards.tenants, buffer.alive, bench.policy.used) == ({}, False, 0)
    del tensor
    run_deferred()
    assert (bench.policy.used, bench.tally.now.buffers) == (0, 0), "given up once"


def test_memory_that_torch_laid_elsewhere_stays_without(bench: Bench) -> None:
    bench.cache.split = False  # as with max_split_size_mb
    tensor, reason = bench.make()
    assert (tensor is not None, reason, bench.runs) == (True, OTHER_PLACE, 1)
    assert (bench.guards.tenants, bench.policy.used, len(list(bench.ledger))) == ({}, 0, 0)
    segments = list(bench.cache.segments)
    assert bench.make() == (None, OTHER_PLACE), "one segment in vain is enough"
    assert bench.cache.segments == segments
    bench.tally.begin()
    assert bench.make()[0] is not None, "the next run tries once more"


def test_no_memory_for_a_tail(bench: Bench) -> None:
    bench.cache.room = SIZE
    assert bench.make(SIZE) == (None, NO_MEMORY)
    assert (bench.runs, bench.policy.used) == (0, 0)
    bench.policy = GuardPolicy(NEAR, FAR, 0)
    bench.cache.room = ROOM
    assert bench.make() == (None, NO_MEMORY)
    assert (bench.runs, bench.policy.dropped) == (0, 1)


def test_memory_that_may_be_unmapped(bench: Bench) -> None:
    bench.unmappable.add(bench.cache.memory.data_ptr() + bench.cache.used)
    tensor, reason = bench.make()
    assert (tensor is not None, reason, bench.guards.tenants) == (True, UNMAPPABLE, {})


def test_an_operator_that_fails(bench: Bench) -> None:
    def fail(nbytes: int) -> torch.Tensor:
        raise RuntimeError("the device is lost")

    bench.run = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="lost"):
        bench.make()
    assert (bench.policy.used, bench.cache.active) == (0, False)


def test_a_line_whose_results_soon_die(bench: Bench) -> None:
    def step() -> tuple[torch.Tensor | None, str | None]:
        return bench.large.make(bench.request(), bench.policy)

    for _ in range(4):
        tensor, reason = step()
        assert reason is None
        bench.cache.room += sum(bench.cache.segments)
        bench.cache.segments, bench.cache.used = [], -bench.cache.memory.data_ptr() % BLOCK
        del tensor
        run_deferred()
    assert step() == (None, SHORT_LIVED)
    assert bench.make()[1] is None, "another line"
    bench.cache.used, bench.cache.room = -bench.cache.memory.data_ptr() % BLOCK, ROOM
    bench.tally.begin()
    assert step()[1] is None, "what one run learnt does not hold for the next"


def test_what_a_capture_has_seen_is_static(bench: Bench) -> None:
    def step() -> tuple[torch.Tensor | None, str | None]:
        return bench.large.make(bench.request(SIZE), bench.policy)

    pools = [step()[0] for _ in range(4)]
    assert None not in pools
    bench.large.capture_begins()
    pools.clear()
    run_deferred()
    bench.cache.room, bench.cache.used = ROOM, -bench.cache.memory.data_ptr() % BLOCK
    for _ in range(2):
        pools.append(step()[0])
    assert None not in pools, "a pool that is made anew gets guards"


def test_reasons_to_leave_an_allocation_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.segments.refusal() is None
    capture = captures.begin()
    assert bench.segments.refusal() == CAPTURE
    capture.end()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert bench.segments.refusal() == CAPTURE
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    assert bench.segments.refusal() == OTHER_ALLOCATOR
    assert bench.make() == (None, OTHER_ALLOCATOR)
    assert TorchSegments(0, True, lambda address: False).refusal() == EXPANDABLE
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert bench.segments.refusal() == FILLED, "torch would write the tail after its canary"


def test_the_pool_of_an_allocation_has_no_user_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else torch would keep the dead segment, and nothing could make it give it back."""
    calls: list[tuple[str, object]] = []

    def note(name: str) -> Callable[[int, object], None]:
        return lambda device, pool: calls.append((name, (device, pool)))

    for name in ("beginAllocateCurrentThreadToPool", "endAllocateToPool", "releasePool"):
        monkeypatch.setattr(torch._C, f"_cuda_{name}", note(name), raising=False)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 9))
    monkeypatch.setattr(torch_segments, "relaxed_capture", nullcontext)

    def out_of_memory(nbytes: int) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    segments = torch_segments.TorchSegments(3, False, lambda address: False)
    monkeypatch.setattr(segments, "_allocate", out_of_memory)
    assert segments.lay(lambda: torch.empty(1), SIZE, FAR) is None
    names = ["beginAllocateCurrentThreadToPool", "endAllocateToPool", "releasePool"]
    assert calls == [(name, (3, (0, 9))) for name in names]


def test_the_played_allocator_serves_from_the_front(bench: Bench) -> None:
    with bench.cache.pool():
        first = bench.cache.allocate(4 << 20)
        second, third = bench.cache.tensor(1 << 20), bench.cache.tensor(2 << 20)
    assert second.data_ptr() == first.data_ptr()
    assert third.data_ptr() == first.data_ptr() + (1 << 20)
    assert isinstance(first.numpy(), np.ndarray)
