"""SG107 on real programs: results that depend on bytes that must not matter."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch
from captures import capture, silent, uses_floats
from experiments import step, tried
from programs import guarded, only

import shadowgraph as sg
from shadowgraph.graphs.host.reruns import HostReruns

pytest.importorskip("triton")

from support.undefined_kernels import add_next, copy_some, masked_next, scale_rows, sum_rows


def watching(**options: object) -> sg.debug:
    return sg.debug(backend="host", undefined=True, **options)


def inputs(debugger: sg.Debugger, *lens: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, lengths = uses_floats(debugger, len(lens), 8), guarded(debugger, len(lens))
    x.fill_(1.5)
    lengths.copy_(torch.tensor(lens))
    debugger.name("batch", {"x": x, "lens": lengths})
    return x, lengths


def maximum(
    debugger: sg.Debugger, *lens: int, make: Callable[..., torch.Tensor] = torch.empty
) -> tuple[sg.HostGraph, torch.Tensor, object]:
    """A graph of a kernel that skips rows of length 0 and of a maximum over all rows, the maximum, and its inputs."""
    x, lengths = inputs(debugger, *lens)

    def body() -> torch.Tensor:
        out = make(len(lens), 8)
        scale_rows[(len(lens),)](out, x, lengths, W=8)
        return out.abs().amax()

    return *capture(body), (x, lengths)


@pytest.mark.parametrize("layout", ["isolate", "faithful"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_kernel_skips_rows_that_a_maximum_reads(layout: str, dtype: torch.dtype) -> None:
    """vLLM 37442."""
    with watching(layout=layout) as debugger:
        x, lens = inputs(debugger, 3, 0, 2, 5)

        def body() -> torch.Tensor:
            out = torch.empty(4, 8, dtype=dtype)
            scale_rows[(4,)](out, x, lens, W=8)
            return out.abs().amax().float() / 448

        graph, scale = capture(body)
        step(graph, scale.item, 5)
        found = only(debugger.findings)
        text = str(debugger.report(quiet=True))
        assert debugger.report(quiet=True).facts.faults == {}
    size = dtype.itemsize
    assert (found.code, found.severity, found.confidence) == ("SG107", "error", "high")
    assert (found.phase, found.graph, found.replay) == ("replay", graph.model.name, 2)
    assert (found.bytes.first, found.bytes.last) == (8 * size, 16 * size - 1)
    assert (found.buffer.shape, found.buffer.role) == ((4, 8), "pool")
    assert (found.culprit.name, found.culprit.node) == ("aten.abs.default", 1)
    assert found.culprit.stack[0].function == "body"
    assert (found.detail.source, found.detail.computed) == ("unwritten", True)
    assert (found.detail.writer.name, found.detail.writer.node) == ("scale_rows", 0)
    assert found.detail.output.shape == ()
    assert (found.reader.kind, found.reader.name) == ("host", "aten._local_scalar_dense.default")
    assert "which nothing has written, and scale depends on them" in text
    assert "skipped    by scale_rows (node 0), which may write them, at " in text
    assert text.count("SG107 undefined influence: aten.abs.default (node 1) reads bytes [") == 2
    assert "limit: undefined influence (SG107) was tried 2 times, with" in text


def test_its_fixed_twin_begins_with_zeros() -> None:
    with watching() as debugger:
        graph, scale, _kept = maximum(debugger, 3, 0, 2, 5, make=torch.zeros)
        step(graph, scale.item, 5)
        assert silent(debugger)
        assert "was tried 3 times, with 12 runs" in str(debugger.report(quiet=True))


def test_no_row_is_skipped() -> None:
    with watching() as debugger:
        graph, scale, _kept = maximum(debugger, 3, 1, 2, 5)
        step(graph, scale.item)
        assert silent(debugger)
        assert tried(debugger)


def test_nothing_is_tried_without_the_option() -> None:
    with sg.debug(backend="host") as debugger:
        graph, scale, _kept = maximum(debugger, 3, 0, 2, 5)
        for _ in range(4):
            graph.replay()
            assert graph.model.experiments == []
            scale.item()
        assert silent(debugger)
        assert not tried(debugger)


@pytest.mark.parametrize("extra", [1, 5])
def test_a_load_past_the_end(extra: int) -> None:
    with watching() as debugger:
        x, out = uses_floats(debugger, 8), uses_floats(debugger, 8)
        x.copy_(torch.arange(8.0))
        debugger.name("m", {"x": x, "out": out})
        graph, _ = capture(lambda: add_next[(1,)](out, x, 8, extra, BLOCK=16) and None)
        step(graph, out.tolist, 3)
        found = only(debugger.findings)
        text = str(debugger.report(quiet=True))
        assert out[:7].tolist()[: 8 - extra] == [2.0 * i + extra for i in range(8 - extra)], "only the replays count"
    assert (found.code, found.buffer.name, found.replay) == ("SG107", 'm["x"]', 2)
    assert (found.bytes.side, found.bytes.first, found.bytes.last) == ("after", 32, 32 + 4 * extra - 1)
    assert (found.culprit.name, found.culprit.node, found.culprit.led_by.name) == ("add_next", 0, "x")
    assert (found.detail.source, found.detail.output.name) == ("guard", 'm["out"]')
    assert (found.detail.first, found.detail.last) == (32 - 4 * extra, 31)
    assert found.detail.load.program == (0, 0, 0)
    assert found.detail.load.line > 0
    assert (
        f'add_next (node 0) reads {4 * extra} bytes past the end of m["x"] (float32[8], 32 bytes), and m["out"]' in text
    )
    assert "loaded     by program (0, 0, 0) at " in text


def test_its_value_is_masked_by_a_product() -> None:
    with watching() as debugger:
        x, out = uses_floats(debugger, 8), uses_floats(debugger, 8)
        graph, _ = capture(lambda: masked_next[(1,)](out, x, 8, BLOCK=16) and None)
        step(graph, out.tolist, 3)
        assert silent(debugger)
        assert tried(debugger)


def test_a_plan_for_fewer_rows_than_the_graph_has() -> None:
    """The graph is given what was planned, and its kernel reads beyond."""
    with watching() as debugger:
        starts, x, out = guarded(debugger, 9), uses_floats(debugger, 8), uses_floats(debugger, 4)
        starts.copy_(torch.arange(9))
        debugger.name("plan", {"starts": starts})
        graph, _ = capture(lambda: sum_rows[(4,)](out, x, starts[:3]) and None)
        step(graph, out.tolist, 3)
        found = only(debugger.findings)
    assert (found.code, found.buffer.name, found.bytes.side) == ("SG107", 'plan["starts"]', "slack")
    assert (found.bytes.first, found.bytes.last) == (12, 19)
    assert (found.culprit.name, found.detail.source, found.confidence) == ("sum_rows", "slack", "medium")
    assert "which this graph did not capture, and" in found.message


def test_its_fixed_twin_plans_all_rows() -> None:
    with watching() as debugger:
        starts, x, out = guarded(debugger, 9), uses_floats(debugger, 8), uses_floats(debugger, 4)
        starts.copy_(torch.arange(9))
        graph, _ = capture(lambda: sum_rows[(4,)](out, x, starts[:5]) and None)
        step(graph, out.tolist, 3)
        assert silent(debugger)
        assert tried(debugger)


@pytest.mark.parametrize("fixed", [False, True])
def test_the_tail_of_a_workspace(fixed: bool) -> None:
    with watching() as debugger:
        x = uses_floats(debugger, 6)

        def body() -> torch.Tensor:
            workspace = torch.empty(8)
            workspace[:6].copy_(x)
            return workspace[:6].sum() if fixed else workspace.sum()

        graph, total = capture(body)
        step(graph, total.item, 3)
        if fixed:
            assert silent(debugger)
            assert tried(debugger)
            return
        found = only(debugger.findings)
    assert (found.code, found.bytes.first, found.bytes.last) == ("SG107", 24, 31)
    assert (found.culprit.name, found.detail.source) == ("aten.sum.default", "unwritten")


STORES: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]] = {
    "aten.index_copy_.default": lambda buffer, rows, x: buffer.index_copy_(0, rows, x),
    "aten.index_put_.default": lambda buffer, rows, x: buffer.__setitem__(rows, x),
    "aten.scatter_.src": lambda buffer, rows, x: buffer.scatter_(0, rows[:, None].expand(3, 4), x),
    "aten.index_fill_.int_Scalar": lambda buffer, rows, x: buffer.index_fill_(0, rows, 2.0),
}


@pytest.mark.parametrize("count", [6, 3])
@pytest.mark.parametrize("operator", STORES)
def test_an_operator_skips_rows_that_a_sum_reads(operator: str, count: int) -> None:
    """Rows 1, 3 and 5 are stored, of six or of three."""
    with watching() as debugger:
        x, rows = uses_floats(debugger, 3, 4), guarded(debugger, 3, dtype=torch.int64)
        rows.copy_(torch.tensor([1, 3, 5]) if count == 6 else torch.arange(3))

        def body() -> torch.Tensor:
            buffer = torch.empty(count, 4)
            STORES[operator](buffer, rows, x)
            return buffer.sum(-1)

        graph, sums = capture(body)
        step(graph, sums.tolist)
        if count == 3:
            assert silent(debugger)
            return
        found = only(debugger.findings)
        text = str(debugger.report(quiet=True))
    assert (found.code, found.severity, found.confidence, found.replay) == ("SG107", "error", "high", 2)
    assert (found.buffer.shape, found.detail.source) == ((6, 4), "unwritten")
    assert (found.culprit.name, found.detail.writer.name) == ("aten.sum.dim_IntList", operator)
    assert f"skipped    by {operator} (node" in text


def test_an_operator_that_changes_all_rows_behind_it_defines_none() -> None:
    with watching() as debugger:
        x, rows = uses_floats(debugger, 3, 4), guarded(debugger, 3, dtype=torch.int64)
        rows.copy_(torch.arange(3))

        def body() -> torch.Tensor:
            buffer = torch.empty(6, 4)
            buffer.index_copy_(0, rows, x)
            buffer.mul_(0.5)
            return buffer.sum(-1)

        graph, sums = capture(body)
        step(graph, sums.tolist)
        found = only(debugger.findings)
    assert (found.bytes.first, found.bytes.last, found.detail.first) == (48, 95, 12)


@pytest.mark.parametrize("masked", [False, True])
def test_declared_padding_that_leaks(masked: bool) -> None:
    with watching() as debugger:
        x, keep = uses_floats(debugger, 4, 8), uses_floats(debugger, 4, 1)
        keep[:2].fill_(1)
        debugger.name("batch", {"x": x})
        debugger.padding(x[2:], "dont_care")
        graph, mean = capture(lambda: (x * keep if masked else x + keep).mean())
        for _ in range(3):
            x[:2].fill_(3)
            graph.replay()
            mean.item()
        if masked:
            assert silent(debugger)
            assert tried(debugger)
            return
        found = only(debugger.findings)
    assert (found.code, found.buffer.name) == ("SG107", 'batch["x"]')
    assert (found.bytes.first, found.bytes.last) == (64, 127)
    assert (found.culprit.name, found.detail.source) == ("aten.add.Tensor", "padding")


def test_padding_that_is_declared_to_be_refreshed_is_not_filled() -> None:
    with watching() as debugger:
        x = uses_floats(debugger, 4, 8)
        debugger.padding(x[2:], "dont_care")
        debugger.padding(x[2:], "refresh")
        graph, mean = capture(lambda: x.mean())
        for _ in range(3):
            x.fill_(3)
            graph.replay()
            mean.item()
        assert silent(debugger)


@pytest.mark.parametrize("before", [0, 3])
def test_the_node_by_prefixes(monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    """As on a device, where memory is not looked at behind every node."""
    monkeypatch.setattr(HostReruns, "trace", lambda *_: None)
    with watching() as debugger:
        x, lens = inputs(debugger, 3, 0, 2, 5)

        def body() -> torch.Tensor:
            out, y = torch.empty(4, 8), x
            scale_rows[(4,)](out, x, lens, W=8)
            for _ in range(before):
                y = y + 1
            return (out.abs() + y).amax() / 448

        graph, scale = capture(body)
        step(graph, scale.item, 3)
        found = only(debugger.findings)
        text = str(debugger.report(quiet=True))
    assert (found.culprit.name, found.culprit.node) == ("aten.abs.default", 1 + before)
    assert (found.culprit.search.nodes, found.culprit.search.how) == (5 + before, "removed")
    assert f"seen in    replay 2, by prefixes, {found.culprit.search.runs} runs of {5 + before} nodes" in text


def test_a_result_that_is_partly_written_and_read_at_the_end() -> None:
    """The first experiments do not know what will be read: bytes that nothing has written count only as the cause."""
    with watching() as debugger:
        x, lens = inputs(debugger, 3, 0, 2, 5)

        def body() -> tuple[torch.Tensor, torch.Tensor]:
            out = torch.empty(4, 8)
            scale_rows[(4,)](out, x, lens, W=8)
            return out, out.sum(1)

        graph, (out, sums) = capture(body)
        debugger.name("runner", {"out": out, "sums": sums})
        for _ in range(3):
            graph.replay()
        sums.tolist()
        debugger.check()
        found = only(debugger.findings)
    assert (found.culprit.name, found.culprit.node) == ("aten.sum.dim_IntList", 1)
    assert (found.bytes.first, found.bytes.last, found.buffer.name) == (32, 63, 'runner["out"]')
    assert (found.detail.output.name, found.detail.first, found.detail.last) == ('runner["sums"]', 4, 7)


@pytest.mark.parametrize("left", [0, 1])
def test_a_count_that_is_as_large_as_a_fill(left: int) -> None:
    """Integers that a node writes are as the fills are: they are no bytes that nothing has written.

    So may be what an earlier tensor left in the memory of `picked`. A replay carries it on to `flags`, which are zeroed
    before the next one: where they had a fill's value already, they would not change with it.
    """
    with watching() as debugger:
        lengths, flags = guarded(debugger, 4), guarded(debugger, 4)
        lengths[:2].fill_(1)

        def body() -> torch.Tensor:
            picked = torch.empty(4, dtype=torch.int32)
            ctypes.memset(picked.data_ptr(), 0, picked.nbytes)
            ctypes.c_int32.from_address(picked.data_ptr() + 8).value = left
            copy_some[(4,)](picked, lengths)
            copy_some[(4,)](flags, picked)
            return flags.sum()

        graph, total = capture(body)
        debugger.name("m", {"flags": flags})
        for _ in range(3):
            flags.zero_()
            step(graph, total.item, 1)
        found = only(debugger.findings)
    assert (found.bytes.first, found.bytes.last, found.detail.computed) == (8, 15, True)
    assert (found.culprit.name, found.culprit.node) == ("copy_some", 1)
