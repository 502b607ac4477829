"""Runners for prefixes of a CUDA graph: the first nodes, run several times from one state, for graphs without probes.

Where the driver can clone the graph, the other nodes are removed from a clone, and so are nodes that depend on other
work or that other work depends on. A graph that allocates cannot be cloned: there, nodes are disabled in the executable
graph that torch holds, and enabled again afterwards. Used by `reruns`, in the replaying thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from shadowgraph.common.compat import relaxed_capture
from shadowgraph.engines.device import Device
from shadowgraph.graphs.cuda.driver import CONDITIONAL, Driver, DriverError
from shadowgraph.graphs.cuda.ordering import in_order
from shadowgraph.graphs.prefixes import Changed
from shadowgraph.graphs.rerunning import NotRerun
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.reruns import Bytes, Fill

KERNEL, MEMCPY, MEMSET, HOST, CHILD = 0, 1, 2, 3, 4
OUTWARD = frozenset((6, 7, 8, 9, 12))  # events, semaphores, memory operations: synchronization with other work
ALLOCATION = 10
UNCOPIED = frozenset((10, 11))  # allocations, frees
_ABLE = frozenset((KERNEL, MEMCPY, MEMSET))  # kinds that can be disabled
# Words in names of kernels that wait for others: of NCCL, NVSHMEM, custom all-reduces of engines (vLLM and sglang call
# theirs cross_device_reduce), symmetric memory of torch, DeepEP and its kin.
_TOGETHER = (
    "nccl", "nvshmem", "ibgda", "allreduce", "all_reduce", "allgather", "all_gather", "reducescatter", "reduce_scatter",
    "alltoall", "all_to_all", "cross_device", "quickreduce", "quick_reduce", "oneshot", "one_shot", "twoshot",
    "two_shot", "multimem", "symm_mem", "symmetric_memory", "mscclpp", "deep_ep", "deepep", "lamport", "put_signal",
    "wait_signal", "barrier_all",
)  # fmt: skip


def must_not_run_alone(kernels: Iterable[str]) -> str | None:
    """Why a graph must not run more often than its peers expect, or None.

    Parameters
    ----------
    kernels
        Names of its kernels.
    """
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    if several and torch.distributed.get_world_size() > 1:
        return "other processes may take part in its replays"
    for name in kernels:
        if any(word in name.casefold() for word in _TOGETHER):
            return "others take part in its replays"
    return None


class State:
    """Copies of device memory, and the ranges to compare.

    Parameters
    ----------
    targets
        The ranges that are compared.
    ranges
        The ranges that are restored; includes the targets.
    """

    def __init__(self, device: Device, targets: Sequence[ByteRange], ranges: Sequence[ByteRange]) -> None:
        self._device, self._targets, self._ranges = device, targets, ranges
        self._sources: list[Bytes] = []  # of copies that may not have begun
        self._pool: Any = device.cp.cuda.MemoryPool()
        with device.context.current(), device.cp.cuda.using_allocator(self._pool.malloc):
            self._copies = [device.cp.empty(where.nbytes, dtype=device.cp.uint8) for where in ranges]
        for where, copy in zip(ranges, self._copies, strict=True):
            self._copy(int(copy.data.ptr), where.start, where.nbytes)
        self.wait()
        self._before = [self._bytes(where) for where in targets]

    def restore(self) -> None:
        """Restore every byte, at this point of the stream."""
        for where, copy in zip(self._ranges, self._copies, strict=True):
            self._copy(where.start, int(copy.data.ptr), where.nbytes)

    def fill(self, fills: Sequence[Fill]) -> None:
        """Set bytes, at this point of the stream: a pattern is copied once, and doubled from there."""
        runtime, stream = self._device.runtime, self._device.raw_stream()
        for where, pattern in fills:
            if len(set(pattern)) == 1:
                runtime.memsetAsync(where.start, pattern[0], where.nbytes, stream)
                continue
            done = min(len(pattern), where.nbytes)
            source = np.frombuffer(pattern, dtype=np.uint8)
            self._sources.append(source)
            self._copy(where.start, source.ctypes.data, done)
            while done < where.nbytes:
                more = min(done, where.nbytes - done)
                self._copy(where.start + done, where.start, more)
                done += more

    def changed(self) -> list[Changed | None]:
        """The change of each target, None where there is none; waits."""
        self.wait()
        return [_difference(w.start, b, self._bytes(w)) for w, b in zip(self._targets, self._before, strict=True)]

    def wait(self) -> None:
        """Wait for the program's stream."""
        with relaxed_capture():
            torch.cuda.current_stream(self._device.index).synchronize()
        self._sources.clear()

    def read(self, ranges: Sequence[ByteRange]) -> list[Bytes]:
        """Copies of some bytes; waits."""
        self.wait()
        return [self._bytes(where) for where in ranges]

    def close(self) -> None:
        """Free the copies; no launched work may still use them."""
        self._copies = []
        with self._device.context.current():
            self._pool.free_all_blocks()

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        self._device.runtime.memcpyAsync(target, source, nbytes, 4, self._device.raw_stream())

    def _bytes(self, where: ByteRange) -> Bytes:
        found = np.empty(where.nbytes, dtype=np.uint8)
        with relaxed_capture():
            loading = self._device.loading
            self._device.runtime.memcpyAsync(found.ctypes.data, where.start, where.nbytes, 4, loading.ptr)
            loading.synchronize()
        return found


