"""Copies of host memory: nodes of a graph over a driver that is played, and what a capture's mode notes of storages."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shadowgraph.common.finalizer_safe_lock import run_deferred
from shadowgraph.engines.context import PrimaryContext
from shadowgraph.graphs.cuda.capture import CaptureMode
from shadowgraph.graphs.cuda.driver import Driver, MemcpyParameters
from shadowgraph.graphs.cuda.host_copies import host_copies
from shadowgraph.graphs.dispatch.host_copies import Place, copies_begin
from shadowgraph.graphs.dispatch.schemas import schema_of
from shadowgraph.model.buffers import Buffer, Ledger
from shadowgraph.model.graphs import Graph
from shadowgraph.model.host_copies import HostBlock, HostCopy, HostKind
from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking.host_memory import used_by_capture

HOST, DEVICE, ARRAY, UNIFIED = 1, 2, 3, 4  # CUmemorytype
PINNED, LATER, GPU, UNKNOWN, MANAGED = 0x10000, 0x20000, 0x7F0000000000, 0x30000, 0x40000
KERNEL, MEMCPY = 0, 1
Side = tuple[int, int]  # type and address


class Library:
    """What of the driver's library is asked: a graph of kernels and copies, and memory by address."""

    def __init__(self, *copies: tuple[Side, Side] | None, width: int = 64, height: int = 1, pitch: int = 0) -> None:
        self.copies, self.width, self.height, self.pitch = copies, width, height, pitch

    def cuGraphGetNodes(self, graph: Any, nodes: Any, count: Any) -> int:
        if nodes is None:
            count._obj.value = len(self.copies)
        else:
            nodes[: len(self.copies)] = range(100, 100 + len(self.copies))
        return 0

    def cuGraphNodeGetType(self, node: Any, kind: Any) -> int:
        kind._obj.value = KERNEL if self.copies[node.value - 100] is None else MEMCPY
        return 0

    def cuGraphMemcpyNodeGetParams(self, node: Any, held: Any) -> int:
        copy = self.copies[node.value - 100]
        assert copy is not None
        assert isinstance(held._obj, MemcpyParameters)
        for side, (kind, address) in zip(("src", "dst"), copy, strict=True):
            setattr(held._obj, f"{side}_type", kind)
            setattr(held._obj, f"{side}_{'host' if kind == HOST else 'device'}", address)
            setattr(held._obj, f"{side}_pitch", self.pitch)
        held._obj.width, held._obj.height, held._obj.depth = self.width, self.height, 1
        return 0

    def cuPointerGetAttribute(self, value: Any, attribute: int, address: Any) -> int:
        base = address.value & ~0xFFF
        if base not in (PINNED, LATER, GPU, MANAGED):
            return 1
        value._obj.value = {
            2: DEVICE if base == GPU else HOST,
            7: {PINNED: 7, LATER: 8}.get(base, 0),
            8: int(base == MANAGED),
        }[attribute]
        return 0


class Context(PrimaryContext):
    """One that is always current."""

    def __init__(self, library: Library) -> None:
        self._calls = library

    @contextmanager
    def current(self) -> Iterator[None]:
        yield


def read(library: Library) -> tuple[HostCopy, ...]:
    return host_copies(Driver(library, library), 1, Context(library))


def test_copies_in_both_directions_among_other_nodes() -> None:
    library = Library(
        None,
        ((HOST, PINNED), (DEVICE, GPU)),
        ((DEVICE, GPU), (DEVICE, GPU + 64)),
        None,
        ((DEVICE, GPU), (HOST, LATER + 8)),
    )
    into, out = read(library)
    gpu = ByteRange(GPU, GPU + 64)
    assert into == HostCopy(1, ByteRange(PINNED, PINNED + 64), gpu, False, HostBlock(HostKind.PINNED, 7))
    assert out == HostCopy(4, ByteRange(LATER + 8, LATER + 72), gpu, True, HostBlock(HostKind.PINNED, 8))


