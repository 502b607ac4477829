"""The host and CUDA backends behind one protocol: allocator, comparison engine, and patches of the program.

`Debugger` creates one per instance with `backend_of`; `start` and `stop` run in the thread that starts or stops it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Protocol

import torch

from shadowgraph.common.settings import Settings
from shadowgraph.engines.base import Engine
from shadowgraph.engines.numpy_engine import NumpyEngine
from shadowgraph.graphs.dispatch import active_pools, borrowed_memory, cache_emptying, host_reads
from shadowgraph.graphs.triton import host as triton_host
from shadowgraph.monitor.recorder.recorder import recorder
from shadowgraph.tracking.allocator import HostAllocator, host_allocator
from shadowgraph.tracking.fences import FencedSpans, HostPages, Pages

if TYPE_CHECKING:
    from shadowgraph.engines.cupy_engine import CupyEngine
    from shadowgraph.tracking.cuda_allocator import CudaAllocator


OF_HOST = "tensors of the device that are views of the host's memory: their values are not compared"
UNCOMPARED = "buffers whose memory may be unmapped (a memory saver or a sleep mode): their values are not compared"


class Backend(Protocol):
    """What a debugger needs from a backend."""

    allocator: HostAllocator
    engine: Engine
    guard_memory: int

    def start(self) -> None:
        """Install the backend's patches."""

    def stop(self) -> None:
        """Remove the patches."""

    def left_alone(self) -> dict[str, int]:
        """Captures whose memory has no guards, counted by reason."""


class HostBackend:
    """Graphs captured with `HostGraph`; comparison runs in numpy."""

    def __init__(self, settings: Settings) -> None:
        self.allocator = host_allocator()
        self.engine: Engine = NumpyEngine(self.allocator.arena.base)
        self.guard_memory = settings.guard_memory if settings.guard_memory is not None else 1 << 30
        if settings.fence is not None:
            prepare_fences(self.allocator, HostPages, self.guard_memory, settings.fence_anyway)

    def start(self) -> None:
        triton_host.install()
        host_reads.install()
        borrowed_memory.install(self.allocator)

    def stop(self) -> None:
        borrowed_memory.uninstall()
        host_reads.uninstall()
        triton_host.uninstall()

    def left_alone(self) -> dict[str, int]:
        return {}


class CudaBackend:
    """The program's own CUDA graphs on the current device; comparison runs on the device.

    Raises
    ------
    BackendError
        When there is no CUDA device, or torch is too old.
    MissingPackageError
        When no compatible cupy or cuda-bindings is installed.
    """

    def __init__(self, settings: Settings) -> None:
        from shadowgraph.common.compat import require_gpu

        require_gpu()
        from shadowgraph.engines.fenced_pages import DevicePages
        from shadowgraph.graphs.cuda.capture_lines import CaptureLines
        from shadowgraph.graphs.cuda.check_nodes import CheckNodes
        from shadowgraph.graphs.cuda.graph import CudaGraphs
        from shadowgraph.graphs.cuda.in_place_pools import InPlacePools
        from shadowgraph.graphs.cuda.isolated_pools import IsolatedPools
        from shadowgraph.graphs.cuda.probes import Prober
        from shadowgraph.graphs.cuda.streams import hooks_of
        from shadowgraph.graphs.observer.observer import observer

        torch.cuda.init()
        device = torch.cuda.current_device()
        expandable = _expandable_segments()
        allocator, engine = _cuda_memory(device, expandable)
        engine.unmappable, engine.of_host = 0, set()  # the engine serves one debugger after the other
        self._uncompared: Callable[[], dict[str, int]] = lambda: {
            UNCOMPARED: engine.unmappable,
            OF_HOST: len(engine.of_host),
        }
        self.allocator: HostAllocator = allocator
        self.engine: Engine = engine
        total = torch.cuda.get_device_properties(device).total_memory
        self.guard_memory = settings.guard_memory if settings.guard_memory is not None else total // 20
        self.pools: IsolatedPools | None = None
        self.native = InPlacePools(allocator, settings.near_guard)
        if settings.layout == "isolate" and not expandable:
            self.pools = IsolatedPools(
                allocator.arena, settings.near_guard, settings.near_guard, self.guard_memory, allocator.end_segment
            )
        if settings.fence is not None:
            pages = partial(DevicePages, engine.device)
            prepare_fences(allocator, pages, self.guard_memory, settings.fence_anyway)
        prober = Prober(engine.device, engine.probe_function, expandable)
        self.checks = CheckNodes(engine.watches, engine.listed) if settings.checks == "nodes" else None
        lines = CaptureLines(settings.capture_lines == "learnt", observer)
        self.graphs = CudaGraphs(allocator, self.pools, self.native, expandable, prober, lines, self.checks)
        self.streams = hooks_of(device)

    def start(self) -> None:
        from shadowgraph.graphs.triton import cuda as triton_cuda

        triton_cuda.install()
        host_reads.install(of_host_memory=False)
        borrowed_memory.install(self.allocator)
        active_pools.entered.append(self.native.entered)
        active_pools.install()
        cache_emptying.install(self.allocator.sweep_large)
        self.graphs.install()
        self.streams.install()

    def stop(self) -> None:
        from shadowgraph.graphs.triton import cuda as triton_cuda

        self.streams.uninstall()
        self.graphs.uninstall()
        cache_emptying.uninstall()
        active_pools.uninstall()
        active_pools.entered.remove(self.native.entered)
        borrowed_memory.uninstall()
        host_reads.uninstall(of_host_memory=False)
        triton_cuda.uninstall()

    def left_alone(self) -> dict[str, int]:
        """Captures whose pools have no guards, counted by reason."""
        uncompared = Counter({reason: count for reason, count in self._uncompared().items() if count})
        unchecked = Counter(self.checks.refused) if self.checks is not None else Counter[str]()
        pools = self.pools.left_alone if self.pools else Counter[str]()
        return dict(self.native.left_alone + uncompared + pools + unchecked)


def prepare_fences(allocator: HostAllocator, pages: Callable[[], Pages], limit: int, anyway: bool) -> None:
    """Let an allocator lay fences, within a limit, or note why it must not.

    The spans stay from one debugger to the next, mapped; limit and refusal are of the debugger that begins.
    """
    if allocator.fences is None:
        allocator.fences = FencedSpans(pages(), limit)
    fences = allocator.fences
    fences.limit, fences.refusal = limit, fences.pages.refusal(anyway)


def _expandable_segments() -> bool:
    """Whether the caching allocator uses expandable segments: it then accepts no pools of other allocators."""
    settings = torch.cuda.memory._snapshot().get("allocator_settings", {})
    return bool(settings.get("expandable_segments", False))


@cache
def _cuda_memory(device: int, expandable: bool) -> tuple[CudaAllocator, CupyEngine]:
    """One allocator and one engine per device: buffers outlive the debugger that guarded them."""
    from shadowgraph.engines.cupy_engine import CupyEngine
    from shadowgraph.tracking.cuda_allocator import CudaAllocator

    engine = CupyEngine(device, expandable, recorder.check_log("device"))
    if not engine.log_is_mapped:
        recorder.not_mapped()
    return CudaAllocator(engine.device, engine, device, expandable), engine


def backend_of(settings: Settings) -> Backend:
    """The backend that the settings select."""
    return CudaBackend(settings) if settings.backend == "cuda" else HostBackend(settings)