def _difference(start: int, before: np.ndarray[Any, Any], now: np.ndarray[Any, Any]) -> Changed | None:
    changed = np.flatnonzero(before != now)
    if not changed.size:
        return None
    return Changed(start + int(changed[0]), start + int(changed[-1]), int(changed.size))


class _Prefixes(ABC):
    """A graph whose first nodes can be run."""

    def __init__(self, calls: Driver, stream: Callable[[], int], state: State) -> None:
        self._calls, self._stream, self._state = calls, stream, state

    @abstractmethod
    def executable(self, count: int) -> AbstractContextManager[int]:
        """Handle of an executable graph of the first `count` nodes; no launch of it may be left running."""

    def run(self, count: int) -> list[Changed | None]:
        """Restore the state, run the first `count` nodes, and return the change of each target."""
        with self.executable(count) as runnable:
            self._state.restore()
            self.launch(runnable)
            return self._state.changed()

    def launch(self, runnable: int) -> None:
        """Launch an executable graph."""
        self._calls.launch(runnable, self._stream())


class Copied(_Prefixes):
    """Runs clones of a graph from which the other nodes are removed.

    Parameters
    ----------
    graph
        Handle of a ``cudaGraph_t``, which is not changed.
    """

    how = "removed"

    def __init__(self, calls: Driver, graph: int, stream: Callable[[], int], state: State) -> None:
        super().__init__(calls, stream, state)
        self._graph = graph
        nodes = calls.nodes(graph)
        kinds = {node: calls.kind(node) for node in nodes}
        if CONDITIONAL in kinds.values():
            raise NotRerun("what decides how often a conditional node runs must run before it")
        self._nodes = [node for node in in_order(nodes, calls.edges(graph)) if kinds[node] not in OUTWARD]
        places = {node: place for place, node in enumerate(nodes)}
        self.order: Sequence[int] = [places[node] for node in self._nodes]

    @contextmanager
    def executable(self, count: int) -> Iterator[int]:
        """Handle of an executable graph of the first `count` nodes; no launch of it may be left running."""
        calls = self._calls
        with ExitStack() as made:
            with relaxed_capture():
                copy = calls.clone(self._graph)
                made.callback(calls.destroy_graph, copy)
                self._cut(copy, count)
                runnable = calls.instantiate(copy)
                made.callback(calls.destroy_executable, runnable)
            yield runnable

    def close(self) -> None:
        """No restoration is needed: the program's graph was not changed."""

    def _cut(self, copy: int, count: int) -> None:
        """Keep the first nodes in a clone, in a chain: edges through removed nodes would be missing."""
        calls = self._calls
        kept = [calls.in_copy(node, copy) for node in self._nodes[:count]]
        for node in set(calls.every_node(copy)) - set(kept):
            calls.remove(node)
        known = set(calls.edges(copy))
        calls.add_edges(copy, [pair for pair in pairwise(kept) if pair not in known])


class Disabled(_Prefixes):
    """Runs the executable graph with all but its first nodes disabled.

    Only kernels, copies and sets can be disabled; the rest always runs.

    Parameters
    ----------
    executable
        Handle of the ``cudaGraphExec_t`` instantiated from `graph`. All its nodes are enabled, and `close` enables them
        again.
    """

    how = "disabled"

    def __init__(self, calls: Driver, graph: int, executable: int, stream: Callable[[], int], state: State) -> None:
        super().__init__(calls, stream, state)
        self._executable = executable
        nodes = calls.nodes(graph)
        order = in_order(nodes, calls.edges(graph))
        kinds = {node: calls.kind(node) for node in nodes}
        if set(kinds.values()) & (OUTWARD | {HOST, CHILD, CONDITIONAL}):
            raise NotRerun("it has nodes that cannot be disabled")
        self._nodes = [node for node in order if kinds[node] in _ABLE]
        if not all(calls.is_enabled(executable, node) for node in self._nodes):
            raise NotRerun("some of its nodes are disabled")
        places = {node: place for place, node in enumerate(nodes)}
        self.order: Sequence[int] = [places[node] for node in self._nodes]
        self._checks = [node for node in calls.every_node(graph) if node not in places]  # they count replays

    @contextmanager
    def executable(self, count: int) -> Iterator[int]:
        """Handle of the executable graph, with the first `count` nodes enabled."""
        for node in self._checks:
            self._calls.enable(self._executable, node, False)
        for place, node in enumerate(self._nodes):
            self._calls.enable(self._executable, node, place < count)
        yield self._executable

    def close(self) -> None:
        """Enable every node again."""
        error: DriverError | None = None
        for node in (*self._nodes, *self._checks):
            try:
                self._calls.enable(self._executable, node, True)
            except DriverError as failed:
                error = failed
        if error is not None:
            raise error
