"""`locate`: which bytes each node changed, writes into buffers that no argument leads into, races."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import torch
from msgspec.structs import replace
from programs import guarded, only, poke

import shadowgraph as sg
from shadowgraph.checks.culprits import NEAR
from shadowgraph.model.device_nodes import NodeKind
from shadowgraph.model.graphs import Graph
from shadowgraph.model.write_sets import WriteSets, Written

LAYOUTS = pytest.mark.parametrize("layout", ["isolate", "faithful"])


def fill_at(target: torch.Tensor, start: int, count: int, value: int) -> None:
    """A Triton launch that stores ``value, value + 1, ...`` at ``target[start : start + count]``."""
    from shadowgraph.demos.kernels import fill

    fill[(1,)](target, start, count, value, BLOCK=64)


def elements_between(one: torch.Tensor, other: torch.Tensor) -> int:
    """The index into `one` that is the first element of `other`."""
    distance, rest = divmod(other.data_ptr() - one.data_ptr(), one.element_size())
    assert not rest
    return distance


def neighbours(debugger: sg.Debugger) -> tuple[torch.Tensor, torch.Tensor]:
    """Two guarded buffers, of 16 and 64 elements, that lie close enough for an argument into one to explain damage of
    the other: an allocator whose memory is in pieces gives any."""
    small, large = ([guarded(debugger, size) for _ in range(32)] for size in (16, 64))
    pairs = [(one, other) for one in small for other in large]
    one, other = min(pairs, key=lambda pair: abs(elements_between(*pair)))
    assert abs(elements_between(one, other)) * one.element_size() < NEAR // 2, "invalid: no two of them are close"
    return one, other


# -- SG106 -----------------------------------------------------------------------------------------------------------


@LAYOUTS
@pytest.mark.parametrize("how", ["locate", "all"])
def test_a_far_write_into_another_buffer(layout: str, how: str) -> None:
    with sg.debug(layout=layout, locate="all" if how == "all" else "auto") as debugger:
        (victim, table), out = neighbours(debugger), guarded(debugger, 64)
        debugger.name("victim", victim)
        debugger.name("table", table)
        graph = sg.HostGraph()
        far = elements_between(table, victim) + 3
        with sg.host_graph(graph):
            out.add_(1)
            fill_at(table, far, 2, 7)
            table.add_(out)
        if how == "locate":
            handle = debugger.locate(graph)
            assert (handle.done, handle.write_sets, handle.outcome) == (False, None, None)
        else:
            graph.replay()
            assert debugger.findings == ()
            victim.zero_()
        graph.replay()
        found = only(debugger.findings)
        graph.replay()
    assert victim[3:5].tolist() == [7, 8]
    assert (found.code, found.severity, found.phase, found.replay) == ("SG106", "error", "replay", 1 + (how == "all"))
    assert (found.buffer.name, found.bytes.first, found.bytes.last, found.bytes.side) == ("victim", 12, 16, None)
    assert (found.bytes.count, found.confidence) == (2, "high")
    culprit = found.culprit
    assert (culprit.status, culprit.name, culprit.node, culprit.seen_in) == ("confirmed", "fill", 1, found.replay)
    assert (culprit.stack[0].function, culprit.line) == ("fill_at", fill_at.__code__.co_firstlineno + 4)
    assert [(argument.name, argument.buffer) for argument in culprit.arguments] == [("target", "table")]
    assert culprit.led_by == culprit.arguments[0], "it points within a megabyte of the damage"
    said = f"changed 2 bytes of victim (int32[16]), where none of its arguments leads, in replay {found.replay} of "
    assert found.message == f"SG106 foreign write: fill (node 1) {said}{graph.model.name}"


@LAYOUTS
def test_the_fixed_twin_is_silent(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        victim, table, out = guarded(debugger, 16), guarded(debugger, 64), guarded(debugger, 64)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            out.add_(1)
            fill_at(table, 3, 2, 7)
            table.add_(out)
        handle = debugger.locate(graph)
        graph.replay()
    assert debugger.findings == ()
    assert victim.tolist() == [0] * 16
    assert handle.write_sets is not None
    assert {one.node for one in handle.write_sets.written} == {0, 1, 2}, "it looked"


@LAYOUTS
def test_a_kernel_that_follows_addresses_in_memory(layout: str) -> None:
    """A table of addresses leads where no argument does; without it the same write is a finding."""
    import triton
    import triton.language as tl

    @triton.jit
    def through(addresses, value, INDEX: tl.constexpr):  # type: ignore[no-untyped-def]
        target = tl.load(addresses + INDEX).to(tl.pointer_type(tl.int32))
        tl.store(target, value)

    for known in (True, False):
        with sg.debug(layout=layout) as debugger:
            victim = guarded(debugger, 4)
            addresses = guarded(debugger, 2, dtype=torch.int64)
            addresses[1] = victim.data_ptr()
            graph = sg.HostGraph()
            with sg.host_graph(graph):
                through[(1,)](addresses, 5, INDEX=1)
                if not known:
                    addresses.zero_()
            handle = debugger.locate(graph)
            graph.replay()
            found = debugger.findings
        assert victim[0].item() == 5
        assert handle.write_sets is not None
        assert handle.write_sets.of_node(0)[0].count == 1
        assert [finding.code for finding in found] == ([] if known else ["SG106"])


def test_a_callable_may_write_anywhere() -> None:
    with sg.debug() as debugger:
        victim, table = guarded(debugger, 16), guarded(debugger, 16)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            graph.call(lambda: poke(victim, 0, 4), writes=(table,))
        handle = debugger.locate(graph)
        graph.replay()
        assert victim[0].item() == 0x07070707
    assert debugger.findings == ()
    assert handle.write_sets is not None
    assert only(handle.write_sets.written).count == 4


# -- write sets ------------------------------------------------------------------------------------------------------


@LAYOUTS
def test_write_sets_are_exact(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        table, other = guarded(debugger, 64), guarded(debugger, 8, dtype=torch.uint8)
        outside = torch.zeros(16, dtype=torch.int16)
        debugger.name("table", table)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            fill_at(table, 2, 5, 1)
            other[3:].fill_(255)
            fill_at(table, 2, 5, 1)  # the same values: nothing changes
            outside[1::2].sub_(1)
            result = table + 1
        buffers = {buffer.start: buffer.serial for buffer in debugger.buffers}
        result.zero_()  # the capture left there what the replay computes
        handle = debugger.locate(graph)
        graph.replay()
        sets, outcome = handle.write_sets, handle.outcome
        assert handle.done
        assert debugger.monitor.locator.write_sets[graph.model.serial] is sets
    assert debugger.findings == ()
    assert sets is not None
    assert outcome is not None
    assert (outcome.replay, outcome.refused, sets.replay, sets.graph, sets.dropped) == (1, None, 1, graph.model.name, 0)
    serial = {key: buffers[tensor.data_ptr()] for key, tensor in
              {"table": table, "other": other, "outside": outside, "result": result}.items()}  # fmt: skip
    assert sets.written == (
        Written(0, serial["table"], 8, 24, 5),  # of each int32 the lowest byte
        Written(1, serial["other"], 3, 7, 5),
        Written(3, serial["outside"], 2, 31, 16),
        *sets.of_buffer(serial["result"]),
    )
    assert [(one.node, one.first) for one in sets.of_buffer(serial["result"])] == [(4, 0)]
    assert {place.name for place in sets.looked_at} >= {"table"}
    assert msgspec.convert(sets.to_dict(), WriteSets) == sets


def test_all_graphs_and_none() -> None:
    with sg.debug() as debugger:
        table = guarded(debugger, 8)
        first, second = sg.HostGraph(), sg.HostGraph()
        for graph in (first, second):
            with sg.host_graph(graph):
                table.add_(1)
        handle = debugger.locate()
        first.replay()
        assert not handle.done
        assert list(handle.by_graph) == [first.model.name]
        second.replay()
        assert handle.done
        assert {sets.written[0].node for sets in handle.by_graph.values()} == {0}
        before = dict(handle.by_graph)
        first.replay()
        assert handle.by_graph == before, "one replay each"
        assert debugger.graph(first) is first.model
        with pytest.raises(sg.UsageError, match="expected a HostGraph"):
            debugger.locate("graph")  # type: ignore[arg-type]


def test_what_there_is_no_room_for_is_left_out() -> None:
    with sg.debug(locate_memory=1 << 20) as debugger:
        small, large = guarded(debugger, 16), guarded(debugger, 1 << 20)
        debugger.name("small", small)
        debugger.name("large", large)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            small.add_(1)
            large.add_(1)
        handle = debugger.locate(graph)
        graph.replay()
    sets = handle.write_sets
    assert sets is not None
    assert "small" in {place.name for place in sets.looked_at}
    assert "large" in {place.name for place in sets.left_out}, "beside what other tests have left"
    assert {one.node for one in sets.written} == {0}


# -- locate="all" on programs without faults -------------------------------------------------------------------------


def mixed(source: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Operators of many kinds, and a Triton kernel."""
    hidden = torch.relu(source @ source.T) + source.sum()
    picked = hidden.index_select(0, index)
    out.scatter_add_(0, index, picked.sum(1))
    del hidden
    values, order = picked.sort(dim=1)
    fill_at(index, 0, 1, 2)
    return torch.cat([values.softmax(1), order.to(values.dtype)]).cumsum(0)


