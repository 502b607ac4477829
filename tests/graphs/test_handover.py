"""Blocks that a replay gives to the same tenants each time: what stands is not written again, no damage is missed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from blocks import buffer_of, intact

from shadowgraph.graphs.host.graph import HostGraph, host_graph
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking.allocator import HostAllocator
from shadowgraph.tracking.arena import HostCanaries

pytestmark = pytest.mark.usefixtures("allocator", "policy")


def chain(*sizes: int) -> tuple[HostGraph, list[torch.Tensor]]:
    """A graph whose temporaries, of some sizes, follow each other in one block, and its sums of them."""
    graph, sums, addresses = HostGraph(), [], set()
    with host_graph(graph):
        for size in sizes:
            one = torch.ones(size)
            addresses.add(one.data_ptr())
            sums.append(one.sum())
            del one
    assert len(addresses) == 1
    return graph, sums


def test_guards_that_stand_already_are_not_written_again(
    allocator: HostAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, sums = chain(100, 100, 128, 100, 100)
    written, write = [], HostCanaries.write_canaries

    def noted(canaries: HostCanaries, ranges: Sequence[ByteRange], here: bool = False) -> None:
        written.extend(ranges)
        write(canaries, ranges, here)

    monkeypatch.setattr(HostCanaries, "write_canaries", noted)
    for _ in range(3):
        graph.replay()
    assert len(written) == 2 * 5, "head and tail, once for each change of tenant"
    assert [total.item() for total in sums] == [100, 100, 128, 100, 100]


@pytest.mark.parametrize("sizes", [(100, 128), (128, 100), (1, 128, 97, 100, 3)])
def test_guards_move_with_the_tenants_in_every_replay(allocator: HostAllocator, sizes: tuple[int, ...]) -> None:
    graph, standing = HostGraph(), []

    def note(address: int, size: int) -> None:
        tenant = allocator.guards.tenants[address]
        standing.append((tenant.nbytes, intact(allocator, tenant)) == (4 * size, True))

    with host_graph(graph):
        for size in sizes:
            one = torch.ones(size)
            address = one.data_ptr()
            graph.call(note, address, size)
            del one
    for _ in range(4):
        graph.replay()
    assert standing == [True] * (4 * len(sizes))


@pytest.mark.parametrize("offset", [-512, -1, 400, 400 + 700, 400 + 1536])
def test_damage_to_a_temporary_is_told_of_it_in_whichever_replay_it_comes(
    allocator: HostAllocator, offset: int
) -> None:
    due: list[bool] = []
    graph = HostGraph()
    with host_graph(graph):
        one = torch.ones(100)
        place, damaged = one.data_ptr() + offset, buffer_of(one)

        def damage() -> None:
            if due:
                allocator.arena.view(place, place + 1)[:] ^= 255

        graph.call(damage)
        del one
        two = torch.ones(100)
    broken: list[Buffer] = []
    allocator.guards.last_check = lambda buffer: None if intact(allocator, buffer) else broken.append(buffer)
    for replay in range(1, 8):
        due[:] = [True] * (replay in (4, 6, 7))
        before = len(broken)
        graph.replay()
        assert len(broken) - before == len(due)
        assert intact(allocator, buffer_of(two))
    assert broken == [damaged] * 3


def test_a_tensor_of_another_graph_that_lives_keeps_its_bytes_and_its_guard(allocator: HostAllocator) -> None:
    one, _sums = chain(100)
    one.replay()
    two = HostGraph()
    with host_graph(two, pool=one.pool()):
        temporary = torch.ones(128)
        del temporary
        held = torch.full((128,), 2.0)
    for _ in range(3):
        two.replay()
        one.replay()
        assert allocator.guards.tenants[held.data_ptr()] is buffer_of(held)
        assert intact(allocator, buffer_of(held))
    assert torch.equal(held, torch.cat([torch.ones(100), torch.full((28,), 2.0)]))
    del held
    for graph in (two, one, two, one):
        graph.replay()
        assert all(intact(allocator, buffer) for buffer in allocator.guards.tenants.values())
