"""Kernel launches at a few microseconds of host time: arguments packed once, the driver called directly.

A `Launcher` has no lock: its owner's lock is held. Any thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from shadowgraph.engines.context import PrimaryContext
from shadowgraph.engines.losses import error_of


class _Config(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("blocks", "blocks_y", "blocks_z", "threads", "threads_y", "threads_z")),
        ("shared_nbytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


_Parameter = type[ctypes.c_uint64] | type[ctypes.c_uint32] | type[ctypes.Structure]


class Launcher:
    """One kernel with its argument buffer. Not thread-safe: its owner holds a lock around `set` and `launch`.

    Parameters
    ----------
    context
        The context of the kernel's device.
    function
        A ``CUfunction`` handle, kept loaded by the caller.
    types
        Types of the kernel's parameters, in order.

    Attributes
    ----------
    values
        Storage of the arguments, read at each launch; a structure's fields are set in place.
    """

    def __init__(self, context: PrimaryContext, function: int, types: Sequence[_Parameter]) -> None:
        self._context = context
        # With its arguments in one structure, it needs half the conversions of `cuLaunchKernel` (since CUDA 11.8).
        # Without `argtypes`, and with prepared pointers, ctypes converts nothing at a call.
        # Beside a busy thread, retaking the interpreter's lock costs milliseconds: keep it where the call cannot block.
        self._at_once: Any = ctypes.PyDLL("libcuda.so.1").cuLaunchKernelEx
        self._patient: Any = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
        self._config = _Config(blocks_y=1, blocks_z=1, threads_y=1, threads_z=1)
        self._how = ctypes.c_void_p(ctypes.addressof(self._config))
        self._form: tuple[int, int, int] | None = None
        self._function = ctypes.c_void_p(function)
        self.values: list[Any] = [kind() for kind in types]
        addresses = [ctypes.addressof(value) for value in self.values]
        self._arguments = (ctypes.c_void_p * len(addresses))(*addresses)
        self._given, self._nothing = ctypes.c_void_p(ctypes.addressof(self._arguments)), ctypes.c_void_p()

    @property
    def arguments(self) -> int:
        """Address of the array of pointers to the values, as ``cuLaunchKernel`` and kernel nodes take it."""
        return ctypes.addressof(self._arguments)

    def set(self, values: Sequence[int]) -> None:
        """Set the value of every argument; none may be a structure."""
        for slot, value in zip(self.values, values, strict=True):
            slot.value = value

    def launch(self, blocks: int, threads: int, stream: int) -> None:
        """Queue one launch, from any thread.

        Raises
        ------
        DeviceLostError
            When the context is dead.
        CudaCallError
            When the driver refuses this launch.
        """
        entered = self._context.enter()
        try:
            self.launch_here(blocks, threads, stream)
        finally:
            self._context.leave(entered)

    def launch_here(self, blocks: int, threads: int, stream: int) -> None:
        """`launch`, with the context already current."""
        form = blocks, threads, stream
        if form != self._form:
            self._config.blocks, self._config.threads, self._config.stream = self._form = form
        launch = self._at_once if self._context.takes_launches(stream) else self._patient
        code = launch(self._how, self._function, self._given, self._nothing)
        if code:
            raise error_of(f"the CUDA driver refuses a launch: {self._context.name_of(code)}", code)
