"""Check nodes of CUDA graphs: their kernel and arguments, and the counters of each graph in device memory.

`graphs.cuda.check_nodes` adds them to a graph at the end of its capture, in the capturing thread; the device runs them
at every replay. Has its own lock.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np

from shadowgraph.engines.canary_stream import THREADS
from shadowgraph.engines.device import Device
from shadowgraph.engines.launcher import Launcher
from shadowgraph.engines.listed_guards import ListedGuards
from shadowgraph.engines.ring import CheckMemory
from shadowgraph.engines.step import LANES
from shadowgraph.model.check_log import GRAPH_ROWS

WATCH = np.dtype(  # as in kernels.cu
    [
        *((name, "<u8") for name in ("row", "serial", "replays")),
        *(("done", "<u8", (2,)), ("checked", "<u8"), ("shadows", "<u8"), ("n_shadowed", "<u4"), ("n_parts", "<u4")),
    ]
)
_FAR_BLOCKS = 16  # pieces of far parts that each tail compares
_FEWEST, _MOST = 132, 264  # blocks that compare near parts; fixed at the capture, while guards of later graphs come
_AT_ONCE = 2  # guards that each group of lanes compares at once, as in kernels.cu
_REST = 2.0  # seconds after a graph's end before another one gets its row


class CheckNode(NamedTuple):
    """A check as a kernel node: what ``CUDA_KERNEL_NODE_PARAMS`` takes.

    Attributes
    ----------
    function
        A ``CUfunction``.
    arguments
        Address of the array of pointers to the arguments; valid as long as `kept`, which the driver copies from.
    """

    function: int
    blocks: int
    threads: int
    arguments: int
    kept: object


class GraphWatches:
    """Counters of the graphs that carry check nodes. Thread-safe.

    Attributes
    ----------
    live
        Graphs that carry them now.
    """

    def __init__(self, device: Device, function: int, memory: CheckMemory, listed: ListedGuards) -> None:
        self._device, self._function, self._memory, self._listed = device, function, memory, listed
        self._lock = threading.Lock()
        self._watches = device.zeros(GRAPH_ROWS * WATCH.itemsize)
        self._ended: deque[tuple[float, int]] = deque()
        self._places: dict[int, int] = {}

    def stream(self) -> int:
        """Handle of the stream on which a graph of this device replays now in this thread."""
        return self._device.raw_stream()

    def current(self) -> AbstractContextManager[None]:
        """Make the device's context current, whichever device the program has chosen."""
        return self._device.context.current()

    @property
    def live(self) -> int:
        return len(self._places)

    def begin(self, serial: int) -> tuple[CheckNode, CheckNode] | None:
        """The head and the tail of a graph; None when there is no row for it."""
        with self._lock:
            while self._ended and self._ended[0][0] < time.monotonic() - _REST:
                self._memory.log.release(self._ended.popleft()[1])
            place = self._memory.log.claim(serial)
            if place is None:
                return None
        watch = np.zeros(1, dtype=WATCH)
        watch["row"], watch["serial"] = self._memory.row(place), serial
        address = int(self._watches.data.ptr) + place * WATCH.itemsize
        self._device.write(address, watch)
        with self._lock:
            self._places[serial] = place
        return self._node(address, False), self._node(address, True)

    def end(self, serial: int) -> None:
        """A graph is gone; its last replays may be pending."""
        with self._lock:
            if self._places.pop(serial, None) is not None:
                self._ended.append((time.monotonic(), serial))

    def count_of(self, serial: int) -> int | None:
        """Device address of a graph's count of replays, which its head advances; None for a graph that is gone."""
        address = self.address_of(serial)
        offset: int = WATCH.fields["replays"][1] if WATCH.fields is not None else 0
        return address + offset if address is not None else None

    def address_of(self, serial: int) -> int | None:
        """Device address of a graph's ``struct Watch``; None for a graph without check nodes, or that is gone."""
        with self._lock:
            place = self._places.get(serial)
        return int(self._watches.data.ptr) + place * WATCH.itemsize if place is not None else None

    def counts(self) -> dict[int, tuple[int, int]]:
        """Of each live graph, by serial: replays that the device has counted, and those whose both checks are done."""
        rows = self._memory.log.rows
        with self._lock:
            places = dict(self._places)
        return {serial: (int(rows["begun"][at]), int(rows["ended"][at])) for serial, at in places.items()}

    def _node(self, address: int, end: bool) -> CheckNode:
        wide, narrow = ctypes.c_uint64, ctypes.c_uint32
        launcher = Launcher(self._device.context, self._function, (wide, wide, wide, wide, wide, narrow, narrow))
        memory, far = self._memory, _FAR_BLOCKS if end else 0
        launcher.set((address, self._listed.address, memory.ring, memory.table, memory.kept, end, far))
        near = min(_MOST, max(_FEWEST, -(-self._listed.slots * LANES // (THREADS * _AT_ONCE))))
        return CheckNode(self._function, near + far, THREADS, launcher.arguments, launcher)
