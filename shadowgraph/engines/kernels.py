"""Kernels of the engine: compiled and loaded once for each device, shared by engines, kept until the process ends.

Unloading a module while a stream captures would invalidate that capture, and the first launch of a lazily loaded kernel
may wait for the device. Called when an engine is created, before any capture.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from shadowgraph.common.compat import require_cupy
from shadowgraph.engines.context import PrimaryContext, primary_context


class Kernels(NamedTuple):
    """``CUfunction`` handles, by kernel name; see kernels.cu."""

    check_step: int
    arm: int
    arm_many: int
    mirror: int
    probe: int
    graph_check: int
    set_slots: int
    empty_slots: int
    publish: int
    pause: int
    set_shadows: int
    empty_shadows: int


@cache
def _loaded(index: int) -> tuple[Kernels, list[Any]]:
    """The handles, and the function objects that keep them alive."""
    cp, context = require_cupy(), primary_context(index)
    with context.current():
        source = files("shadowgraph.engines").joinpath("kernels.cu").read_text(encoding="utf-8")
        module = cp.RawModule(code=source, options=("-std=c++17",))
        functions = [module.get_function(name) for name in Kernels._fields]
        handles = Kernels(*(int(function.kernel.ptr) for function in functions))
        for handle in handles:
            _load(context, handle)
        return handles, functions


def _load(context: PrimaryContext, function: int) -> None:
    """Force a kernel to load now. The context must be current."""
    driver: Any = ctypes.CDLL("libcuda.so.1")
    handle = ctypes.c_void_p(function)
    if hasattr(driver, "cuFuncLoad"):  # CUDA 12.4
        context.check("cuFuncLoad", driver.cuFuncLoad(handle))
    else:  # reading an attribute loads the kernel
        registers = ctypes.c_int()
        context.check("cuFuncGetAttribute", driver.cuFuncGetAttribute(ctypes.byref(registers), _REGISTERS, handle))


_REGISTERS = 4  # CU_FUNC_ATTRIBUTE_NUM_REGS


def kernels_of(index: int) -> Kernels:
    """The kernels on a device; compiled at the first call, which must come before any capture.

    Raises
    ------
    MissingPackageError
        Without a cupy that fits this CUDA.
    """
    return _loaded(index)[0]
