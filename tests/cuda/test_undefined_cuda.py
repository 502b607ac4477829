"""SG107 on real graphs: results that depend on bytes that must not matter, and programs that run as without."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers_cuda import capture, guarded, only

import shadowgraph as sg

pytestmark = [
    pytest.mark.gpu,
    # A process that drives several devices runs no graph twice: a kernel of another one might wait for this one.
    pytest.mark.skipif(torch.cuda.device_count() > 1, reason="needs a process that sees one GPU"),
]


@pytest.fixture(autouse=True)
def warm() -> None:
    """Compile every kernel: it should not happen during a capture."""
    from support.undefined_kernels import add_next, append_row, masked_next, my_all_reduce, scale_rows, sum_rows

    x, y = torch.ones(64, device="cuda"), torch.ones(64, device="cuda")
    i = torch.ones(64, dtype=torch.int32, device="cuda")
    for half in (torch.float32, torch.bfloat16):
        scale_rows[(1,)](torch.ones(64, dtype=half, device="cuda"), x, i, W=8)
    add_next[(1,)](y, x, 8, 1, BLOCK=16)
    add_next[(1,)](y, x, 8, 2, BLOCK=16)
    masked_next[(1,)](y, x, 8, BLOCK=16)
    append_row[(1,)](y, x, i, W=8)
    my_all_reduce[(1,)](y, x, BLOCK=8)
    sum_rows[(1,)](y, x, i)
    torch.cuda.synchronize()


@pytest.fixture(params=["isolate", "faithful"])
def watching(request: Any) -> Iterator[Any]:
    with sg.debug(backend="cuda", layout=request.param, undefined=True, infer=False) as debugger:
        yield debugger
        assert debugger.facts().faults == {}


@pytest.fixture
def isolating() -> Iterator[Any]:
    with sg.debug(backend="cuda", layout="isolate", undefined=True, infer=False) as debugger:
        yield debugger
        assert debugger.facts().faults == {}


def floats(debugger: Any, *shape: int) -> torch.Tensor:
    return guarded(debugger, *shape, dtype=torch.float32)


def tried(debugger: Any) -> bool:
    return "SG107) was tried" in str(debugger.report(quiet=True))


def rows(debugger: Any, *lens: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, lengths = floats(debugger, len(lens), 8), guarded(debugger, len(lens))
    x.fill_(1.5)
    lengths.copy_(torch.tensor(lens))
    return x, lengths


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_kernel_skips_rows_that_a_maximum_reads(isolating: Any, dtype: torch.dtype) -> None:
    from support.undefined_kernels import scale_rows

    x, lens = rows(isolating, 3, 0, 2, 5)

    def body() -> torch.Tensor:
        out = torch.empty(4, 8, dtype=dtype, device="cuda")
        scale_rows[(4,)](out, x, lens, W=8)
        return out.abs().amax().float() / 448

    graph, scale = capture(body)
    for _ in range(5):
        graph.replay()
        scale.item()
    found = only(isolating.check())
    size = dtype.itemsize
    assert (found.code, found.severity, found.replay) == ("SG107", "error", 2)
    assert (found.bytes.first, found.bytes.last) == (8 * size, 16 * size - 1)
    assert (found.buffer.role, found.detail.source, found.detail.computed) == ("pool", "unwritten", True)
    assert found.culprit.name == "aten.abs.default"
    assert found.culprit.stack[0].function == "body"
    assert found.detail.writer.name == "scale_rows"


def stored(operator: str, out: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Store rows at places, by an operator that skips all others."""
    if operator == "index_copy_":
        return out.index_copy_(0, at, x)
    if operator == "put_":
        return out.put_(at[:, None] * 8 + torch.arange(8, device="cuda"), x)
    return out.index_put_((at,), x, accumulate=operator == "accumulated")


def at_rows(debugger: Any) -> tuple[torch.Tensor, torch.Tensor]:
    x, at = floats(debugger, 3, 8), guarded(debugger, 3, dtype=torch.int64)
    x.fill_(1.5)
    at.copy_(torch.tensor([0, 1, 3]))
    return x, at


@pytest.mark.parametrize("operator", ["index_copy_", "index_put_", "put_"])
def test_an_operator_skips_a_row_that_a_maximum_reads(isolating: Any, operator: str) -> None:
    x, at = at_rows(isolating)
    stored(operator, torch.empty(4, 8, device="cuda"), at, x).abs().amax()  # kernels are loaded
    graph, most = capture(lambda: stored(operator, torch.empty(4, 8, device="cuda"), at, x).abs().amax() / 448)
    for _ in range(6):
        graph.replay()
        most.item()
    found = only(isolating.check())
    assert (found.code, found.severity) == ("SG107", "error")
    assert (found.bytes.first, found.bytes.last) == (64, 95)


@pytest.mark.parametrize("operator", ["index_copy_", "index_put_", "put_", "accumulated"])
def test_a_row_that_was_filled_before_an_operator_skips_it(watching: Any, operator: str) -> None:
    x, at = at_rows(watching)
    stored(operator, torch.zeros(4, 8, device="cuda"), at, x).abs().amax()  # kernels are loaded
    graph, most = capture(lambda: stored(operator, torch.zeros(4, 8, device="cuda"), at, x).abs().amax())
    for _ in range(6):
        graph.replay()
        assert most.item() == 1.5
    assert watching.check() == ()
    assert tried(watching)


