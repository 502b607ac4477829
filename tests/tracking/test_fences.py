"""Buffers with fences in this process: where they end, what they keep of a static buffer, and their memory."""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import shadowgraph as sg
from shadowgraph import HostGraph, host_graph
from shadowgraph.common.finalizer_safe_lock import run_deferred
from shadowgraph.engines.fenced_pages import UNDER_MPS
from shadowgraph.tracking.fences import NO_ROOM, FencedSpans, HostPages

HERE = f"in:{__name__}:made"


def made(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


@pytest.fixture
def debugger() -> Iterator[sg.Debugger]:
    with sg.debug(backend="host", fence=HERE) as debugger:
        yield debugger
    assert not debugger.facts().faults


def buffer_of(debugger: sg.Debugger, tensor: torch.Tensor) -> sg.Buffer:
    (found,) = [each for each in debugger.buffers if each.start == tensor.data_ptr()]
    return found


def is_mapped(address: int) -> bool:
    """Whether a page of this process may be read."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last, access = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+)", line).groups()  # type: ignore[union-attr]
        if int(first, 16) <= address < int(last, 16):
            return "r" in access
    return False


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bfloat16, torch.complex128])
@pytest.mark.parametrize("count", [1, 3, 1024, 5000])
def test_the_byte_after_the_end_is_not_mapped(count: int, dtype: torch.dtype, debugger: sg.Debugger) -> None:
    tensor = made(count, dtype=dtype)
    end = tensor.data_ptr() + tensor.nbytes
    assert end % mmap.PAGESIZE == 0
    assert is_mapped(end - 1)
    assert not is_mapped(end)
    assert tensor.data_ptr() % tensor.element_size() == 0
    buffer = buffer_of(debugger, tensor)
    assert (buffer.fence, buffer.tail_guard, buffer.guarded, buffer.exact) == (0, 0, True, True)
    assert buffer.head_guard >= 256


def test_single_bytes_keep_a_guard_up_to_the_fence(debugger: sg.Debugger) -> None:
    tensor = made(13, dtype=torch.uint8)
    buffer = buffer_of(debugger, tensor)
    assert (buffer.fence, buffer.tail_guard) == (3, 3)
    assert not is_mapped(tensor.data_ptr() + 16)
    raw = (ctypes.c_uint8 * 1).from_address(tensor.data_ptr() + 14)
    raw[0] = 7
    (found,) = debugger.check()
    assert (found.code, found.bytes.first, found.buffer.nbytes) == ("SG101", 14, 13)


def test_only_what_the_place_allocates(debugger: sg.Debugger) -> None:
    other = torch.zeros(5)
    with debugger.guard():
        guarded = torch.zeros(5)
    assert all(each.fence == -1 for each in debugger.buffers)
    del other, guarded
    copy = made(3).clone()
    assert copy.tolist() == [0, 0, 0]
    (fence,) = debugger.facts().fences
    assert (fence.nbytes, fence.line, fence.slack) == (12, made.__code__.co_firstlineno + 1, 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.tensor([1, 2, 3]),
        lambda: torch.arange(6, dtype=torch.int32),
        lambda: torch.ones(4).to(torch.float64),
        lambda: torch.cat([torch.ones(3), torch.ones(2)]),
        lambda: torch.full((3, 5), 7),
    ],
)  # fmt: skip
def test_what_allocates(make: object) -> None:
    with sg.debug(backend="host", fence=f"in:{__name__}:call") as debugger:
        tensor, plain = call(make), make()  # type: ignore[operator]
        assert buffer_of(debugger, tensor).fence == 0
    assert tensor.tolist() == plain.tolist()
    assert not debugger.facts().faults


def call(make: object) -> torch.Tensor:
    return make()  # type: ignore[operator,no-any-return]


def test_it_is_a_static_buffer_as_any(debugger: sg.Debugger) -> None:
    ids = made(4)
    graph = HostGraph()
    with host_graph(graph):
        out = ids + 1
    ids.fill_(5)
    graph.replay()
    assert out.tolist() == [6, 6, 6, 6]
    model = debugger.graph(graph)
    assert buffer_of(debugger, ids).serial in {buffer.serial for buffer in debugger.buffers if buffer.captured}
    assert model.replays == 1
    assert debugger.coverage().exact == debugger.coverage().written
    assert debugger.check() == ()


def test_a_tensor_that_grows_leaves_its_fence(debugger: sg.Debugger) -> None:
    tensor = made(4)
    tensor.fill_(3)
    tensor.resize_(5000)
    assert tensor[:4].tolist() == [3, 3, 3, 3]
    tensor.fill_(1)
    assert int(tensor.sum()) == 5000


def test_a_parameter_keeps_its_fence() -> None:
    with sg.debug(backend="host", fence=HERE, guard_eager="auto") as debugger:
        weight = nn.Parameter(made(6, dtype=torch.float32))
        assert buffer_of(debugger, weight).fence == 0
    assert not debugger.facts().faults


def test_freed_memory_is_used_again_and_stays_mapped(debugger: sg.Debugger) -> None:
    tensor = made(100)
    address, spans = tensor.data_ptr(), debugger.monitor.allocator.fences
    assert spans is not None
    mapped = spans.mapped
    for _ in range(20):
        del tensor
        run_deferred()
        tensor = made(100)
        assert is_mapped(tensor.data_ptr())
        assert is_mapped(address)
    assert spans.mapped <= mapped + 2 * mmap.PAGESIZE


def test_no_room_is_told_and_a_guard_stands_instead() -> None:
    with sg.debug(backend="host", fence=HERE) as before:
        limit = before.monitor.allocator.fences
        assert limit is not None
        used = limit.mapped
    with sg.debug(backend="host", fence=HERE, guard_memory=used + (64 << 10)) as debugger:
        tensor = made(1 << 20)
        assert buffer_of(debugger, tensor).fence == -1
    assert debugger.facts().stepped_aside == {f"fences not laid: {NO_ROOM}": 1}
    report = str(debugger.report(quiet=True))
    assert f"limit: no fence was laid: {NO_ROOM}" in report
    assert "nothing was allocated" not in report


@pytest.mark.parametrize("guard_eager", ["off", "auto"])
def test_what_is_too_large_for_a_fence_stays_where_it_is(guard_eager: str) -> None:
    with sg.debug(backend="host", fence=HERE, guard_memory=1 << 20, guard_eager=guard_eager) as debugger:
        tensor = made(18 << 20)
        assert tensor.untyped_storage().resizable()  # torch's own
    assert debugger.facts().stepped_aside == {f"fences not laid: {NO_ROOM}": 1}


def test_nothing_allocated_there_is_a_line_of_the_report() -> None:
    with sg.debug(backend="host", fence="in:nowhere:f") as debugger:
        torch.zeros(3)
    assert "limit: no fence was laid: nothing was allocated from in:nowhere:f" in str(debugger.report(quiet=True))


def test_a_refusal_is_a_line_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostPages, "refusal", lambda pages, anyway: UNDER_MPS)
    with sg.debug(backend="host", fence=HERE) as debugger:
        tensor = made(4)
        assert buffer_of(debugger, tensor).fence == -1
    report = str(debugger.report(quiet=True))
    assert f"limit: no fence was laid: {UNDER_MPS}" in " ".join(report.split())
    assert "nothing was allocated" not in report


def test_a_line_of_a_file() -> None:
    line = made.__code__.co_firstlineno + 1
    for where in (f"{__file__}:{line}", f"{Path(__file__).name}:{line}", f"tracking/{Path(__file__).name}:{line}"):
        with sg.debug(backend="host", fence=where) as debugger:
            assert buffer_of(debugger, made(3)).fence == 0
    with sg.debug(backend="host", fence=f"not_{Path(__file__).name}:{line}") as debugger:
        kept = made(3)
        assert debugger.monitor.context.ledger.at(kept.data_ptr()) is None


@pytest.mark.parametrize("where", ["", "somewhere", "in:module", "file.py:", "file.py:0", "in:a:b,c"])
def test_places_that_do_not_fit(where: str) -> None:
    with pytest.raises(sg.UsageError, match="fence must be in:module:qualname or FILE:LINE"):
        sg.Settings(fence=where)


def test_spans_end_where_nothing_is_mapped() -> None:
    spans = FencedSpans(HostPages(), 1 << 20)
    first, second = spans.take(1000), spans.take(5000)
    for start, nbytes in ((first, 1000), (second, 5000)):
        assert spans.holds(start)
        assert not spans.holds(start + nbytes)
        assert not is_mapped(start + nbytes)
    spans.give(first, 1000)
    assert spans.needs_settling(1000)
    spans.settle(lambda: True)
    assert spans.take(1000) == first
    assert sorted(edge for edge, _ in spans.beyond()) == sorted((first + 1000, second + 5000))
    with pytest.raises(MemoryError, match=NO_ROOM):
        spans.take(2 << 20)
