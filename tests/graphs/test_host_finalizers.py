"""Tensors of graphs may die anywhere: in another thread, in the garbage collector, in the middle of our own work."""

from __future__ import annotations

import gc
import threading
from typing import Any

import torch
from blocks import buffer_of

from shadowgraph.common.finalizer_safe_lock import FinalizerSafeLock, run_deferred
from shadowgraph.graphs.events import Listener, listeners
from shadowgraph.graphs.host.graph import HostGraph, host_graph
from shadowgraph.tracking.allocator import HostAllocator


class Cycle:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.itself = tensor, self


def test_a_finalizer_in_another_thread_does_not_wait_for_a_lock(allocator: HostAllocator) -> None:
    graph = HostGraph()
    with host_graph(graph):
        holder = [torch.ones(64)]
    buffer, mine, dropped = buffer_of(holder[0]), FinalizerSafeLock(), threading.Event()

    def drop() -> None:
        with mine.section:  # as a debugger that frees a tensor inside its own section
            holder.clear()
            dropped.set()

    with allocator.lock.section:
        worker = threading.Thread(target=drop)
        worker.start()
        assert dropped.wait(10), "the finalizer waits for the allocator inside another section"
        assert buffer.alive
    worker.join(10)
    assert not worker.is_alive()
    run_deferred()
    assert not buffer.alive


def test_collecting_inside_the_allocator_and_the_ledger_changes_nothing_halfway(allocator: HostAllocator) -> None:
    graph = HostGraph()
    with host_graph(graph):
        rings = [Cycle(torch.ones(64)) for _ in range(5)]
    buffers = [buffer_of(ring.tensor) for ring in rings]
    del rings
    with allocator.ledger._lock.section:
        gc.collect()
        assert all(buffer.alive for buffer in buffers)
    run_deferred()
    assert not any(buffer.alive for buffer in buffers)


def test_the_ledger_survives_collections_at_random_moments(allocator: HostAllocator) -> None:
    before = gc.get_threshold()
    gc.set_threshold(7, 2, 2)
    try:
        graph = HostGraph()
        with host_graph(graph):
            for size in range(1, 200):
                Cycle(torch.ones(size) + 1)
            kept = [Cycle(torch.full((40,), float(i))) for i in range(20)]
        graph.replay()
    finally:
        gc.set_threshold(*before)
    assert all(torch.equal(ring.tensor, torch.full((40,), float(i))) for i, ring in enumerate(kept))
    assert len({ring.tensor.data_ptr() for ring in kept}) == 20
    graph.reset()
    del kept
    gc.collect()
    run_deferred()
    assert not [b for b in allocator.ledger if b.graph == graph.model.serial]


class Hoarder(Listener):
    """Frees cyclic garbage while a replay runs."""

    def __init__(self, rings: list[Cycle]) -> None:
        self.rings = rings

    def node_ran(self, graph: Any, node: Any, stores: Any) -> None:
        if self.rings:
            self.rings.pop()
        gc.collect()


def test_tensors_may_be_collected_during_a_replay() -> None:
    graph, other = HostGraph(), HostGraph()
    with host_graph(other):
        rings = [Cycle(torch.ones(16)) for _ in range(3)]
    buffers = [buffer_of(ring.tensor) for ring in rings]
    x = torch.ones(4)
    with host_graph(graph):
        y = ((x + 1) * 2 - 1) / 3
    listeners.append(Hoarder(rings))
    del rings
    try:
        graph.replay()
    finally:
        listeners.pop()
    run_deferred()
    assert torch.equal(y, torch.ones(4))
    assert not any(buffer.alive for buffer in buffers)
