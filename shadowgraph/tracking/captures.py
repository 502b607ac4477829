"""CUDA captures that run in this process, each from before torch begins it to after torch has ended it.

While a capture runs, the cyclic garbage collector is off: destroying a `CUDAGraph` or a kernel's module would
invalidate the capture, in whichever thread the collector ran. ``gc.freeze`` is not enough: it protects only garbage
that exists when a capture begins, and nothing where the program has frozen objects itself.

Device-wide waits invalidate a capture in any thread and in any capture mode. So code that waits asks `Captures` first.
The patched methods of `torch.cuda.CUDAGraph` call `begin` and `RunningCapture.end`, in the capturing thread.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from shadowgraph.common.fork_safety import fork_safe

_T = TypeVar("_T")


class RunningCapture:
    """One running capture; its owner ends it."""

    def __init__(self, captures: Captures) -> None:
        self._captures: Captures | None = captures

    def end(self) -> None:
        """Mark the capture as ended, or as one that torch will never end. Later calls do nothing."""
        captures, self._captures = self._captures, None
        if captures is not None:
            captures.ended()


class Captures:
    """Counts running captures and keeps the garbage collector off while any runs. Thread-safe.

    Attributes
    ----------
    running
        Number of running captures, in all threads and on all devices.
    """

    def __init__(self) -> None:
        self._lock = fork_safe(threading.Lock())
        self.running = 0
        self._collected = False  # whether the collector was on before the first capture
        self._kept: list[object] = []

    def begin(self) -> RunningCapture:
        """Mark the beginning of a capture, before torch begins it."""
        with self._lock:
            self.running += 1
            if self.running == 1:
                self._collected = gc.isenabled()
                gc.disable()
        return RunningCapture(self)

    def ended(self) -> None:
        """Mark the end of one capture; the last one restores the state of the collector."""
        with self._lock:
            self.running -= 1
            if not self.running and self._collected:
                gc.enable()
        kept = self._kept
        while kept and not self.running:  # tested again before each, since another thread may begin one
            del kept[-1]  # one instruction: no other thread runs between test and deletion

    def outlive(self, thing: object) -> None:
        """Keep an object alive until no capture runs; it must not be destroyed during one."""
        if self.running:
            self._kept.append(thing)

    def between(self, work: Callable[[], _T]) -> _T | None:
        """Call `work` where no capture runs, and none begins meanwhile: it takes microseconds, and `begin` waits for
        it. None, without a call, where one runs."""
        with self._lock:
            return None if self.running else work()

    def forked(self) -> None:
        """Reset in a forked child, whose only thread this is: it has no capture and cannot continue its parent's."""
        if self.running:
            self.running = 0
            if self._collected:
                gc.enable()


captures = Captures()
os.register_at_fork(after_in_child=captures.forked)
