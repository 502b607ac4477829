"""The calls of the driver that make fenced memory of a device, against a driver that only keeps books."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shadowgraph.engines import fenced_pages
from shadowgraph.engines.device import Device
from shadowgraph.engines.fenced_pages import UNDER_MPS, UNSUPPORTED, DevicePages
from shadowgraph.monitor.backends import prepare_fences
from shadowgraph.tracking.allocator import HostAllocator
from shadowgraph.tracking.fences import FencedSpans

GRANULE = 2 << 20
OUT_OF_MEMORY = 2


class Result(int):
    """A ``CUresult``."""

    @property
    def name(self) -> str:
        return {0: "CUDA_SUCCESS", OUT_OF_MEMORY: "CUDA_ERROR_OUT_OF_MEMORY"}[int(self)]


class Attributes(SimpleNamespace):
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102
    CU_DEVICE_ATTRIBUTE_MPS_ENABLED = 133


class Driver:
    """The part of ``cuda.bindings.driver`` that is used."""

    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED=1)
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE=1)
    CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_MINIMUM=0)
    CUmemAccess_flags = SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE=3)
    CUdevice_attribute = Attributes

    def __init__(self, fails: str = "", mps: int = 0, supported: int = 1) -> None:
        self.fails, self.answers = fails, {133: mps, 102: supported}
        self.next, self.reserved, self.handles = 1 << 40, dict[int, int](), set[int]()
        self.mapped, self.open = dict[int, int](), set[int]()

    @staticmethod
    def CUmemAllocationProp() -> SimpleNamespace:
        return SimpleNamespace(location=SimpleNamespace())

    @staticmethod
    def CUmemAccessDesc() -> SimpleNamespace:
        return SimpleNamespace()

    def _ends(self, name: str, *values: Any) -> tuple[Any, ...]:
        return (Result(OUT_OF_MEMORY),) if name == self.fails else (Result(0), *values)

    def cuDeviceGetAttribute(self, which: int, device: int) -> tuple[Any, ...]:
        return Result(0), self.answers[which]

    def cuMemGetAllocationGranularity(self, prop: Any, flag: int) -> tuple[Any, ...]:
        assert (prop.type, prop.location.type, prop.location.id, flag) == (1, 1, 3, 0)
        return Result(0), GRANULE

    def cuMemAddressReserve(self, nbytes: int, alignment: int, address: int, flags: int) -> tuple[Any, ...]:
        start, self.next = self.next, self.next + nbytes
        self.reserved[start] = nbytes
        return self._ends("cuMemAddressReserve", start)

    def cuMemAddressFree(self, start: int, nbytes: int) -> tuple[Any, ...]:
        assert self.reserved.pop(start) == nbytes
        return (Result(0),)

    def cuMemCreate(self, nbytes: int, prop: Any, flags: int) -> tuple[Any, ...]:
        if self.fails == "cuMemCreate":
            return self._ends("cuMemCreate")
        self.handles.add(len(self.handles) + 1)
        return Result(0), len(self.handles)

    def cuMemMap(self, start: int, nbytes: int, offset: int, handle: int, flags: int) -> tuple[Any, ...]:
        assert handle in self.handles
        self.mapped[start] = nbytes
        return self._ends("cuMemMap")

    def cuMemUnmap(self, start: int, nbytes: int) -> tuple[Any, ...]:
        assert self.mapped.pop(start) == nbytes
        return (Result(0),)

    def cuMemRelease(self, handle: int) -> tuple[Any, ...]:
        self.handles.remove(handle)
        return (Result(0),)

    def cuMemSetAccess(self, start: int, nbytes: int, access: list[Any], count: int) -> tuple[Any, ...]:
        assert (access[0].location.id, access[0].flags, count) == (3, 3, 1)
        self.open.add(start)
        return self._ends("cuMemSetAccess")


class Context:
    @contextmanager
    def current(self) -> Iterator[None]:
        yield


def pages_of(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> tuple[DevicePages, Any]:
    monkeypatch.setattr(fenced_pages, "require_driver", lambda: driver)
    device = SimpleNamespace(index=3, context=Context(), lasting=[])
    return DevicePages(cast(Device, device)), device


def spans_of(allocator: HostAllocator) -> FencedSpans:
    assert allocator.fences is not None
    return allocator.fences


def test_nothing_is_mapped_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    pages, device = pages_of(driver, monkeypatch)
    spans = FencedSpans(pages, 64 << 20)
    address = spans.take(1024)
    ((start, nbytes),) = driver.mapped.items()
    assert (nbytes, address + 1024) == (GRANULE, start + GRANULE)
    assert driver.reserved == {start: 2 * GRANULE}
    assert spans.beyond() == [(start + GRANULE, start + 2 * GRANULE)]
    assert driver.open == {start}
    assert device.lasting == [(start, start + GRANULE)]
    assert not driver.handles  # the mapping keeps the memory
    assert spans.take(3 << 20) % 16 == 0
    assert spans.mapped == 3 * GRANULE
    assert spans.room(5 * 4, 4) == 32


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemMap", "cuMemSetAccess"])
def test_what_fails_leaves_nothing_behind(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(fails=call)
    pages, device = pages_of(driver, monkeypatch)
    with pytest.raises(MemoryError, match=f"{call}: CUDA_ERROR_OUT_OF_MEMORY"):
        FencedSpans(pages, 64 << 20).take(1024)
    assert (driver.reserved, driver.handles, device.lasting) == ({}, set(), [])


def test_what_cannot_be_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    pages, _ = pages_of(Driver(fails="cuMemAddressReserve"), monkeypatch)
    with pytest.raises(MemoryError, match="cuMemAddressReserve"):
        pages.map(GRANULE)


@pytest.mark.parametrize(
    ("driver", "reason", "forced"), [(Driver(mps=1), UNDER_MPS, None), (Driver(supported=0), UNSUPPORTED, UNSUPPORTED)]
)
def test_what_is_refused(driver: Driver, reason: str, forced: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    pages, _ = pages_of(driver, monkeypatch)
    assert (pages.refusal(anyway=False), pages.refusal(anyway=True)) == (reason, forced)
    allocator = HostAllocator()
    prepare_fences(allocator, lambda: pages, 64 << 20, anyway=False)
    with pytest.raises(MemoryError) as caught:
        spans_of(allocator).take(1024)
    assert str(caught.value) == reason
    assert not driver.reserved


def test_each_debugger_decides_for_itself_whether_fences_are_laid_under_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(mps=1)
    pages, device = pages_of(driver, monkeypatch)
    allocator = HostAllocator()

    def begin(anyway: bool) -> FencedSpans:
        prepare_fences(allocator, lambda: pages, 64 << 20, anyway)
        return spans_of(allocator)

    with pytest.raises(MemoryError):
        begin(anyway=False).take(1024)
    spans = begin(anyway=True)
    address = spans.take(1024)
    spans.give(address, 1024)
    spans.settle(lambda: True)
    with pytest.raises(MemoryError):  # the span is mapped and free, yet lies before a fence
        begin(anyway=False).take(1024)
    assert begin(anyway=True).take(1024) == address
    assert (begin(anyway=True), len(driver.mapped), driver.open) == (spans, 1, set(driver.mapped))
    assert len(device.lasting) == 1


def test_a_driver_that_knows_no_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    driver.CUdevice_attribute = SimpleNamespace(  # type: ignore[assignment]
        CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED=102
    )
    pages, _ = pages_of(driver, monkeypatch)
    assert pages.refusal(anyway=False) is None