@LAYOUTS
def test_clean_programs_are_silent_and_the_same_to_the_bit(layout: str) -> None:
    results = []
    for locate in ("off", "all"):
        torch.manual_seed(3)
        with sg.debug(layout=layout, locate=locate) as debugger:
            with debugger.guard():
                source, out = torch.randn(8, 8), torch.zeros(8)
                index = torch.tensor([1, 3, 5, 7], dtype=torch.int32).to(torch.int64)
            graph = sg.HostGraph()
            with sg.host_graph(graph):
                result = mixed(source, index, out)
                noise = torch.rand(8)
            seen = []
            for step in range(4):
                source.mul_(-1)
                graph.replay()
                seen += [tensor.numpy().tobytes() for tensor in (result, noise, out, index)]
                assert (graph.model.serial in debugger.monitor.locator.write_sets) == (locate == "all" and step > 0)
            assert debugger.check() == ()
            assert debugger.report(quiet=True).facts.faults == {}
        results.append(seen)
    assert results[0] == results[1]
    assert len(set(results[0])) > 4, "replays differ"


# -- races -----------------------------------------------------------------------------------------------------------


def forked(graph: Graph, *after: tuple[int, ...]) -> None:
    """Give a host graph's nodes the edges of a forked capture; they still run one after the other."""
    plain = graph.device_nodes
    nodes = tuple(replace(node, after=edges, block=(32, 1, 1)) for node, edges in zip(plain, after, strict=True))
    graph.build_device_later(lambda: nodes)


