"""Summary section at the end of a run, for this process or for all workers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from shadowgraph.integrations.pytest.tally import Tally, decoded
from shadowgraph.model.suppressions import added_counts
from shadowgraph.render.text.suppressed_text import suppressed_lines

_TITLE = "shadowgraph"


class Summary:
    """Collects codes from the tests' reports, and a tally from each process."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._codes: dict[str, str] = {}  # by test id
        self._tallies: list[tuple[str, Tally]] = []

    def add(self, worker: str, tally: Tally) -> None:
        """A process has ended; `worker` is empty for this one."""
        self._tallies.append((worker, tally))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        codes = dict(report.user_properties).get(_TITLE)
        if isinstance(codes, str):
            self._codes[report.nodeid] = codes

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        text = getattr(node, "workeroutput", {}).get(_TITLE)
        if text is not None:
            self.add(node.gateway.id, decoded(text))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and any(tally.outside for _, tally in self._tallies):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._tallies and not self._codes:
            return
        terminalreporter.section(_TITLE)
        for text in self._outside():
            terminalreporter.write_line(text, red=True)
        for line in (*self._counts(), *self._suppressed(), *self._ends(self._config.get_verbosity() > 0)):
            terminalreporter.write_line(line)

    def _outside(self) -> list[str]:
        return [f"{_of(worker)}{text}\n" for worker, tally in self._tallies for _, text in tally.outside]

    def _counts(self) -> list[str]:
        inside = Counter(code for codes in self._codes.values() for code in codes.split())
        outside = Counter(code for _, tally in self._tallies for code, _ in tally.outside)
        if not inside and not outside:
            return ["no findings"]
        return [_count(code, inside[code], outside[code]) for code in sorted({*inside, *outside})]

    def _suppressed(self) -> list[str]:
        """What suppression rules hid, over all processes of the run."""
        sightings = sum(tally.suppressed for _, tally in self._tallies)
        rules = added_counts(tally.rules for _, tally in self._tallies)
        return [line.plain for line in suppressed_lines(sightings, rules, ended=True)]

    def _ends(self, verbose: bool) -> list[str]:
        lines = []
        for worker, tally in self._tallies:
            errors = (f"internal error, {n} times (tests go on): {what}" for what, n in tally.faults.items())
            said = [*tally.lines, *errors]
            said += [part for text in tally.details for part in text.splitlines()] if verbose else []
            if tally.checks:
                slow = f"slowest {tally.slowest * 1e3:,.1f} ms {_place(tally.slowest_in)}"
                said.append(f"{tally.checks:,} checks, {slow}")
            said += [f"coverage: {tally.coverage}"] if tally.coverage else []
            lines += [f"{_of(worker)}{line}" for line in said]
        return lines


def _count(code: str, inside: int, outside: int) -> str:
    parts = [f"in {inside} {'test' if inside == 1 else 'tests'}"] if inside else []
    parts += [f"{outside} outside of tests' reports"] if outside else []
    return f"{code}: {', '.join(parts)}"


def _place(where: str) -> str:
    return where if where.startswith(("in ", "at ", "during ", "between ")) else f"in {where}"


def _of(worker: str) -> str:
    return f"{worker}: " if worker else ""
