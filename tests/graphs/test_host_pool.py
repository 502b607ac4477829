"""Pools of host graphs: who may reuse a freed block and when, whose guards stand, and when memory goes back."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from blocks import buffer_of, intact

from shadowgraph.common.errors import CaptureError, FindingsError
from shadowgraph.common.finalizer_safe_lock import run_deferred
from shadowgraph.graphs.host.graph import HostGraph, graph_pool_handle, host_graph
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.guards import GuardPolicy
from shadowgraph.tracking.allocator import HostAllocator, host_allocator

pytestmark = pytest.mark.usefixtures("allocator")


# -- reuse -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("second", [100, 120, 128])
def test_a_block_freed_in_a_capture_is_reused_by_the_next_tensor_of_its_rounded_size(second: int) -> None:
    with host_graph(HostGraph()):
        first = torch.ones(100)
        address = first.data_ptr()
        other = torch.ones(300)
        del first
        heir, latecomer = torch.ones(second), torch.ones(100)
    assert heir.data_ptr() == address
    assert latecomer.data_ptr() != address
    assert other.data_ptr() % 512 == 0


def test_isolated_captures_reuse_a_block_only_afterwards(allocator: HostAllocator) -> None:
    allocator.isolate_captures = True
    handle = graph_pool_handle()
    graph, later_one = HostGraph(), HostGraph()
    with host_graph(graph, pool=handle):
        first = torch.ones(100)
        address = first.data_ptr()
        del first
        heir = torch.ones(100)
    assert heir.data_ptr() != address
    with host_graph(later_one, pool=handle):
        assert torch.ones(100).data_ptr() == address


def test_graphs_that_share_a_pool_reuse_each_others_freed_blocks_and_replay_over_them() -> None:
    x = torch.ones(100)
    one, two = HostGraph(), HostGraph()
    with host_graph(one):
        temporary = x * 2
        address = temporary.data_ptr()
        first = temporary.sum()
        del temporary
    with host_graph(two, pool=one.pool()):
        second = x * 3
        apart = second + 1
    assert second.data_ptr() == address
    assert apart.data_ptr() != address
    assert two.pool() == one.pool()
    two.replay()
    assert torch.equal(second, x * 3)
    one.replay()
    assert first.item() == 200
    assert torch.equal(second, x * 2), "as on CUDA, the first graph's replay writes the bytes that they share"


def test_graphs_with_pools_of_their_own_share_nothing() -> None:
    one, two = HostGraph(), HostGraph()
    with host_graph(one):
        addresses = {torch.ones(100).data_ptr() for _ in range(3)}
    with host_graph(two):
        assert torch.ones(100).data_ptr() not in addresses
    assert one.pool() != two.pool()


def test_outputs_stay_valid_while_held_and_inputs_saved_for_backward_keep_their_block() -> None:
    weight, x = torch.ones(100, requires_grad=True), torch.full((100,), 2.0)
    with host_graph(HostGraph()):
        saved = x * 3
        address = saved.data_ptr()
        view = saved[:10]
        loss = (weight * saved).sum()  # keeps `saved` for its backward
        del saved, view
        before = [torch.empty(100) for _ in range(4)]
        loss.backward()
        del loss
        after = [torch.empty(100) for _ in range(4)]
    assert address not in {t.data_ptr() for t in before}
    assert address in {t.data_ptr() for t in after}
    assert weight.grad is not None


# -- guards ------------------------------------------------------------------------------------------------------------


def test_guards_stand_directly_around_the_exact_size(allocator: HostAllocator, policy: GuardPolicy) -> None:
    with host_graph(HostGraph()):
        x = torch.ones(33, dtype=torch.uint8)
    buffer = buffer_of(x)
    assert (buffer.nbytes, buffer.head_guard, buffer.tail_guard) == (33, 512, 1536 + 512 - 33)
    assert buffer.role is Role.POOL
    assert intact(allocator, buffer)
    allocator.arena.view(buffer.stop, buffer.stop + 1)[:] ^= 255
    assert not intact(allocator, buffer)


@pytest.mark.parametrize(("first", "second"), [(100, 128), (128, 100)])
def test_a_block_with_a_new_tenant_gets_its_guards_moved(
    allocator: HostAllocator, policy: GuardPolicy, first: int, second: int
) -> None:
    retired: list[tuple[int, bool]] = []
    graph = HostGraph()
    with host_graph(graph):
        one = torch.ones(first)
        total, address = one.sum(), one.data_ptr()
        del one
        two = torch.full((second,), 2.0)
    assert two.data_ptr() == address
    assert intact(allocator, buffer_of(two))
    allocator.guards.last_check = lambda buffer: retired.append((buffer.nbytes // 4, intact(allocator, buffer)))
    for _ in range(3):
        graph.replay()
        assert total.item() == first
        assert torch.equal(two, torch.full((second,), 2.0))
        assert intact(allocator, buffer_of(two))
    assert retired == [(second, True), (first, True)], "told once: intact guards are handed on from then on"
    assert allocator.guards.tenants[address] is buffer_of(two)


def test_an_overrun_of_an_early_tenant_is_seen_when_it_retires(allocator: HostAllocator, policy: GuardPolicy) -> None:
    broken: list[int] = []
    graph = HostGraph()
    with host_graph(graph):
        one = torch.ones(100)
        stop = one.data_ptr() + 400
        graph.call(lambda: allocator.arena.view(stop, stop + 4).fill(7))
        del one
        two = torch.full((128,), 2.0)
    allocator.guards.last_check = lambda b: None if intact(allocator, b) else broken.append(b.nbytes)
    for replay in (1, 2, 3):
        graph.replay()
        assert broken == [400] * replay
        assert intact(allocator, buffer_of(two))


def test_guards_of_another_graphs_live_tensor_are_not_moved_over_its_bytes(
    allocator: HostAllocator, policy: GuardPolicy
) -> None:
    one, two = HostGraph(), HostGraph()
    with host_graph(one):
        torch.ones(100)
    with host_graph(two, pool=one.pool()):
        held = torch.full((128,), 2.0)
    two.replay()
    one.replay()
    assert torch.equal(held, torch.cat([torch.ones(100), torch.full((28,), 2.0)]))
    assert allocator.guards.tenants[held.data_ptr()] is buffer_of(held)
    assert intact(allocator, buffer_of(held))


def test_static_blocks_made_without_guards_are_not_reused_once_there_is_a_policy(allocator: HostAllocator) -> None:
    def allocate() -> tuple[torch.UntypedStorage, Buffer]:
        return allocator.storage(4000, allocator.static_pool, Role.STATIC, torch.float32, (1000,))

    plain, without = allocate()
    del plain
    allocator.policy = GuardPolicy(near=512, far=1024, budget=1 << 20)
    guarded, buffer = allocate()
    assert (without.tail_guard, buffer.tail_guard > 0) == (0, True)
    assert intact(allocator, buffer)
    del guarded
    _again, reused = allocate()
    assert reused.start == buffer.start
    allocator.policy = None


# -- memory goes back --------------------------------------------------------------------------------------------------


def spans(allocator: HostAllocator) -> int:
    """Bytes of the arena in use."""
    run_deferred()
    return allocator.arena.used


def test_memory_goes_back_when_the_graph_is_reset_and_its_tensors_died(
    allocator: HostAllocator, policy: GuardPolicy
) -> None:
    before, guards = spans(allocator), policy.used
    graph = HostGraph()
    with host_graph(graph):
        kept = torch.ones(1000)
        (kept + 1).sum()
    grown = spans(allocator)
    assert grown > before
    graph.reset()
    after_reset = spans(allocator)
    assert before < after_reset < grown, "a live tensor keeps its block, freed blocks go back"
    assert torch.equal(kept, torch.ones(1000))
    del kept
    assert spans(allocator) == before
    assert policy.used == guards


@pytest.mark.parametrize("how", ["deleted", "in a cycle"])
def test_memory_goes_back_when_the_graph_is_garbage(allocator: HostAllocator, policy: GuardPolicy, how: str) -> None:
    before, guards = spans(allocator), policy.used
    graph = HostGraph()
    with host_graph(graph):
        y = torch.ones(1000) + 1
    if how == "in a cycle":
        graph.itself = graph  # type: ignore[attr-defined]
    gone = weakref.ref(graph)
    del graph, y
    gc.collect()
    assert gone() is None
    assert spans(allocator) == before
    assert policy.used == guards
    assert not [b for b in allocator.ledger if b.role is Role.POOL and b.nbytes == 4000]


def test_a_shared_pool_gives_nothing_back_before_its_last_graph_is_gone(allocator: HostAllocator) -> None:
    before, handle = spans(allocator), graph_pool_handle()
    one, two = HostGraph(), HostGraph()
    for graph in (one, two):
        with host_graph(graph, pool=handle):
            torch.ones(1000).sum()
    used = spans(allocator)
    one.reset()
    assert spans(allocator) == used
    two.replay()
    two.reset()
    assert spans(allocator) == before
    with host_graph(one, pool=handle):
        torch.ones(1000)
    assert one.pool() == handle


def test_a_handle_stays_valid_after_its_first_graph_died() -> None:
    graph = HostGraph()
    with host_graph(graph):
        torch.ones(3)
    handle = graph.pool()
    del graph
    again = HostGraph()
    with host_graph(again, pool=handle):
        y = torch.ones(3) + 1
    again.replay()
    assert again.pool() == handle
    assert torch.equal(y, torch.full((3,), 2.0))
    with pytest.raises(CaptureError, match="unknown pool handle"):
        HostGraph().capture_begin(pool=(0, host_allocator().static_pool.serial))


def test_a_failed_capture_gives_its_memory_back(allocator: HostAllocator) -> None:
    before, graph = spans(allocator), HostGraph()
    for error in (CaptureError, AttributeError):
        with pytest.raises(error), host_graph(graph):
            y = torch.ones(1000)
            y.sum().item() if error is CaptureError else y.no_such_attribute  # type: ignore[attr-defined]
        del y
        gc.collect()
        assert spans(allocator) == before


# -- a finding in sync mode --------------------------------------------------------------------------------------------


def test_a_finding_raised_while_a_block_is_given_back_leaks_nothing(
    allocator: HostAllocator, policy: GuardPolicy
) -> None:
    before, guards, seen = spans(allocator), policy.used, []

    def find(buffer: Buffer) -> None:
        seen.append(buffer.nbytes)
        raise FindingsError("found")

    graph = HostGraph()
    with host_graph(graph):
        kept, _temporaries = torch.ones(1000), [torch.ones(300).sum() for _ in range(2)]
    del _temporaries
    allocator.guards.last_check = find
    graph.reset()
    del kept
    assert spans(allocator) == before
    assert policy.used == guards
    assert {4000, 1200} <= set(seen)


def test_a_finding_raised_while_a_block_changes_hands_leaves_the_block_in_its_pool(
    allocator: HostAllocator, policy: GuardPolicy
) -> None:
    def allocate() -> tuple[torch.UntypedStorage, Buffer]:
        return allocator.storage(72_000, allocator.static_pool, Role.STATIC, torch.float32, (18_000,))

    def find(buffer: Buffer) -> None:
        raise FindingsError("found")

    storage, first = allocate()
    del storage
    used = spans(allocator)
    allocator.guards.last_check = find
    with pytest.raises(FindingsError):
        allocate()
    allocator.guards.last_check = None
    _storage, second = allocate()
    assert second.start == first.start
    assert spans(allocator) == used
