"""CUDA captures that run in this process, each from before torch begins it to after torch has ended it.

While one runs, the cyclic garbage collector is off: a `CUDAGraph` or a kernel's module that it destroyed would make the
capture invalid, in whichever thread the collector ran. ``gc.freeze`` does not do: it keeps only garbage that is there
when a capture begins, and nothing at all where the program has frozen objects itself.

Device-wide waits invalidate a capture in any thread and in any capture mode. So code that waits asks `Captures` first.
`begin` and `RunningCapture.end` are called by the patched methods of `torch.cuda.CUDAGraph`, in the capturing thread.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from shadowgraph.common.fork_safety import fork_safe


class RunningCapture:
    """One capture; its owner ends it."""

    def __init__(self, captures: Captures) -> None:
        self._captures: Captures | None = captures

    def end(self) -> None:
        """Torch has ended the capture, or will never end it. Later calls do nothing."""
        captures, self._captures = self._captures, None
        if captures is not None:
            captures.ended()


class Captures:
    """Counts running captures and keeps the garbage collector off meanwhile. Thread-safe.

    Attributes
    ----------
    running
        How many captures run now, of all threads and devices.
    """

    def __init__(self) -> None:
        self._lock = fork_safe(threading.Lock())
        self.running = 0
        self._collected = False  # whether the collector was on before the first of them
        self._kept: list[object] = []

    def begin(self) -> RunningCapture:
        """Torch is about to begin a capture."""
        with self._lock:
            self.running += 1
            if self.running == 1:
                self._collected = gc.isenabled()
                gc.disable()
        return RunningCapture(self)

    def ended(self) -> None:
        """One capture is over; after the last one the collector is on again if it was before."""
        with self._lock:
            self.running -= 1
            if not self.running and self._collected:
                gc.enable()
        kept = self._kept
        while kept and not self.running:  # asked anew before each, since another thread may begin
            del kept[-1]  # in one instruction, with nothing of this interpreter's between question and end

    def outlive(self, thing: object) -> None:
        """Keep an object that must not be destroyed while a capture runs until none does."""
        if self.running:
            self._kept.append(thing)

    @contextmanager
    def none_begins(self) -> Iterator[bool]:
        """No capture begins inside the block; gives whether none runs. For microseconds: `begin` waits for its end."""
        with self._lock:
            yield not self.running

    def forked(self) -> None:
        """In a forked child, whose only thread this is: it has no capture and cannot go on with its parent's."""
        if self.running:
            self.running = 0
            if self._collected:
                gc.enable()


captures = Captures()
os.register_at_fork(after_in_child=captures.forked)
