"""Our kernels, compiled once for each device of the process and loaded as long as it lives: engines share them.

A module that was unloaded while some stream captures would break that capture.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from shadowgraph.compat import relaxed_capture, require_cupy


class Kernels(NamedTuple):
    """``CUfunction`` handles, by what they do; see kernels.cu."""

    check_step: int
    arm: int
    arm_many: int
    mirror: int
    probe: int


@cache
def _loaded(index: int) -> tuple[Kernels, list[Any]]:
    """The handles, and what keeps them."""
    cp = require_cupy()
    with relaxed_capture(), cp.cuda.Device(index):
        source = files("shadowgraph.engines").joinpath("kernels.cu").read_text(encoding="utf-8")
        module = cp.RawModule(code=source, options=("-std=c++17",))
        functions = [module.get_function(name) for name in Kernels._fields]
        return Kernels(*(int(function.kernel.ptr) for function in functions)), functions


def kernels_of(index: int) -> Kernels:
    """The kernels on a device; compiled at the first call, so make that before any capture begins.

    Raises
    ------
    MissingPackageError
        Without a cupy that fits this CUDA.
    """
    return _loaded(index)[0]
