"""The order of work across the streams of a device and the host: vector clocks, fed with the calls that order.

Every launch on a stream has a number. For each stream, and for the host, the clocks keep the highest number of every
other stream that is known to be over before anything that is submitted next. Only the order that the program asked for
counts, never how long work happened to take.

An order that was not seen must not be reported as missing. So what was submitted before `begin` counts as ordered. An
event whose record was not seen stands for all that was submitted until now. A stream whose handle the program gave away
may be waited for by code that is not seen: the host knows all of its work to be over.

`graphs.cuda.streams` feeds it, in the threads of the program; checks ask, under the debugger's lock. All threads share
the host's clock: what one thread has waited for is taken to be known to the others. It has its own lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from shadowgraph.common.fork_safety import fork_safe

Clock = dict[int, int]  # the number of the latest launch that is over, by stream


class Stamp(NamedTuple):
    """What is over once an event has been reached, as known when it was recorded in a period of observation."""

    period: int
    clock: Clock


def _join(clock: Clock, other: Clock) -> None:
    for stream, number in other.items():
        if clock.get(stream, 0) < number:
            clock[stream] = number


def _ignored(on: bool) -> None:
    """Stands for the backend's function where there is none."""


class StreamOrder:
    """The order of one device's streams. Thread-safe.

    Attributes
    ----------
    on
        Whether launches and orders are observed now.
    period
        Number of the period of observation, from 1.
    current
        Returns the calling thread's current stream; None without a backend that has streams.
    """

    def __init__(self) -> None:
        self.on, self.period = False, 0
        self.current: Callable[[], int] | None = None
        self._settled: Callable[[bool], None] = _ignored
        self._lock = fork_safe(threading.RLock())
        self._counts: Clock = {}
        self._knows: dict[int, Clock] = {}
        self._host: Clock = {}
        self._exposed: set[int] = set()  # for the life of a debugger: a handle is not taken back
        self._default: int | None = None  # the legacy default stream
        self._blocking: set[int] = set()  # streams that wait for the legacy default stream, and it for them

    def attach(self, current: Callable[[], int], settled: Callable[[bool], None] = _ignored) -> None:
        """A debugger starts: forget the streams of the one before, and begin a period.

        Parameters
        ----------
        current
            Returns the calling thread's current stream.
        settled
            Called with True when observation begins, and with False when it ends, outside the lock.
        """
        self.current, self._settled = current, settled
        self._exposed, self._blocking, self._default = set(), set(), None
        self.begin()

    def detach(self) -> None:
        """The debugger stops."""
        self.end()
        self.current, self._settled = None, _ignored

    def begin(self) -> None:
        """Begin a period: everything submitted so far counts as ordered before everything that follows."""
        if self.current is None:
            return
        with self._lock:
            self.on, self.period = True, self.period + 1
            self._counts, self._knows, self._host = {}, {}, {}
        self._settled(True)

    def end(self) -> None:
        """End the period: from here on, calls may pass unseen."""
        if self.on:
            self.on = False
            self._settled(False)

    def describe(self, stream: int, *, default: bool, blocking: bool) -> None:
        """Note that a stream is the legacy default one, or is ordered with it by CUDA itself."""
        with self._lock:
            if default:
                self._default = stream
            elif blocking:
                self._blocking.add(stream)
            else:
                self._blocking.discard(stream)

    # -- what the program does -------------------------------------------------------------------------------------

    def launched(self, stream: int) -> int:
        """Something was submitted to a stream; returns its number there."""
        with self._lock:
            self._implied(stream)
            number = self._counts[stream] = self._counts.get(stream, 0) + 1
            if stream in self._exposed:
                self._host[stream] = number
            return number

    def recorded(self, stream: int) -> Stamp:
        """An event was recorded in a stream."""
        with self._lock:
            self._implied(stream)
            clock = self._until(stream)
            if stream in self._exposed:
                _join(self._host, clock)
            return Stamp(self.period, clock)

    def waits(self, stream: int, stamp: Stamp | None) -> None:
        """A stream waits for an event, or for one of which no record was seen."""
        with self._lock:
            known = self._knows.setdefault(stream, {})
            _join(known, self._reached(stamp))
            if stream in self._exposed:
                _join(self._host, known)

    def host_waits(self, stamp: Stamp | None) -> None:
        """The host has waited for an event, or knows that it was reached."""
        with self._lock:
            _join(self._host, self._reached(stamp))

    def host_waits_for(self, stream: int) -> None:
        """The host has waited for a stream, or knows that it is empty."""
        with self._lock:
            self._implied(stream)
            _join(self._host, self._until(stream))

    def host_waits_here(self) -> None:
        """The host has waited for the current stream of this thread, or may have."""
        current = self.current  # None once another thread has ended the debugger
        if self.on and current is not None:
            self.host_waits_for(current())

    def host_waits_for_all(self) -> None:
        """The host has waited for the device, or may have."""
        with self._lock:
            _join(self._host, self._counts)

    def expose(self, stream: int) -> None:
        """A stream's handle leaves torch: it may be waited for unseen from here on."""
        with self._lock:
            self._exposed.add(stream)
            _join(self._host, self._until(stream))

    # -- what checks ask -------------------------------------------------------------------------------------------

    def known(self, stream: int, of: int) -> int:
        """The highest number of stream `of` that is over before anything that is submitted to `stream` next."""
        with self._lock:
            if stream == of:
                return self._counts.get(of, 0)
            self._implied(stream)
            return max(self._knows.get(stream, {}).get(of, 0), self._host.get(of, 0))

    # -- parts -----------------------------------------------------------------------------------------------------

    def _reached(self, stamp: Stamp | None) -> Clock:
        """What is over with an event. One that was recorded in an earlier period may have been recorded again since."""
        return stamp.clock if stamp is not None and stamp.period == self.period else self._counts

    def _until(self, stream: int) -> Clock:
        """What is over once a stream has done what was submitted to it."""
        clock = dict(self._knows.get(stream, {}))
        if stream in self._counts:
            clock[stream] = self._counts[stream]
        return clock

    def _implied(self, stream: int) -> None:
        """The order that CUDA keeps by itself between the legacy default stream and blocking ones."""
        if not self._blocking or self._default is None:
            return
        before = self._blocking if stream == self._default else {self._default} if stream in self._blocking else ()
        for each in before:
            _join(self._knows.setdefault(stream, {}), self._until(each))


order = StreamOrder()
