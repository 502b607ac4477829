"""Graphs that share a pool write each other's blocks by right: no finding for that, and guards exact where they can."""

from __future__ import annotations

import gc
import random

import pytest
import torch
from programs import only, poke

import shadowgraph as sg
from shadowgraph.common.finalizer_safe_lock import run_deferred
from shadowgraph.graphs.host.graph import PoolHandle
from shadowgraph.model.buffers import Buffer
from shadowgraph.tracking.allocator import host_allocator

BLOCK = 128  # elements of float32 in a block


def buffer_of(tensor: torch.Tensor) -> Buffer:
    found = host_allocator().ledger.at(tensor.data_ptr())
    assert found is not None
    return found


def temporary_of(source: torch.Tensor, elements: int, pool: PoolHandle) -> tuple[sg.HostGraph, torch.Tensor, int]:
    """A graph with a temporary of some elements, the graph's sum of it, and where it lay."""
    graph = sg.HostGraph()
    with sg.host_graph(graph, pool=pool):
        temporary = source[:elements] * 2
        address, total = temporary.data_ptr(), temporary.sum()
        del temporary
    return graph, total, address


def output_of(source: torch.Tensor, elements: int, pool: PoolHandle) -> tuple[sg.HostGraph, torch.Tensor]:
    graph = sg.HostGraph()
    with sg.host_graph(graph, pool=pool):
        output = source[:elements] * 3
    return graph, output


@pytest.mark.parametrize("layout", ["isolate", "faithful"])
@pytest.mark.parametrize(("temporary", "output"), [(120, 100), (100, 120), (100, 100)])
def test_a_temporary_in_the_block_of_another_graphs_output(layout: str, temporary: int, output: int) -> None:
    source = torch.arange(float(BLOCK))
    with sg.debug(layout=layout) as debugger:
        pool = sg.graph_pool_handle()
        first, total, address = temporary_of(source, temporary, pool)
        second, kept = output_of(source, output, pool)
        assert kept.data_ptr() == address
        for _ in range(3):
            first.replay()
            assert total.item() == (source[:temporary] * 2).sum().item()
            second.replay()
            assert torch.equal(kept, source[:output] * 3)
    assert debugger.findings == ()
    assert debugger.coverage().percent == (100 if temporary <= output else 54)


@pytest.mark.parametrize("past", [80, 81])
def test_an_overrun_is_seen_behind_the_largest_tenant_of_another_graph(past: int) -> None:
    source = torch.arange(float(BLOCK))
    with sg.debug() as debugger:
        pool = sg.graph_pool_handle()
        first, _total, _ = temporary_of(source, 120, pool)
        second, kept = output_of(source, 100, pool)
        first.replay()
        second.replay()
        poke(kept, 400, past)
        found = debugger.check()
    if past == 80:
        assert found == (), "bytes that the first graph may write"
    else:
        assert (only(found).past_end, only(found).bytes.distance) == (81, 80)
    assert not buffer_of(kept).exact


def test_an_overrun_of_the_larger_temporary_over_a_live_output_is_seen() -> None:
    source = torch.arange(float(BLOCK))
    with sg.debug() as debugger:
        pool, graph = sg.graph_pool_handle(), sg.HostGraph()
        with sg.host_graph(graph, pool=pool):
            temporary = source[:120] * 2
            graph.call(poke, temporary, 480, 4)
            del temporary
        _second, kept = output_of(source, 100, pool)
        graph.replay()
        found = only(debugger.findings)
    assert (found.graph, found.bytes.count, found.bytes.distance) == (graph.model.name, 4, 80)
    assert buffer_of(kept).gap == 80


@pytest.mark.parametrize("how", ["reset", "deleted"])
def test_the_guard_is_exact_again_when_the_other_graph_is_gone(how: str) -> None:
    source = torch.arange(float(BLOCK))
    with sg.debug() as debugger:
        pool = sg.graph_pool_handle()
        first, _total, _ = temporary_of(source, 120, pool)
        second, kept = output_of(source, 100, pool)
        first.replay()
        if how == "reset":
            first.reset()
        del first
        gc.collect()
        run_deferred()
        second.replay()
        assert (buffer_of(kept).exact, buffer_of(kept).gap) == (True, 0)
        assert debugger.check() == ()
        poke(kept, 400, 1)
        assert only(debugger.check()).past_end == 1


def test_temporaries_of_two_graphs_in_one_block_are_exact() -> None:
    source = torch.arange(float(BLOCK))
    with sg.debug() as debugger:
        pool = sg.graph_pool_handle()
        first, _one, address = temporary_of(source, 120, pool)
        graph = sg.HostGraph()
        with sg.host_graph(graph, pool=pool):
            temporary = source[:100] * 2
            assert temporary.data_ptr() == address
            graph.call(poke, temporary, 400, 4)
            del temporary
        assert debugger.coverage().percent == 100
        first.replay()
        assert debugger.findings == ()
        graph.replay()
        assert (only(debugger.findings).past_end, only(debugger.findings).graph) == (4, graph.model.name)
        first.replay()
    assert len(debugger.findings) == 1


def test_one_graphs_own_tenants_stay_exact() -> None:
    source = torch.arange(float(BLOCK))
    with sg.debug(layout="faithful") as debugger:
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            temporary = source[:120] * 2
            address = temporary.data_ptr()
            del temporary
            kept = source[:100] * 3
        assert kept.data_ptr() == address
        graph.replay()
        assert buffer_of(kept).exact
        poke(kept, 400, 1)
        assert only(debugger.check()).past_end == 1


def test_an_output_that_dies_in_another_graphs_replay_moves_no_guard_over_its_bytes() -> None:
    source = torch.arange(float(BLOCK))
    with sg.debug() as debugger:
        pool, first, held = sg.graph_pool_handle(), sg.HostGraph(), []
        with sg.host_graph(first, pool=pool):
            temporary = source[:120] * 2
            first.call(held.clear)
            total = temporary.sum()
            del temporary
        second, kept = output_of(source, 100, pool)
        held.append(kept)
        del kept
        for _ in range(2):
            first.replay()
            assert total.item() == (source[:120] * 2).sum().item()
            assert not held
            second.replay()
    assert debugger.findings == ()


@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_captures_replays_and_ends_is_silent_and_right(seed: int) -> None:
    pick, source = random.Random(seed), torch.arange(float(BLOCK))
    with sg.debug(layout=pick.choice(["isolate", "faithful"])) as debugger:
        pool = sg.graph_pool_handle()
        graphs: list[tuple[sg.HostGraph, list[torch.Tensor], list[torch.Tensor]]] = []
        for _ in range(60):
            step = pick.random()
            if step < 0.2 or not graphs:
                graph, kept, wanted = sg.HostGraph(), [], []
                with sg.host_graph(graph, pool=pool):
                    for _ in range(pick.randint(1, 4)):
                        elements, factor = pick.randint(1, BLOCK), pick.randint(2, 9)
                        made = source[:elements] * factor
                        if pick.random() < 0.4:
                            kept.append(made)
                        else:
                            kept.append(made.sum())
                        del made
                    graphs.append((graph, kept, wanted))
                graph.replay()
                wanted += [tensor.clone() for tensor in kept]
            elif step < 0.3:
                pick.choice(graphs)[1].clear()
            elif step < 0.35:
                graphs.pop(pick.randrange(len(graphs)))[0].reset()
            else:
                graph, kept, wanted = pick.choice(graphs)
                graph.replay()
                assert all(torch.equal(one, other) for one, other in zip(kept, wanted, strict=False))
    assert debugger.findings == (), [finding.message for finding in debugger.findings]
