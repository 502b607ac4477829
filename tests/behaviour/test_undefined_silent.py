"""What an experiment of SG107 must not report, and must leave as it was."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from captures import capture, silent, uses_floats
from experiments import step, tried
from playing import played
from programs import guarded, only, overflow

import shadowgraph as sg
from shadowgraph.common.errors import FindingsError
from shadowgraph.engines.numpy_engine import NumpyEngine
from shadowgraph.graphs.host.nodes import AtenNode
from shadowgraph.graphs.host.reruns import HostReruns
from shadowgraph.model.reruns import Fill

pytest.importorskip("triton")

from support.undefined_kernels import add_next, append_row, meet, scale_rows


@pytest.fixture
def debugger() -> Any:
    with sg.debug(backend="host", undefined=True) as made:
        yield made
        assert made.report(quiet=True).facts.faults == {}


def skipping(debugger: sg.Debugger, *lens: int) -> tuple[sg.HostGraph, torch.Tensor, object]:
    """A graph that leaves rows of length 0 as they are, its output, and what must live as long."""
    x, lengths = uses_floats(debugger, len(lens), 8), guarded(debugger, len(lens))
    lengths.copy_(torch.tensor(lens))

    def body() -> torch.Tensor:
        out = torch.empty(len(lens), 8)
        scale_rows[(len(lens),)](out, x, lengths, W=8)
        return out * 2

    return *capture(body), (x, lengths)


def test_padded_rows_that_are_not_read(debugger: sg.Debugger) -> None:
    graph, out, _kept = skipping(debugger, 2, 3, 0, 0)
    step(graph, lambda: out[:2].tolist())
    assert silent(debugger)
    assert tried(debugger)


def test_the_same_rows_are_read(debugger: sg.Debugger) -> None:
    graph, out, _kept = skipping(debugger, 2, 3, 0, 0)
    step(graph, lambda: out[:3].tolist())
    found = only(debugger.findings)
    assert (found.bytes.first, found.bytes.last, found.reader.name) == (64, 95, "tolist")


def test_a_view_of_them_is_no_read(debugger: sg.Debugger) -> None:
    graph, out, _kept = skipping(debugger, 2, 3, 0, 0)
    step(graph, lambda: (out[:2].sum(), out.view(-1).shape, torch.empty_like(out)))
    assert silent(debugger)
    assert tried(debugger)


def test_bytes_that_nothing_has_written_and_the_program_reads(debugger: sg.Debugger) -> None:
    x, lens = uses_floats(debugger, 3, 8), guarded(debugger, 3)
    lens[:2].fill_(1)

    def body() -> torch.Tensor:
        out = torch.empty(3, 8)
        scale_rows[(3,)](out, x, lens, W=8)
        return out

    graph, out = capture(body)
    debugger.name("out", {"rows": out})
    step(graph, out.tolist)
    found = only(debugger.findings)
    assert (found.severity, found.confidence, found.detail.computed) == ("error", "medium", False)
    assert (found.bytes.first, found.bytes.last, found.culprit.name) == (64, 95, None)
    said = (
        'tolist reads bytes [64, 95] of out["rows"] (float32[3, 8], 96 bytes), which nothing has written, in replay 2'
    )
    assert said in found.message


def test_nodes_that_are_not_deterministic(debugger: sg.Debugger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node counts its runs where no memory of the graph shows it."""
    x = uses_floats(debugger, 8)

    def body() -> torch.Tensor:
        scratch = torch.empty(9)
        scratch[:8].copy_(x)
        return scratch[:8] + 1

    for period in (1, 2, 3, 4):
        graph, out = capture(body)
        counter = itertools.count()
        plain = AtenNode.run

        def run(node: AtenNode, watched: bool, period: int = period, counter: Any = counter, out: Any = out) -> None:
            plain(node, watched)  # noqa: B023
            if node.node.launch.name == "aten.add.Tensor" and node.outputs[0].data_ptr() == out.data_ptr():
                torch.ops.aten.fill_(node.outputs[0], next(counter) // period % 2)

        with monkeypatch.context() as patch:
            patch.setattr(AtenNode, "run", run)
            step(graph, out.tolist)
        assert next(counter) > 8, "invalid: no experiment ran it"
    assert silent(debugger)
    assert "two equal runs gave different values, first by aten.add.Tensor (node 1)" in str(debugger.report(quiet=True))


def test_a_kv_cache_that_grows(debugger: sg.Debugger) -> None:
    cache, row, at = uses_floats(debugger, 16, 8), uses_floats(debugger, 8), guarded(debugger, 1)
    debugger.name("kv", {"cache": cache})

    def body() -> torch.Tensor:
        append_row[(1,)](cache, row, at, W=8)
        return cache.sum()

    graph, total = capture(body)
    step(graph, total.item, 6)
    assert silent(debugger)
    assert tried(debugger)
    assert at.item() == 6, "only the replays count"


def test_semaphores_that_reset_themselves(debugger: sg.Debugger) -> None:
    semaphore, out = guarded(debugger, 1), uses_floats(debugger, 4)
    graph, _ = capture(lambda: meet[(4,)](out, semaphore, PROGRAMS=4) and None)
    step(graph, out.tolist, 6)
    assert silent(debugger)
    assert out.tolist() == [6.0] * 4
    assert tried(debugger)


def test_dropout_draws_the_same_numbers() -> None:
    runs = []
    for undefined in (False, True):
        torch.manual_seed(3)
        with sg.debug(backend="host", undefined=undefined) as debugger:
            x, lens = uses_floats(debugger, 4, 8), guarded(debugger, 4)
            x.fill_(1)
            lens.fill_(1)

            def body(x: torch.Tensor = x, lens: torch.Tensor = lens) -> torch.Tensor:
                out = torch.empty(4, 8)
                scale_rows[(4,)](out, x, lens, W=8)
                return torch.nn.functional.dropout(out, 0.5)

            graph, out = capture(body)
            seen = []
            for _ in range(5):
                graph.replay()
                seen.append(out.tolist())
            assert silent(debugger)
            assert tried(debugger) == undefined
        runs.append(seen)
    assert runs[0] == runs[1]


def test_an_input_in_the_memory_of_the_capture(debugger: sg.Debugger) -> None:
    def body() -> tuple[torch.Tensor, torch.Tensor]:
        given = torch.empty(8)
        return given, given * 2

    graph, (given, out) = capture(body)
    given.numpy()[:] = 3  # where no launch is seen
    step(graph, out.tolist)
    assert silent(debugger)
    given.copy_(torch.ones(8))
    step(graph, out.tolist)
    assert silent(debugger)


def test_a_kernel_fills_what_eager_code_has_begun(debugger: sg.Debugger) -> None:
    """The capture's memory holds a state that the program set once."""
    row, at = uses_floats(debugger, 8), guarded(debugger, 1)

    def body() -> tuple[torch.Tensor, torch.Tensor]:
        cache = torch.empty(16, 8)
        append_row[(1,)](cache, row, at, W=8)
        return cache, cache.sum()

    graph, (cache, total) = capture(body)
    cache.zero_()
    step(graph, total.item)
    assert silent(debugger)
    assert tried(debugger)


def test_a_state_that_the_graph_carries(debugger: sg.Debugger) -> None:
    x = uses_floats(debugger, 8)

    def body() -> torch.Tensor:
        state = torch.empty(8)
        state.mul_(0.5)
        state.add_(x)
        return state

    graph, state = capture(body)
    step(graph, state.tolist)
    assert silent(debugger)


@pytest.mark.parametrize("operator", ["index_copy_", "index_put_", "scatter_", "masked"])
def test_a_cache_of_the_capture_that_is_built_row_by_row(debugger: sg.Debugger, operator: str) -> None:
    """Rows of earlier replays are state, though each replay stores one and skips all others."""
    row, at = uses_floats(debugger, 1, 8), guarded(debugger, 1, dtype=torch.int64)
    places = torch.arange(16)[:, None]

    def body() -> tuple[torch.Tensor, torch.Tensor]:
        cache = torch.empty(16, 8)
        if operator == "index_copy_":
            cache.index_copy_(0, at, row)
        elif operator == "index_put_":
            cache[at] = row
        elif operator == "scatter_":
            cache.scatter_(0, at[:, None].expand(1, 8), row)
        else:
            cache.masked_fill_(places == at, 3.0)
        total = torch.where(places <= at, cache, 0).sum()
        at.add_(1)
        return cache, total

    graph, (_cache, total) = capture(body)
    for count in range(9):
        row.fill_(count % 3)  # zeros, too: what is there already
        graph.replay()
        assert total.item() == 8 * (3 * (count + 1) if operator == "masked" else sum(i % 3 for i in range(count + 1)))
    assert silent(debugger)
    assert tried(debugger)


@pytest.mark.filterwarnings("ignore:The reduce argument")
@pytest.mark.parametrize("operator", ["index_add_", "index_put_", "put_", "scatter_add_", "scatter_"])
def test_an_accumulator_of_the_capture(debugger: sg.Debugger, operator: str) -> None:
    """Read before it is written in the very first replay: what it begins with is the program's own affair."""
    x, rows = uses_floats(debugger, 3), guarded(debugger, 3, dtype=torch.int64)
    rows.copy_(torch.arange(3))

    def body() -> torch.Tensor:
        sums = torch.empty(6)
        if operator == "index_add_":
            sums.index_add_(0, rows, x)
        elif operator == "index_put_":
            sums.index_put_((rows,), x, accumulate=True)
        elif operator == "put_":
            sums.put_(rows, x, accumulate=True)
        elif operator == "scatter_add_":
            sums.scatter_add_(0, rows, x)
        else:
            sums.scatter_(0, rows, x, reduce="add")
        return sums.sum()

    graph, total = capture(body)
    step(graph, total.item)
    assert silent(debugger)


def test_an_operator_stores_in_what_eager_code_has_begun(debugger: sg.Debugger) -> None:
    row, at = uses_floats(debugger, 1, 8), guarded(debugger, 1, dtype=torch.int64)

    def body() -> tuple[torch.Tensor, torch.Tensor]:
        cache = torch.empty(16, 8)
        cache[at] = row
        return cache, cache.sum()

    graph, (cache, total) = capture(body)
    cache.zero_()
    step(graph, total.item)
    assert silent(debugger)
    assert tried(debugger)


def test_rows_of_replays_that_were_not_looked_at(debugger: sg.Debugger) -> None:
    """What the fifth, sixth and seventh replay stored is state in the eighth, before which there is an experiment."""
    row, at = uses_floats(debugger, 1, 8), guarded(debugger, 1, dtype=torch.int64)
    read = guarded(debugger, 1, dtype=torch.int64)

    def body() -> torch.Tensor:
        cache = torch.empty(4, 8)
        cache[at] = row
        return cache[read].sum()

    graph, total = capture(body)
    for replay in range(1, 9):
        at.fill_(1 if replay == 6 else 0)
        read.fill_(1 if replay == 8 else 0)
        graph.replay()
        total.item()
    assert silent(debugger)
    assert "was tried 4 times" in str(debugger.report(quiet=True))


def test_another_graph_of_the_pool_writes_it(debugger: sg.Debugger) -> None:
    x, lens = uses_floats(debugger, 2, 8), guarded(debugger, 2)
    lens[:1].fill_(1)

    def body() -> tuple[torch.Tensor, torch.Tensor]:
        out = torch.empty(2, 8)
        scale_rows[(2,)](out, x, lens, W=8)
        return out, out.sum()

    first, (out, total) = capture(body)
    second, _ = capture(lambda: out[1].fill_(1), pool=first.pool())
    for _ in range(4):
        second.replay()
        first.replay()
        total.item()
    assert silent(debugger)


def test_memory_and_guards_are_as_without(debugger: sg.Debugger) -> None:
    """The damage that a replay does is found as ever, and is found once."""
    x, table = uses_floats(debugger, 8), guarded(debugger, 8)
    debugger.name("table", {"rows": table})

    def body() -> torch.Tensor:
        overflow(table, 2)
        return x + 1

    graph, out = capture(body)
    step(graph, lambda: (out.tolist(), table.tolist()), 5)
    found = only(debugger.findings)
    assert (found.code, found.replay, found.buffer.name) == ("SG101", 1, 'table["rows"]')
    assert tried(debugger)
    assert table.tolist() == list(range(1, 9))


@pytest.mark.parametrize("why", ["host code", "no room"])
def test_what_must_not_run_again(why: str, caplog: pytest.LogCaptureFixture) -> None:
    options = {"host code": {}, "no room": {"locate_memory": 64}}[why]
    calls: list[int] = []
    with sg.debug(backend="host", undefined=True, **options) as debugger:
        x, out = uses_floats(debugger, 8), uses_floats(debugger, 8)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            add_next[(1,)](out, x, 8, 1, BLOCK=16)
            if why == "host code":
                graph.call(lambda: calls.append(1))
        step(graph, out.tolist, 6)
        assert silent(debugger)
        text = str(debugger.report(quiet=True))
    assert len(calls) == (6 if why == "host code" else 0)
    said = {"host code": "node 1 runs host code, which must not run twice", "no room": "there is no room for copies"}[
        why
    ]
    assert f"was tried 0 times, with 0 runs of graphs; not with 1 of them, since {said}" in text
    logged = [r.getMessage() for r in caplog.records if "no experiment with" in r.getMessage()]
    assert len(logged) == 1
    assert said in logged[0]


def test_a_node_that_raises_with_a_fill(debugger: sg.Debugger) -> None:
    """An index of 1 is out of range; the program's own replays hold 0."""
    table, out = uses_floats(debugger, 1, 8), uses_floats(debugger, 2, 8)
    picks = guarded(debugger, 2, dtype=torch.int64)
    debugger.padding(picks[1:], "dont_care")
    graph, _ = capture(lambda: out.copy_(table[picks]).shape)
    step(graph, out.tolist, 5)
    assert silent(debugger)
    assert "index 1 is out of bounds" in str(debugger.report(quiet=True))


def test_guards_are_as_they_were_before_they_are_compared_again(
    debugger: sg.Debugger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where a fault ends the experiment early."""
    x, said = uses_floats(debugger, 8), list[object]()
    graph, out = capture(lambda: x + 1)
    plain = HostReruns.run

    def run(reruns: HostReruns, fills: Sequence[Fill] = (), count: int | None = None) -> None:
        plain(reruns, fills, count)
        said.append("filled" if fills else "restored")
        if fills:
            raise RuntimeError("out of memory")

    monkeypatch.setattr(HostReruns, "run", run)
    monkeypatch.setattr(NumpyEngine, "pause", lambda engine, paused: said.append(paused))
    step(graph, out.tolist)
    assert said == [True, "restored", "filled", "restored", False]
    assert "RuntimeError: out of memory" in str(debugger.report(quiet=True))


def test_a_fault_behind_an_experiment_stays_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowgraph.checks.undefined.check.tried", lambda *_: "not a trial")
    with sg.debug(backend="host", undefined=True) as debugger:
        x = uses_floats(debugger, 8)
        graph, out = capture(lambda: x + 1)
        step(graph, out.tolist)
        faults = debugger.report(quiet=True).facts.faults
    assert any("undefined influence: AttributeError" in fault for fault in faults), faults


def test_in_sync_mode_it_is_raised() -> None:
    with sg.debug(backend="host", undefined=True, sync=True) as debugger:
        x, out = uses_floats(debugger, 8), uses_floats(debugger, 8)
        graph, _ = capture(lambda: add_next[(1,)](out, x, 8, 1, BLOCK=16) and None)
        graph.replay()
        out.tolist()
        with pytest.raises(FindingsError, match="SG107"):
            graph.replay()
        graph.replay()
        assert only(debugger.findings).code == "SG107"


def test_as_a_device_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch, undefined=True) as debugger:
        x, out = uses_floats(debugger, 8), uses_floats(debugger, 8)
        debugger.name("m", {"x": x})
        graph, _ = capture(lambda: add_next[(1,)](out, x, 8, 1, BLOCK=16) and None)
        step(graph, lambda: out.sum().item())
        found = only(debugger.findings)
        assert debugger.report(quiet=True).facts.faults == {}
    assert (found.code, found.buffer.name, found.bytes.first, found.bytes.last) == ("SG107", 'm["x"]', 32, 35)


def test_a_kernel_that_was_given_it_may_not_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where loads are not known, a kernel that is given a result is no sure reader."""
    with played(monkeypatch, undefined=True) as debugger:
        monkeypatch.setattr("shadowgraph.graphs.triton.host._noting_loads", 0)
        x, out, copy = (uses_floats(debugger, 8) for _ in range(3))
        graph, _ = capture(lambda: add_next[(1,)](out, x, 8, 1, BLOCK=16) and None)
        step(graph, lambda: add_next[(1,)](copy, out, 7, 1, BLOCK=16))
        assert debugger.findings == ()
        note = only(debugger.notes)
    assert (note.code, note.severity, note.confidence) == ("SG107", "note", "medium")


def test_an_eager_kernel_whose_loads_are_known(debugger: sg.Debugger) -> None:
    x, out, copy = (uses_floats(debugger, 8) for _ in range(3))
    graph, _ = capture(lambda: add_next[(1,)](out, x, 8, 1, BLOCK=16) and None)
    step(
        graph, lambda: add_next[(1,)](copy, out, 6, 1, BLOCK=16)
    )  # reads seven elements, the last one is not among them
    assert silent(debugger)
    step(graph, lambda: add_next[(1,)](copy, out, 7, 1, BLOCK=16), 8)
    assert only(debugger.findings).reader.name == "add_next"


def test_another_graph_reads_the_result(debugger: sg.Debugger) -> None:
    x, out = uses_floats(debugger, 8), uses_floats(debugger, 8)
    first, _ = capture(lambda: add_next[(1,)](out, x, 8, 1, BLOCK=16) and None)
    second, total = capture(lambda: out.sum())
    for _ in range(4):
        first.replay()
        second.replay()
    del total
    found = only(debugger.findings)
    assert (found.graph, found.reader.name, found.reader.node) == (first.model.name, "aten.sum.default", 0)


def test_what_is_read_behind_the_last_replay(debugger: sg.Debugger) -> None:
    """An experiment before any read looks at all results; it is told of once some of them are read."""
    graph, out, _kept = skipping(debugger, 2, 3, 0, 0)
    debugger.name("out", {"rows": out})
    step(graph, lambda: None, 3)
    assert tried(debugger)
    assert silent(debugger), "nothing was read"
    out[:2].tolist()
    debugger.check()
    assert silent(debugger), "nothing of it that depends"
    out[2:].sum()
    debugger.check()
    found = only(debugger.findings)
    assert (found.replay, found.reader.name, found.detail.output.name) == (2, "aten.sum.default", 'out["rows"]')
    assert (found.bytes.first, found.bytes.last, found.confidence) == (64, 127, "high")


def test_two_graphs_take_temporary_memory_from_one_pool(debugger: sg.Debugger) -> None:
    """That the other one writes the same bytes does not define them."""
    x, lens = uses_floats(debugger, 4, 8), guarded(debugger, 4)
    lens[:2].fill_(1)

    def body() -> torch.Tensor:
        out = torch.empty(4, 8)
        scale_rows[(4,)](out, x, lens, W=8)
        return out.amax()

    first, one = capture(body)
    second, two = capture(body, pool=first.pool())
    for _ in range(3):
        first.replay()
        one.item()
        second.replay()
        two.item()
    assert {found.graph for found in debugger.findings} == {first.model.name, second.model.name}
    assert {found.code for found in debugger.findings} == {"SG107"}


def test_padding_that_a_product_hides_behind_an_exponential(debugger: sg.Debugger) -> None:
    """A large fill overflows, and infinity times 0 is no 0; garbage of usual size is hidden."""
    x, keep = uses_floats(debugger, 4, 8), uses_floats(debugger, 4, 1)
    keep[:2].fill_(1)
    debugger.padding(x[2:], "dont_care")
    graph, total = capture(lambda: (x.exp() * keep).sum())
    step(graph, total.item)
    assert silent(debugger)
    assert "left out: 3 that show with large values alone" in str(debugger.report(quiet=True))


def test_an_exponential_that_nothing_hides(debugger: sg.Debugger) -> None:
    x = uses_floats(debugger, 4, 8)
    debugger.padding(x[2:], "dont_care")
    graph, total = capture(lambda: x.exp().exp().sum())
    step(graph, total.item)
    assert only(debugger.findings).detail.source == "padding"


def test_padding_that_stays_padding(debugger: sg.Debugger) -> None:
    """Padded rows are made from padded rows, in place, and the padded slot of a cache from them."""
    x, cache = uses_floats(debugger, 4, 8), uses_floats(debugger, 6, 8)
    slots = guarded(debugger, 4, dtype=torch.int64)
    slots[:2].copy_(torch.tensor([3, 4]))
    debugger.padding(x[2:], "dont_care")

    def body() -> torch.Tensor:
        x.mul_(2)
        cache[slots] = x
        return cache[slots[:2]].sum()

    graph, total = capture(body)
    for _ in range(4):
        x[:2].fill_(1)
        graph.replay()
        total.item()
        torch.where(torch.arange(4)[:, None] < 2, x, 0).sum()
    assert silent(debugger)
    assert tried(debugger)


def test_damage_far_away_is_left_to_the_replay(debugger: sg.Debugger) -> None:
    """What an experiment wrote where it must not is restored, so that the replay after it is seen to write it."""
    from shadowgraph.demos.kernels import fill

    table, victim, x = guarded(debugger, 64), guarded(debugger, 16), uses_floats(debugger, 8)
    debugger.name("victim", {"rows": victim})
    debugger.protect(victim)
    far = (victim.data_ptr() - table.data_ptr()) // 4
    place = guarded(debugger, 1)

    def body() -> torch.Tensor:
        fill[(1,)](table, far, 2, 7, BLOCK=64)
        return x + 1

    graph, out = capture(body)
    for count in range(4):
        victim.fill_(place.item() + count)
        graph.replay()
        out.tolist()
    assert tried(debugger)
    seen = {(found.code, found.buffer.name): found.occurrences for found in debugger.findings}
    assert seen["SG102", 'victim["rows"]'] == 4
