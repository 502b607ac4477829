"""Devices of the acceptance cases: graphs, kernels and buffers of one backend, so that each program is written once."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from shadowgraph.common.errors import MissingPackageError
from shadowgraph.common.install_hint import install_command
from shadowgraph.graphs.host.graph import HostGraph, graph_pool_handle, host_graph


class HostDevice:
    """The host backend: Triton's interpreter, `HostGraph`."""

    name = "host"
    names_launches = True
    device = torch.device("cpu")

    def __init__(self) -> None:
        enable_interpreter()

    def graph(self) -> HostGraph:
        return HostGraph()

    def capture(self, graph: HostGraph, pool: tuple[int, int] | None = None) -> AbstractContextManager[None]:
        return host_graph(graph, pool=pool)

    def pool(self) -> tuple[int, int]:
        return graph_pool_handle()

    def warm_up(self, run: Callable[[], object]) -> None:
        """Nothing to do: kernels are interpreted."""


class CudaDevice:
    """The cuda backend: compiled kernels, the program's own `torch.cuda.CUDAGraph`."""

    name = "cuda"
    names_launches = False  # stores on a device are not recorded: launches are only candidates

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())

    def graph(self) -> torch.cuda.CUDAGraph:
        return torch.cuda.CUDAGraph()

    def capture(self, graph: torch.cuda.CUDAGraph, pool: Any = None) -> AbstractContextManager[None]:
        captured: AbstractContextManager[None] = torch.cuda.graph(graph, pool=pool)
        return captured

    def pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def warm_up(self, run: Callable[[], object]) -> None:
        """Compile and load kernels before a capture."""
        run()
        torch.cuda.synchronize()


def enable_interpreter() -> None:
    """Let Triton interpret kernels; must come before the first import of Triton.

    Raises
    ------
    MissingPackageError
        When Triton is not installed, or was imported to compile for a GPU.
    """
    os.environ.setdefault("TRITON_INTERPRET", "1")
    try:
        import triton
    except ImportError:
        raise MissingPackageError(f"the cases need Triton; run: {install_command('triton')}") from None
    if not triton.knobs.runtime.interpret:
        raise MissingPackageError("Triton compiles for a GPU in this process; set TRITON_INTERPRET=1 and start again")


class Buffers:
    """Buffers of a program: each an allocation of its own, or all carved one after another from one flat tensor.

    Carved, a write past one buffer's end lands in the next by construction, with any allocator: this proves that a bug
    does damage. As allocations of their own, they can be guarded by a debugger.

    Parameters
    ----------
    carve
        Bytes of the flat tensor, or 0 for allocations of their own.
    """

    def __init__(self, device: torch.device, carve: int = 0) -> None:
        self._device = device
        self._flat = torch.zeros(carve, dtype=torch.uint8, device=device) if carve else None
        self._used = 0
        self._free: dict[int, list[int]] = {}  # offsets of released pieces, by size

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A zero-filled buffer."""
        if self._flat is None:
            return torch.zeros(shape, dtype=dtype, device=self._device)
        nbytes = math.prod(shape) * dtype.itemsize
        free = self._free.get(nbytes)
        start = free.pop() if free else self._used
        self._used = max(self._used, start + nbytes)
        return self._flat[start : start + nbytes].zero_().view(dtype).view(shape)

    def release(self, buffer: torch.Tensor) -> None:
        """Free a buffer: a carved piece goes to the next buffer of its size. An allocation of its own is freed with its
        last reference.
        """
        if self._flat is not None:
            nbytes = buffer.numel() * buffer.element_size()
            self._free.setdefault(nbytes, []).append(buffer.data_ptr() - self._flat.data_ptr())

    def of(self, values: Any, dtype: torch.dtype) -> torch.Tensor:
        """A buffer that holds the given values."""
        source = torch.tensor(values, dtype=dtype, device=self._device)
        made = self.zeros(tuple(source.shape), dtype)
        made.copy_(source)
        return made


class Unwatched:
    """Stands in for the debugger in a run without one."""

    def guard(self) -> AbstractContextManager[None]:
        return nullcontext()

    def prepare(self, graph: object = None) -> AbstractContextManager[None]:
        return nullcontext()

    def name(self, name: str, owner: object) -> int:
        return 0

    def protect(self, tensor: torch.Tensor) -> None:
        """Nothing to do."""

    def invariant(self, tensor: torch.Tensor, rule: object) -> None:
        """Nothing to do."""

    def refreshes(self, graph: object, owner: object, *attributes: str) -> None:
        """Nothing to do."""

    def padding(self, tensor: torch.Tensor, policy: str) -> None:
        """Nothing to do."""
