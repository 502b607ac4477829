"""Kernel launches at a few microseconds of host time: arguments packed once, the driver called directly."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from shadowgraph.errors import DeviceLostError


def is_device_loss(error: BaseException) -> bool:
    """Whether an exception of torch or cupy says that a CUDA call failed."""
    if isinstance(error, DeviceLostError):
        return True
    kinds = {"AcceleratorError", "CUDARuntimeError", "CUDADriverError"}
    return type(error).__name__ in kinds or (isinstance(error, RuntimeError) and "CUDA error" in str(error))


_Parameter = type[ctypes.c_uint64] | type[ctypes.c_uint32] | type[ctypes.Structure]


class Launcher:
    """One kernel with its argument buffer. Not thread-safe: its owner holds a lock around `set` and `launch`.

    Parameters
    ----------
    function
        A ``CUfunction`` handle, kept loaded by the caller.
    types
        The kernel's parameters in order.

    Attributes
    ----------
    values
        Their storage, read at each launch; a structure's fields are set in place.
    """

    def __init__(self, function: int, types: Sequence[_Parameter]) -> None:
        self._driver: Any = ctypes.CDLL("libcuda.so.1")
        self._launch = self._driver.cuLaunchKernel
        # Without these, ctypes would pass handles as 32-bit integers.
        self._launch.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
        self._function = ctypes.c_void_p(function)
        self.values: list[Any] = [kind() for kind in types]
        addresses = [ctypes.addressof(value) for value in self.values]
        self._arguments = (ctypes.c_void_p * len(addresses))(*addresses)

    @property
    def arguments(self) -> int:
        """Address of the array of pointers to the values, as ``cuLaunchKernel`` and kernel nodes take it."""
        return ctypes.addressof(self._arguments)

    def set(self, values: Sequence[int]) -> None:
        """Give every argument, none of them a structure, its value."""
        for slot, value in zip(self.values, values, strict=True):
            slot.value = value

    def launch(self, blocks: int, threads: int, stream: int) -> None:
        """Queue one launch.

        Raises
        ------
        DeviceLostError
            When the driver refuses it.
        """
        code = self._launch(self._function, blocks, 1, 1, threads, 1, 1, 0, stream, self._arguments, None)
        if code:
            raise DeviceLostError(f"the CUDA driver refuses a launch: {self._name(code)}")

    def _name(self, code: int) -> str:
        text = ctypes.c_char_p()
        if self._driver.cuGetErrorName(code, ctypes.byref(text)) or text.value is None:
            return f"error {code}"
        return f"{text.value.decode()} ({code})"
