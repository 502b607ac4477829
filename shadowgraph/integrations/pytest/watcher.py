"""The debuggers of a test run, and the assignment of findings to tests.

One debugger watches all tests with the same settings: a graph captured by a module's fixture is watched through every
test that replays it. A test with other settings gets another debugger, and the first one resumes after it. Findings
arrive in any thread, under the watcher's own lock; the rest runs in pytest's main thread, except `_target`, which
operators of every thread call.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import _get_current_dispatch_mode

from shadowgraph import session
from shadowgraph.common.errors import FindingsError
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.common.settings import Settings
from shadowgraph.debugger import Debugger
from shadowgraph.graphs.dispatch import thread_modes
from shadowgraph.graphs.host.graph import report_collected
from shadowgraph.integrations.pytest.backend import interpret_triton
from shadowgraph.integrations.pytest.guests import is_wrapped, wraps_debugger
from shadowgraph.integrations.pytest.windows import Sighting, Window
from shadowgraph.model.findings import Finding

if TYPE_CHECKING:
    from shadowgraph.graphs.dispatch.eager import EagerMode

NO_TRITON = (
    "Triton was imported before TRITON_INTERPRET=1 was set: its kernels do not run on the host; "
    "set it in the environment, or give --shadowgraph-backend host"
)


class Watcher:
    """Starts, switches and ends the debuggers of this process, and receives their findings.

    Attributes
    ----------
    window
        The window of the running test.
    place
        The current place outside tests, in words.
    outside
        Sightings outside tests.
    heard
        Called with the window of a test and each new sighting in it.
    said
        Lines for the summary.
    checks, slowest
        Number of full checks that the plugin requested, and the duration of the longest in seconds, with its place.
    """

    def __init__(self, heard: Callable[[Window, Sighting], None]) -> None:
        self.heard = heard
        self.window: Window | None = None
        self.place = "between tests"
        self.outside: list[Sighting] = []
        self.said: dict[str, None] = {}
        self.checks, self.slowest = 0, (0.0, "")
        self._made: dict[Settings, Debugger] = {}
        self._active: Debugger | None = None  # one of `_made`
        self._followed: dict[int, Debugger] = {}
        self._known: dict[tuple[int, int], Finding] = {}
        self._latest: dict[tuple[int, int], Sighting] = {}
        self._mode: thread_modes.ThreadMode | None = None
        self._leave_threads: Callable[[], None] = lambda: None
        self._lock = threading.RLock()
        self._swept: set[int] = set()  # serials of graphs already examined
        session.observers.append(self)

    # -- active debugger ---------------------------------------------------------------------------------------

    @property
    def debugger(self) -> Debugger | None:
        """The active debugger, if the plugin reports its findings."""
        current = session.current()
        return current if current is not None and id(current) in self._followed else None

    @property
    def debuggers(self) -> list[Debugger]:
        """All debuggers whose findings were received."""
        return list(self._followed.values())

    def watch(self, settings: Callable[[], Settings]) -> None:
        """Activate a debugger with these settings, unless the program, or `shadowgraph wrap`, runs one.

        Raises
        ------
        ShadowgraphError
            When the settings are invalid here.
        """
        current = wraps_debugger() if is_wrapped() else session.current()
        if current is not None and current is not self._active:
            self._follow(current)  # started by the conftest, or left on by earlier code
        elif not is_wrapped():
            self._activate(settings())
        if self.debugger is not None:
            self.debugger.runner.expect_static_buffers()  # each test creates its own

    def _activate(self, settings: Settings) -> None:
        fixed = settings.fixed()
        if self._active is None or session.current() is not self._active or self._active.settings != fixed:
            self._switch_to(fixed)
        if self._active is not None:
            self._active.runner.adjust(**settings.live())

    def _switch_to(self, settings: Settings) -> None:
        if self._active is not None and session.current() is self._active:
            self.rest()
        if settings.backend == "host" and not interpret_triton():
            self.said[NO_TRITON] = None
        known = self._made.get(settings)
        before, self._active = self._active, known
        try:
            self._active = session.attach(known or settings)
        except BaseException:
            self._active = before
            raise
        self._made[settings] = self._active
        self._follow(self._active)
        self._enter()

    def go_on(self) -> None:
        """In a later phase of a test: restart if the test has started and ended a debugger of its own."""
        if self._active is not None and session.current() is None and not is_wrapped():
            session.attach(self._active)
            self._enter()

    def rest(self) -> None:
        """Stop watching until `watch`; debuggers started by other code continue."""
        if self._active is not None and session.current() is self._active:
            session.uninstall()
        if self._mode is not None and _get_current_dispatch_mode() is self._mode:
            thread_modes.leave(self._mode)  # below a mode of the program it stays, without a target
            self._mode = None
        self._leave_threads()
        self._leave_threads = lambda: None

    def end(self) -> None:
        """Check a last time and stop receiving findings."""
        self.rest()
        session.observers.remove(self)

    def _enter(self) -> None:
        if self._mode is None:
            self._mode = thread_modes.enter(self._target)
        self._leave_threads()
        self._leave_threads = thread_modes.install_in_new_threads(self._target)

    def _target(self, args: Any, kwargs: Any) -> EagerMode | None:
        return self._active.eager_mode if self._active is not None else None

    # -- findings ----------------------------------------------------------------------------------------------

    def started(self, debugger: Debugger) -> None:
        """A debugger watches. Its findings are received unless a test started it."""
        window = self.window
        shared = window is not None and bool(window.fixtures) and window.fixtures[-1][1] != "function"
        if session.steps_aside(debugger) or window is None or shared:
            self._follow(debugger)

    def ended(self, debugger: Debugger) -> None:
        """A debugger has checked a last time."""

    def _follow(self, debugger: Debugger) -> None:
        if id(debugger) not in self._followed:
            self._followed[id(debugger)] = debugger
            debugger.adapter.subscribe_findings(partial(self._hear, id(debugger)))

    def _hear(self, owner: int, finding: Finding) -> None:
        """A finding is new, was seen again, or was revised."""
        key = owner, finding.id
        with self._lock:
            before, self._known[key] = self._known.get(key), finding
            latest = self._latest.get(key)
            if before is not None and latest is not None and finding.suppressed_by and not before.suppressed_by:
                latest.finding = finding  # withdrawn: a suppression rule fits the culprit that is known now
                return
            promoted = before is not None and (before.severity, before.suppressed_by) != (
                finding.severity,
                finding.suppressed_by,
            )
            if before is not None and latest is not None and not promoted:
                here = self.outside if self.window is None else self.window.sightings
                if finding.occurrences == before.occurrences or latest in here:
                    latest.finding = finding
                    return
            self._enlist(key, finding)

    def _enlist(self, key: tuple[int, int], finding: Finding) -> None:
        window = self.window
        if window is None:
            sighting = Sighting(finding, where=self.place)
            self.outside.append(sighting)
        else:
            sighting = Sighting(finding, window.phase, window.where())
            window.sightings.append(sighting)
        self._latest[key] = sighting
        if window is not None and sighting.is_error:
            self.heard(window, sighting)

    def check(self) -> None:
        """Check now, so that findings are assigned to the current place."""
        debugger = self.debugger
        if debugger is None or not debugger.started:  # a test may have ended it
            return
        began = time.perf_counter()
        try:
            debugger.check()
        except FindingsError:  # raised by `sync`; already received
            pass
        except Exception as error:  # expected errors too: the test did not request the check
            internal_errors.note("check of a test", error)
        self.checks += 1
        where = self.window.nodeid if self.window is not None else self.place
        self.slowest = max(self.slowest, (time.perf_counter() - began, where))

    def sweep(self) -> None:
        """Between two tests: free graphs held only by garbage, so that they do not reach into the next test. Triton's
        interpreter leaves reference cycles that hold tensors and graphs."""
        if self._captured() - self._swept:
            gc.collect()
        self._swept = self._captured()

    def _captured(self) -> set[int]:
        report_collected()
        return {graph.serial for debugger in self._made.values() for graph in debugger.graphs}

    def close(self) -> None:
        """A test is over; findings that none of its reports has shown go to the summary."""
        window, self.window = self.window, None
        if window is None:
            return
        for sighting in window.failing(untold=True):
            sighting.where = " ".join(filter(None, [f"in {window.nodeid},", sighting.where or "in its call"]))
            self.outside.append(sighting)

    @contextlib.contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Set the current place outside tests."""
        before, self.place = self.place, place
        try:
            yield
        finally:
            self.place = before
