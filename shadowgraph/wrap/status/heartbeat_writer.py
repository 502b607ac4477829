"""Periodic work of a wrapped process during replays: reads the pause file, writes the heartbeat.

Called in any replaying thread, without the debugger's lock; a thread that finds another one at it skips its turn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.common.internal_errors import error_barrier, internal_errors
from shadowgraph.wrap.folder.heartbeats import MOST_COUNTS, Heartbeat, write_heartbeat
from shadowgraph.wrap.status.pause_file import is_off

if TYPE_CHECKING:
    from shadowgraph.debugger import Debugger

_LOOK, _PULSE = 1.0, 5.0  # seconds
_HISTORY = 240


class _Done(NamedTuple):
    """Sums from debuggers that have ended."""

    replays: int = 0
    checked: int = 0
    observed: int = 0


class _History:
    """Numbers of replays over time, of bounded length: once full, every second one goes, and the next come as far
    apart."""

    def __init__(self) -> None:
        self.points: list[tuple[float, int]] = []
        self._apart = 0.0

    def add(self, time: float, replays: int) -> None:
        """Keep a point, unless it is too close to the last one."""
        if self.points and time - self.points[-1][0] < self._apart:
            return
        if len(self.points) >= _HISTORY:
            self.points = self.points[::2]
            self._apart = (self.points[-1][0] - self.points[0][0]) / (len(self.points) - 1)
        self.points.append((round(time, 3), replays))


class HeartbeatWriter:
    """Called when a replay begins. Starts no thread and never waits: most calls compare two numbers.

    It looks for the pause file once a second, and writes the heartbeat every five seconds and when the pause file
    changes.

    Parameters
    ----------
    folder
        The run folder.
    file
        The heartbeat file of this process.
    clock
        Returns monotonic seconds.
    """

    def __init__(self, folder: str, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._file, self._clock = folder, file, clock
        self._lock = fork_safe(threading.Lock())
        self._next_look = self._next_pulse = 0.0
        self._debugger: Debugger | None = None
        self._book = 0
        self._unsubscribe: Callable[[], None] = lambda: None
        self._done = _Done()
        self._before = (0, 0.0)  # nanoseconds of checking, and the time of that measurement
        self._overhead: float | None = None
        self._paused: Debugger | None = None  # paused by this writer: a pause by the program itself is left alone
        self._history = _History()
        self._pauses, self._off = 0, 0.0
        self._off_since: tuple[float, float] | None = None  # by `clock`, and by `time.time`

    def follow(self, debugger: Debugger, book: int) -> None:
        """A debugger watches from here on."""
        self._debugger, self._book = debugger, book
        self._before = (0, self._clock())
        self._unsubscribe = debugger.runner.subscribe_replay_begins(self)

    def leave(self, debugger: Debugger) -> None:
        """A debugger has ended: write a heartbeat, and keep its numbers in the sums."""
        if debugger is self._debugger:
            self._unsubscribe()
            counts = debugger.runner.counts()
            with error_barrier("pulse"):
                if counts.replays:
                    self._write()
            done = self._done
            self._done = _Done(
                done.replays + counts.replays, done.checked + counts.checked, done.observed + counts.observed
            )
            self._debugger = self._paused = None

    def forked(self, file: Path) -> HeartbeatWriter:
        """A writer for a forked child: new numbers; a debugger paused in the parent stays tied to the pause file."""
        self._unsubscribe()
        child = HeartbeatWriter(self._folder, file, self._clock)
        child._paused = self._paused
        return child

    def __call__(self) -> None:
        if self._clock() >= self._next_look and self._lock.acquire(blocking=False):
            try:
                with error_barrier("pulse"):
                    self._beat()
            finally:
                self._lock.release()

    def _beat(self) -> None:
        now = self._clock()
        self._next_look = now + _LOOK
        turned = self._obey(now)
        if turned or now >= self._next_pulse:
            self._next_pulse = now + _PULSE
            self._write()

    def _obey(self, now: float) -> bool:
        """Follow the pause file; returns whether its state has changed."""
        off, before = is_off(self._folder), self._off_since
        debugger = self._debugger
        if debugger is not None:
            self._set_paused(debugger, off)
        if off and before is None:
            self._pauses, self._off_since = self._pauses + 1, (now, time.time())
        elif not off and before is not None:
            self._off, self._off_since = self._off + now - before[0], None
        return off == (before is None)

    def _set_paused(self, debugger: Debugger, off: bool) -> None:
        if off and self._paused is not debugger:
            debugger.pause()
            self._paused = debugger
        elif not off and self._paused is debugger:
            debugger.resume()
            self._paused = None

    def _measure(self, nanoseconds: int | None, now: float) -> None:
        """Share of checking since the last measurement; not of short intervals: pause and end check once more."""
        spent, since = self._before
        if nanoseconds is not None and now - since >= _LOOK:
            self._overhead = round((nanoseconds - spent) / (now - since) / 1e7, 2)
            self._before = (nanoseconds, now)

    def _write(self) -> None:
        debugger = self._debugger
        if debugger is None:
            return
        counts, now = debugger.runner.counts(), self._clock()
        self._measure(counts.spent, now)
        findings = debugger.runner.stored()[-MOST_COUNTS:]
        moment, replays = time.time(), self._done.replays + counts.replays
        self._history.add(moment, replays)
        pulse = Heartbeat(
            time=moment,
            replays=replays,
            checked=self._done.checked + counts.checked,
            observed=self._done.observed + counts.observed,
            every=counts.every,
            overhead=self._overhead,
            faults=internal_errors.total,
            coverage=debugger.coverage(),
            occurrences=tuple((self._book, finding.id, finding.occurrences) for finding in findings),
            pauses=self._pauses,
            off=self._off,
            off_since=self._off_since[1] if self._off_since is not None else None,
            history=tuple(self._history.points),
        )
        write_heartbeat(self._file, pulse)