def test_its_fixed_twin(watching: Any) -> None:
    from support.undefined_kernels import scale_rows

    x, lens = rows(watching, 3, 0, 2, 5)

    def body() -> torch.Tensor:
        out = torch.zeros(4, 8, device="cuda")
        scale_rows[(4,)](out, x, lens, W=8)
        return out.abs().amax()

    graph, scale = capture(body)
    for _ in range(5):
        graph.replay()
        assert scale.item() == 3
    assert watching.check() == ()
    assert tried(watching)


@pytest.mark.parametrize("extra", [1, 2])
def test_a_load_past_the_end(watching: Any, extra: int) -> None:
    from support.undefined_kernels import add_next

    x, out = floats(watching, 8), floats(watching, 8)
    x.copy_(torch.arange(8.0))
    watching.name("m", {"x": x, "out": out})
    graph, _ = capture(lambda: add_next[(1,)](out, x, 8, extra, BLOCK=16) and None)
    for _ in range(4):
        graph.replay()
        out.cpu()
    found = only(watching.check())
    assert (found.code, found.buffer.name, found.replay, found.bytes.side) == ("SG107", 'm["x"]', 2, "after")
    assert (found.bytes.first, found.bytes.last) == (32, 32 + 4 * extra - 1)
    assert (found.culprit.name, found.detail.output.name) == ("add_next", 'm["out"]')


def test_its_value_is_masked_by_a_product(watching: Any) -> None:
    from support.undefined_kernels import masked_next

    x, out = floats(watching, 8), floats(watching, 8)
    graph, _ = capture(lambda: masked_next[(1,)](out, x, 8, BLOCK=16) and None)
    for _ in range(4):
        graph.replay()
        out.cpu()
    assert watching.check() == ()
    assert tried(watching)


@pytest.mark.parametrize("planned", [2, 4])
def test_a_plan_for_fewer_rows_than_the_graph_has(watching: Any, planned: int) -> None:
    from support.undefined_kernels import sum_rows

    starts, x, out = guarded(watching, 9), floats(watching, 8), floats(watching, 4)
    starts.copy_(torch.arange(9))
    graph, _ = capture(lambda: sum_rows[(4,)](out, x, starts[: planned + 1]) and None)
    for _ in range(3):
        graph.replay()
        out.cpu()
    if planned == 4:
        assert watching.check() == ()
        return
    found = only(watching.check())
    assert (found.code, found.bytes.side, found.detail.source) == ("SG107", "slack", "slack")
    assert (found.bytes.first, found.bytes.last, found.culprit.name) == (12, 19, "sum_rows")


def test_a_kv_cache_that_grows(watching: Any) -> None:
    from support.undefined_kernels import append_row

    cache, row, at = floats(watching, 16, 8), floats(watching, 8), guarded(watching, 1)

    def body() -> torch.Tensor:
        append_row[(1,)](cache, row, at, W=8)
        return cache.sum()

    graph, total = capture(body)
    for _ in range(6):
        graph.replay()
        total.item()
    assert watching.check() == ()
    assert tried(watching)
    assert at.item() == 6, "only the replays count"


def test_dropout_draws_the_same_numbers() -> None:
    runs = []
    for undefined in (False, True):
        torch.manual_seed(3)
        with sg.debug(backend="cuda", undefined=undefined, infer=False) as debugger:
            x = floats(debugger, 4, 64)
            x.fill_(1)

            def body(x: torch.Tensor = x) -> torch.Tensor:
                scratch = torch.empty(4, 64, device="cuda")
                scratch.copy_(x)
                return torch.nn.functional.dropout(scratch, 0.5)

            graph, out = capture(body)
            seen = []
            for _ in range(5):
                graph.replay()
                seen.append(out.tolist())
            assert debugger.check() == ()
            assert tried(debugger) == undefined
        runs.append(seen)
    assert runs[0] == runs[1]


@pytest.mark.parametrize("why", ["communicates", "writes host memory", "no room"])
def test_what_must_not_run_again(why: str) -> None:
    from support.undefined_kernels import my_all_reduce

    options = {"locate_memory": 64} if why == "no room" else {}
    with sg.debug(backend="cuda", undefined=True, infer=False, **options) as debugger:
        x, out = floats(debugger, 8), floats(debugger, 8)
        pinned = torch.zeros(8).pin_memory()

        def body() -> None:
            if why == "communicates":
                my_all_reduce[(1,)](out, x, BLOCK=8)
            else:
                out.copy_(x)
            if why == "writes host memory":
                pinned.copy_(out, non_blocking=True)

        graph, _ = capture(body)
        for _ in range(4):
            graph.replay()
            out.cpu()
        assert debugger.check() == ()
        text = str(debugger.report(quiet=True))
    said = {
        "communicates": "others take part in its replays",
        "writes host memory": "it may write memory of the host, or of another device",
        "no room": "there is no room for copies of the",
    }[why]
    assert f"was tried 0 times, with 0 runs of graphs; not with 1 of them, since {said}" in text


def test_damage_is_found_as_without(watching: Any) -> None:
    from helpers_cuda import overflow, warm_kernels

    warm_kernels()
    table, x = guarded(watching, 64), floats(watching, 8)

    def body() -> torch.Tensor:
        overflow(table, 2)
        return x + 1

    graph, out = capture(body)
    for _ in range(5):
        graph.replay()
        out.cpu()
    found = only(watching.check())
    assert (found.code, found.replay, found.past_end) == ("SG101", 1, 8)
    assert tried(watching)
