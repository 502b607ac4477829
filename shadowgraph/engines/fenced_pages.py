"""Memory of a device with nothing mapped behind it, from the driver's virtual memory management.

Called under the allocator's lock, in the thread that allocates. Nothing is unmapped before the process ends: a stale
pointer of a captured graph stays harmless to follow, as in slabs.
"""

from __future__ import annotations

from typing import Any

from shadowgraph.common.compat import require_driver
from shadowgraph.engines.device import Device

UNDER_MPS = (
    "CUDA MPS is in use, where an access past a fence ends all programs that share the device; fence_anyway lays "
    "fences all the same"
)
UNSUPPORTED = "the device has no virtual memory management"
_ALIGNMENT = 16  # bytes: of the widest loads, and of what kernels assume


class DevicePages:
    """Mappings of one device, each with a reserved granule behind it that is never mapped."""

    def __init__(self, device: Device) -> None:
        self._device, self._cuda = device, require_driver()
        self._location = self._properties()
        names = self._cuda.CUdevice_attribute
        managed = "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"
        with device.context.current():
            self._supported = bool(self._attribute(getattr(names, managed, None)))
            self._under_mps = bool(self._attribute(getattr(names, "CU_DEVICE_ATTRIBUTE_MPS_ENABLED", None)))
            self.granule = self._granularity() if self._supported else 1

    def refusal(self, anyway: bool) -> str | None:
        if not self._supported:
            return UNSUPPORTED
        return UNDER_MPS if self._under_mps and not anyway else None

    def alignment(self, itemsize: int) -> int:
        return _ALIGNMENT

    def map(self, nbytes: int) -> int:
        with self._device.context.current():
            start = int(self._call("cuMemAddressReserve", nbytes + self.granule, 0, 0, 0))
            try:
                self._back(start, nbytes)
            except MemoryError:
                self._call("cuMemAddressFree", start, nbytes + self.granule)
                raise
        self._device.lasting.append((start, start + nbytes))
        return start

    def _back(self, start: int, nbytes: int) -> None:
        """Map fresh memory at an address."""
        handle = self._call("cuMemCreate", nbytes, self._location, 0)
        try:
            self._call("cuMemMap", start, nbytes, 0, handle, 0)
        finally:
            self._call("cuMemRelease", handle)  # the mapping keeps the memory
        access = self._cuda.CUmemAccessDesc()
        access.location = self._location.location
        access.flags = self._cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        try:
            self._call("cuMemSetAccess", start, nbytes, [access], 1)
        except MemoryError:
            self._call("cuMemUnmap", start, nbytes)
            raise

    def _properties(self) -> Any:
        cuda = self._cuda
        found = cuda.CUmemAllocationProp()
        found.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        found.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        found.location.id = self._device.index
        return found

    def _granularity(self) -> int:
        smallest = self._cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        return int(self._call("cuMemGetAllocationGranularity", self._location, smallest))

    def _attribute(self, which: Any) -> int:
        if which is None:
            return 0
        error, value = self._cuda.cuDeviceGetAttribute(which, self._device.index)
        return 0 if int(error) else int(value)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call the driver; what it returns beside the error, if anything."""
        error, *rest = getattr(self._cuda, name)(*arguments)
        if int(error):
            raise MemoryError(f"{name}: {getattr(error, 'name', error)}")
        return rest[0] if rest else None