def test_pageable_memory_and_addresses_of_any_kind() -> None:
    (copy,) = read(Library(((HOST, UNKNOWN), (DEVICE, GPU))))
    assert copy.block == HostBlock(HostKind.PAGEABLE)
    (copy,) = read(Library(((UNIFIED, PINNED), (UNIFIED, GPU))))
    assert (copy.to_host, copy.block) == (False, HostBlock(HostKind.PINNED, 7))
    assert read(Library(((UNIFIED, UNKNOWN), (UNIFIED, GPU)))) == (), "it may be anything"
    assert read(Library(((UNIFIED, MANAGED), (UNIFIED, GPU)))) == ()
    assert read(Library(((ARRAY, 0), (DEVICE, GPU)))) == ()
    assert read(Library(((HOST, PINNED), (HOST, LATER)))) == ()


def test_rows_with_gaps() -> None:
    (copy,) = read(Library(((HOST, PINNED), (DEVICE, GPU)), width=16, height=3, pitch=32))
    assert (copy.host.nbytes, copy.flat) == (80, False)
    (copy,) = read(Library(((HOST, PINNED), (DEVICE, GPU)), width=32, height=3, pitch=32))
    assert (copy.host.nbytes, copy.flat) == (96, True)


# -- what a capture's mode notes of host memory ------------------------------------------------------------------------


@pytest.fixture
def mode() -> CaptureMode:
    return CaptureMode(Graph(5, "graph#5"), Ledger(), isolate=False)


def noted(mode: CaptureMode, tensor: torch.Tensor) -> Buffer | None:
    where = ByteRange(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)
    return used_by_capture(mode._ledger, where, 0, mode._ledger.next_serial())


def test_the_memory_on_both_sides_of_copies_is_noted(mode: CaptureMode) -> None:
    tensors = [torch.zeros(4) for _ in range(4)]
    mode.begin()
    try:
        tensors[0].copy_(tensors[1], non_blocking=True)
        made = tensors[2].to(torch.float64)
        tensors[3].add_(1)
    finally:
        mode.end()
        mode.finish()
    for tensor in (*tensors[:3], made):
        buffer = noted(mode, tensor)
        assert buffer is not None
        graph = 5 if tensor is made else None
        assert (buffer.nbytes, buffer.owned, buffer.graph) == (tensor.nbytes, True, graph)
    assert noted(mode, tensors[3]) is None
    assert len(mode._ledger) == 0, "host memory is in a ledger of its own"


def test_memory_of_another_library_does_not_end_with_its_storage(mode: CaptureMode) -> None:
    borrowed = torch.frombuffer(bytearray(16), dtype=torch.float32)
    mode.begin()
    try:
        borrowed.copy_(torch.zeros(4))
    finally:
        mode.end()
        mode.finish()
    assert cast(Buffer, noted(mode, borrowed)).owned is False


@pytest.mark.parametrize("isolate", [False, True])
def test_a_temporary_of_the_capture_ends_with_it(isolate: bool) -> None:
    mode, target = CaptureMode(Graph(5, "graph#5"), Ledger(), isolate=isolate), torch.zeros(3, dtype=torch.int64)
    mode.begin()
    try:
        source = torch.tensor([1, 2, 3])
        where = ByteRange(source.data_ptr(), source.data_ptr() + source.nbytes)
        target.copy_(source, non_blocking=True)
        del source
    finally:
        mode.end()
        mode.finish()
        mode.drop()
    gc.collect()
    run_deferred()
    buffer = used_by_capture(mode._ledger, where, 0, mode._ledger.next_serial())
    assert buffer is not None
    assert (buffer.alive, buffer.owned, buffer.graph) == (False, True, 5)


def test_a_mode_of_the_program_sees_no_operator_of_ours() -> None:
    seen = []

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(str(func))
            return func(*args, **kwargs or {})

    source, place = torch.zeros(4), Place("cuda", 0, "cuda:0", Ledger())
    given = {"device": torch.device("cuda"), "non_blocking": True}
    with Seeing():
        assert copies_begin(schema_of(torch.ops.aten._to_copy.default), (source,), given, place) == []
    assert not seen


def test_the_parameters_of_a_copy_are_laid_out_as_the_header_says() -> None:
    offsets = {name: getattr(MemcpyParameters, name).offset for name in ("src_type", "src_host", "dst_type", "width")}
    assert offsets == {"src_type": 32, "src_host": 40, "dst_type": 120, "width": 176}
    assert ctypes.sizeof(MemcpyParameters) == 200
