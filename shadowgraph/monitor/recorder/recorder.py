"""The check log and the launch log of this process: made, left in forked children, removed at a clean end.

`Debugger` begins and rests it, the engine of a device takes the check log from it (`Recorder.check_log`), a wrapped
process says where the files go (`recorded_files.assigned`). In the threads that start and stop debuggers, that capture
first, and that fork; under a lock of its own, which is the innermost one.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.common.outbox import outbox
from shadowgraph.model import recorded_files
from shadowgraph.model.check_log import CheckLog
from shadowgraph.model.launch_log import LaunchLog
from shadowgraph.model.launch_log_format import NBYTES
from shadowgraph.model.recorded_files import ALONE, SHARED_MEMORY, Place, remove_leftovers, stem_here
from shadowgraph.tracking import launch_recording

Log = TypeVar("Log", CheckLog, LaunchLog)
_SHARE = 8  # of what is free in shared memory, the launch log takes at most this part: the program needs it, too


class Recorder:
    """The logs of this process, one of each, for all its debuggers: graphs go on writing to the check log after a
    debugger's end, so its memory is never given back.

    Attributes
    ----------
    orphaned
        Whether a debugger goes on in a forked child that has no logs yet.
    reasons
        Why a log would not survive the process, in a line each.
    heard
        Is told these lines instead, at once.
    """

    def __init__(self) -> None:
        self._lock = fork_safe(threading.RLock())
        self._place: Place | None = None
        self._pid, self._writer = 0, ""
        self._checks: CheckLog | None = None
        self._launches: LaunchLog | None = None
        self._on = self.orphaned = self._hooked = False
        self.reasons: list[str] = []
        self.heard: Callable[[str], None] | None = None

    def begin(self) -> None:
        """A debugger starts: launches are noted from here on."""
        with self._lock:
            self._adopt()
            self._on = True
            if self._launches is None:
                self._launches = self._made_launch_log()
            launch_recording.current = self._launches

    def rest(self) -> None:
        """The debugger has stopped; graphs of a device may still write to the check log."""
        self._on = self.orphaned = False
        launch_recording.current = None

    def go_on(self) -> None:
        """A debugger goes on in a forked child: make logs of its own. Called at its first capture or replay."""
        self.orphaned = False
        self.begin()

    def check_log(self, writer: str = "host") -> CheckLog | None:
        """This process's check log, made at the first call; None where not even memory for it can be had.

        Parameters
        ----------
        writer
            ``host`` or ``device``. The first one that asks has the log, the other gets None: both number their records
            from 1.
        """
        with self._lock:
            self._adopt()
            if self._checks is None:
                self._checks, self._writer = self._made_check_log(), writer
            return self._checks if writer == self._writer else None

    def not_mapped(self) -> None:
        """The device cannot write to the file of the check log."""
        self._say("the check log would not survive a kill of the process: CUDA cannot map its file")

    def end(self) -> None:
        """The process ends in an orderly way, and everything was checked: the files go."""
        with self._lock:
            if self._pid == os.getpid():
                for log in self._logs:
                    log.remove()

    def forked(self) -> None:
        """In a forked child: what is written there does not reach the parent's files."""
        if self._pid in (0, os.getpid()):
            return
        for log in self._logs:
            log.leave()
        self._checks = self._launches = launch_recording.current = None
        self._lock = fork_safe(threading.RLock())
        self._pid, self._place, self.reasons, self.orphaned = 0, None, [], self._on

    @property
    def redacts(self) -> bool:
        """Whether values of the program are left out."""
        return self._place is not None and self._place.redact

    # -- parts -------------------------------------------------------------------------------------------------

    @property
    def _logs(self) -> list[CheckLog | LaunchLog]:
        return [log for log in (self._checks, self._launches) if log is not None]

    def _adopt(self) -> None:
        """These logs belong to this process."""
        self._pid = os.getpid()
        if not self._hooked:
            self._hooked = True
            os.register_at_fork(after_in_child=self.forked)
            atexit.register(self._end_alone)
        if self._place is None:
            self._place = recorded_files.assigned
        if self._place is None:
            remove_leftovers()
            self._place = Place("", ALONE, stem_here())

    def _end_alone(self) -> None:
        """Under `wrap`, the process's end calls `end` once it has checked."""
        if self._place is not None and not self._place.folder:
            self.end()

    def _made_check_log(self) -> CheckLog | None:
        place = self._place
        assert place is not None
        return self._made(
            "check log", place.checks, lambda: CheckLog.create(place.checks, place.folder), CheckLog.anonymous
        )

    def _made_launch_log(self) -> LaunchLog | None:
        place = self._place
        assert place is not None

        def create() -> LaunchLog:
            if not place.folder and _free(SHARED_MEMORY) < NBYTES * _SHARE:
                raise OSError(28, "too little of it is free")
            return LaunchLog.create(place.launches, place.redact)

        return self._made("launch log", place.launches, create, lambda: LaunchLog.anonymous(place.redact))

    def _made(self, what: str, path: str, create: Callable[[], Log], otherwise: Callable[[], Log]) -> Log | None:
        try:
            return create()
        except OSError as error:
            self._say(f"the {what} would not survive a kill of the process: {os.path.dirname(path)}: {error.strerror}")
        try:
            return otherwise()
        except OSError:
            return None

    def _say(self, reason: str) -> None:
        if self.heard is None:
            self.reasons.append(reason)
        else:
            outbox.write(partial(self.heard, reason))  # into a file: not under the debugger's lock


def _free(folder: str) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


recorder = Recorder()