def race_of(
    make: Callable[[torch.Tensor], None], *after: tuple[int, ...], replays: int = 1
) -> tuple[sg.Debugger, sg.HostGraph, torch.Tensor]:
    """A program of which every replay is looked at."""
    with sg.debug() as debugger:
        table = guarded(debugger, 64)
        debugger.name("table", table)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            make(table)
        forked(graph.model, *after)
        debugger.locate(graph)
        for _ in range(replays):
            graph.replay()
            table.zero_()
    return debugger, graph, table


def two_fills(table: torch.Tensor, apart: int = 4) -> None:
    table[40:].add_(1)
    fill_at(table, 2, 8, 300)
    fill_at(table, 2 + apart, 8, 600)


def test_two_branches_that_write_the_same_bytes() -> None:
    debugger, graph, _ = race_of(two_fills, (), (0,), (0,), replays=2)
    found = only(debugger.findings)
    assert (found.code, found.severity, found.phase, found.replay) == ("SG112", "error", "replay", 2)
    assert (found.buffer.name, found.bytes.first, found.bytes.last) == ("table", 24, 37)
    assert (found.bytes.count, found.bytes.ranges) == (8, ((24, 25), (28, 29), (32, 33), (36, 37)))
    assert (found.culprit.name, found.culprit.node, found.culprit.status) == ("fill", 2, "confirmed")
    assert found.culprit.block == (32, 1, 1)
    assert [(one.name, one.node, one.status) for one in found.candidates] == [("fill", 1, "confirmed")]
    said = f"write the same bytes [24, 37] of table in no order, in replay 2 of {graph.model.name}"
    assert f"fill (node 2) and fill (node 1) {said}" in found.message


