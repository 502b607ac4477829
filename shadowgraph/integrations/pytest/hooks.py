"""The pytest hooks that watch tests and open and close windows of the `Watcher`.

Findings of a test's set-up and call fail its call; findings of its tear-down fail the tear-down. A test that fails by
itself keeps its own failure, with the findings below it. Runs in pytest's main thread.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from shadowgraph.common.errors import FindingsError, ShadowgraphError
from shadowgraph.common.internal_errors import error_barrier, internal_errors, logger
from shadowgraph.integrations.pytest.declared import declared_by
from shadowgraph.integrations.pytest.dumping import Dumps
from shadowgraph.integrations.pytest.failing import Findings, told, verdict_of
from shadowgraph.integrations.pytest.guests import is_wrapped
from shadowgraph.integrations.pytest.handle import WatchedTest
from shadowgraph.integrations.pytest.options import Asked
from shadowgraph.integrations.pytest.quieting import FaultsAside
from shadowgraph.integrations.pytest.reporting import complete
from shadowgraph.integrations.pytest.tally import tally_of
from shadowgraph.integrations.pytest.watcher import Watcher
from shadowgraph.integrations.pytest.windows import Window

_DAMAGE_AT_EXIT = pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED
Passing = Generator[None, Any, Any]


class Hooks:
    """Registered only in a run that uses shadowgraph."""

    def __init__(self, config: pytest.Config, asked: Asked) -> None:
        self._config, self._asked = config, asked
        self._dumps = Dumps(asked.dumps)
        self.watcher = Watcher(self._dumps.noticed)
        self._dumps.watcher = self.watcher
        self._faults_before = internal_errors.counts
        self._refusal: Findings | None = None  # for the test in set-up
        self.aside = FaultsAside()
        if not is_wrapped():  # `wrap` reports internal errors itself
            logger.addFilter(self.aside)

    def handle(self, item: pytest.Item) -> WatchedTest:
        """The fixture's value for a test."""
        window = self.watcher.window
        late = window is None or not window.declared.watched
        if late and declared_by(item, everywhere=True).watched:  # requested by name during the test
            self._begin(item, by_itself=True)
            window = self.watcher.window
            if self._refusal is not None:
                raise self._refusal
        if window is None or not window.declared.watched:
            pytest.fail("the fixture shadowgraph is of no use in a test marked no_shadowgraph", pytrace=False)
        if late:
            window.phase = "call"
        return WatchedTest(self.watcher, window)

    # -- outside tests -----------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Passing:
        if self._asked.everywhere:
            with error_barrier("start of the watch"):
                self.watcher.watch(lambda: self._asked.settings({}))
        with self.watcher.at("during collection"):
            result = yield
            self.watcher.check()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Passing:
        if not isinstance(collector, pytest.Module):
            return (yield)
        with self.watcher.at(f"in the import of {collector.nodeid}"):
            result = yield
            self.watcher.check()
        return result

    @pytest.hookimpl(wrapper=True, trylast=True)  # before the summary, and before a worker reports its end
    def pytest_sessionfinish(self, session: pytest.Session) -> Passing:
        with self.watcher.at("at the end of the run"):
            result = yield
            with error_barrier("end of the run"):
                self.watcher.close()
                self.watcher.check()
                self.watcher.end()
        logger.removeFilter(self.aside)
        tally = tally_of(self.watcher, self.aside, self._faults_before)
        if hasattr(self._config, "workerinput"):
            self._config.workeroutput["shadowgraph"] = tally.encoded()  # type: ignore[attr-defined]
        else:
            self._config.pluginmanager.getplugin("shadowgraph-summary").add("", tally)
        if tally.outside and session.exitstatus in _DAMAGE_AT_EXIT:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return result

    # -- fixtures ----------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Passing:
        window = self.watcher.window
        if window is None:
            return (yield)
        window.fixtures.append((fixturedef.argname, fixturedef.scope))
        try:
            result = yield
            if fixturedef.scope != "function":  # its damage must not be attributed to the first test
                self.watcher.check()
        finally:
            window.fixtures.pop()
        return result

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        window = self.watcher.window
        if window is None or window.phase != "teardown":
            return
        if fixturedef.scope != "function":
            self.watcher.check()
        for sighting in window.sightings:
            if sighting.where == "in tear-down":
                sighting.where = f"in tear-down of fixture {fixturedef.argname!r} ({fixturedef.scope} scope)"

    # -- tests -------------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Passing:
        self._begin(item)
        try:
            return (yield)
        finally:
            self.watcher.check()

    @pytest.hookimpl(specname="pytest_runtest_setup", tryfirst=True)
    def pytest_runtest_setup_refused(self) -> None:
        """Raise the error of a test's marker inside the wrappers of other plugins: their tear-down relies on set-up."""
        if self._refusal is not None:
            raise self._refusal

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Passing:
        window = self._enter("call")
        try:
            result = yield
        except FindingsError:  # raised by `sync`; the test may expect it
            self.watcher.check()
            if window is None or not window.declared.expect or verdict_of(window) is not None:
                raise
            return None
        except Exception:
            self.watcher.check()
            raise
        self.watcher.check()
        failure = verdict_of(window) if window is not None and window.declared.watched else None
        if failure is not None:
            raise failure
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Passing:
        window = self._enter("teardown")
        try:
            result = yield
        finally:
            self.watcher.check()
        failing = window.failing(untold=True) if window is not None else []
        if window is not None and failing:
            raise Findings(told(window, failing))
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Passing:
        window = self.watcher.window
        if window is not None and window.codes():
            named = ("shadowgraph", " ".join(window.codes()))
            item.user_properties[:] = [pair for pair in item.user_properties if pair[0] != "shadowgraph"] + [named]
        report = yield
        if window is not None:
            with error_barrier("report of a test"):
                if window.declared.watched:
                    self._dumps.failed(window, report)
                complete(window, call, report)
            if report.when == "teardown":
                self._finish(window)
        return report

    # -- parts -------------------------------------------------------------------------------------------------

    def _begin(self, item: pytest.Item, by_itself: bool = False) -> None:
        """Open a test's window, with a debugger that has the test's settings."""
        self.watcher.close()
        self.watcher.sweep()
        self._refusal = None
        try:
            declared = declared_by(item, self._asked.everywhere or by_itself)
            self.watcher.window = Window(item.nodeid, declared)
            with error_barrier("start of the watch"):
                if declared.watched:
                    self.watcher.watch(lambda: self._asked.settings(declared.options, declared.by_itself))
                else:
                    self.watcher.rest()
        except ShadowgraphError as error:
            self.watcher.window = None
            self._refusal = Findings(f"shadowgraph: {error}")

    def _enter(self, phase: str) -> Window | None:
        """Begin a later phase of the test; restarts the plugin's debugger after one that the test started and ended."""
        window = self.watcher.window
        if window is None:
            return None
        window.phase = phase
        if window.declared.watched:
            with error_barrier("start of the watch"):
                self.watcher.go_on()
        return window

    def _finish(self, window: Window) -> None:
        self.watcher.close()
        if window.declared.watched and not self._asked.everywhere:
            with error_barrier("end of the watch"):
                self.watcher.rest()