@pytest.mark.parametrize(
    ("make", "after"),
    [(two_fills, ((), (0,), (1,))), (lambda table: two_fills(table, 8), ((), (0,), (0,)))],
    ids=["an edge between them", "other bytes"],
)
def test_branches_that_do_not_race(make: Callable[[torch.Tensor], None], after: tuple[tuple[int, ...], ...]) -> None:
    debugger, _, _ = race_of(make, *after, replays=3)
    assert debugger.findings == ()
    sets = next(iter(debugger.monitor.locator.write_sets.values()))
    assert {one.node for one in sets.written} == {0, 1, 2}


def columns(table: torch.Tensor, shared: int = 0) -> None:
    rows = table.view(8, 8)
    rows[:, :4].add_(1)
    rows[:, 4 - shared :].add_(2)


@pytest.mark.parametrize("shared", [0, 1])
def test_columns_of_one_table_are_looked_at_piece_by_piece(shared: int) -> None:
    once, _, _ = race_of(lambda table: columns(table, shared), (), ())
    assert once.findings == (), "from first to last byte both write the whole table"
    twice, _, _ = race_of(lambda table: columns(table, shared), (), (), replays=3)
    found = twice.findings
    assert [finding.code for finding in found] == ["SG112"] * shared
    if shared:
        assert (found[0].replay, found[0].bytes.first, found[0].culprit.node) == (2, 12, 1)


def test_nodes_that_nobody_saw_being_launched_are_named_by_their_kernel() -> None:
    with sg.debug() as debugger:
        victim, table = guarded(debugger, 16), guarded(debugger, 64)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            fill_at(table, elements_between(table, victim), 2, 7)
        stack = graph.model.nodes[0].launch.stack
        node = replace(graph.model.device_nodes[0], name="void fill<int>(int*)", launch=None, stack=stack[1:])
        graph.model.build_device_later(lambda: (node,))
        debugger.locate(graph)
        graph.replay()
    culprit = only(debugger.findings).culprit
    assert (culprit.kind, culprit.name, culprit.kernel) == ("kernel", "void fill<int>(int*)", None)
    assert (culprit.line, culprit.stack) == (stack[1].line, stack[1:])


def test_the_kernels_own_name_stands_beside_its_operators() -> None:
    with sg.debug() as debugger:
        victim, table = guarded(debugger, 16), guarded(debugger, 64)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            fill_at(table, elements_between(table, victim), 2, 7)
        node = replace(graph.model.device_nodes[0], name="fill_0d1d", kind=NodeKind.KERNEL)
        graph.model.build_device_later(lambda: (node,))
        debugger.locate(graph)
        graph.replay()
    culprit = only(debugger.findings).culprit
    assert (culprit.name, culprit.kernel, culprit.kind) == ("fill", "fill_0d1d", "triton")


def test_nothing_is_tracked() -> None:
    with sg.debug(locate_memory=0) as debugger:
        table = guarded(debugger, 4)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            table.add_(1)
        handle = debugger.locate(graph)
        graph.replay()
        assert table.tolist() == [1] * 4
    assert (handle.done, handle.write_sets) == (True, None)
    assert handle.outcome is not None
    assert handle.outcome.refused == "no memory is tracked"


def test_a_dict_of_write_sets_is_plain() -> None:
    sets = WriteSets("graph#1", 2, (Written(0, 5, 0, 3, 4),), (), ())
    assert sets.to_dict()["written"] == [{"node": 0, "buffer": 5, "first": 0, "last": 3, "count": 4}]


def test_in_sync_mode_a_foreign_write_is_raised() -> None:
    with sg.debug(sync=True) as debugger:
        victim, table = guarded(debugger, 16), guarded(debugger, 64)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            fill_at(table, elements_between(table, victim), 2, 7)
        debugger.locate(graph)
        with pytest.raises(sg.FindingsError, match="SG106 foreign write: fill"):
            graph.replay()
        graph.replay()
        assert only(debugger.findings).replay == 1
