"""Acceptance case: one public bug as a program, its fixed twin, and the expected findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shadowgraph.checks.kinds import kind_of
from shadowgraph.checks.out_of_bounds.facts import overrun_of
from shadowgraph.checks.stale_rows.facts import StaleRowsDetail
from shadowgraph.common.errors import InvalidCaseError
from shadowgraph.model.findings import Finding

Program = Callable[[Any, Any, bool, int], Any]


@dataclass(frozen=True, slots=True)
class Expected:
    """Facts that at least one finding must have; None matches any value."""

    code: str
    buffer: str
    phase: str | None = None
    culprit: str | None = None
    replay: int | None = None
    past_end: int | None = None
    side: str | None = None
    launched_in: str | None = None
    lost: tuple[int, ...] | None = None
    victim: str | None = None  # the end of its name
    stale: tuple[tuple[int, int, int | None], ...] | None = None  # first row, last row, and the replay that wrote them

    def missing(self, findings: Sequence[Finding], names_launches: bool = True) -> str | None:
        """The reason why no finding fits, or None; without `names_launches` launches and rows are not compared."""
        if not names_launches:
            return replace(self, culprit=None, launched_in=None, lost=None).missing(findings)
        same = [f for f in findings if f.code == self.code and self.buffer in f.buffer.name]
        for finding in same:
            if not self._differences(finding):
                return None
        if not same:
            return f"no {self.code} on {self.buffer}"
        return f"{self.code} on {self.buffer}: {'; '.join(self._differences(same[0]))}"

    def _differences(self, finding: Finding) -> list[str]:
        seen = self._seen(finding)
        wanted = {name: getattr(self, name) for name in seen}
        return [f"{n} is {seen[n]!r}, not {w!r}" for n, w in wanted.items() if w is not None and seen[n] != w]

    def _seen(self, finding: Finding) -> dict[str, Any]:
        """The finding's facts under the names of the expected ones."""
        stack = finding.culprit.stack
        return {
            "phase": str(finding.phase),
            "culprit": finding.culprit.name,
            "replay": finding.replay,
            "past_end": finding.past_end,
            "side": str(finding.bytes.side) if finding.bytes and finding.bytes.side else None,
            "launched_in": stack[0].function if stack else None,
            "lost": tuple(row.lost for row in overrun_of(finding).rows),
            "victim": self._victim(finding),
            "stale": _stale(finding),
        }

    def _victim(self, finding: Finding) -> str | None:
        """The first victim's name, cut to the expected end if it has that end."""
        names = [victim.name for victim in kind_of(finding.code).victims(finding)]
        if not names:
            return None
        victim = names[0]
        return self.victim if self.victim is not None and victim.endswith(self.victim) else victim


@dataclass(frozen=True, slots=True)
class Case:
    """A case of the acceptance list.

    Attributes
    ----------
    program
        ``program(device, debugger, fixed, carve)``. With `carve` it takes its buffers from one flat tensor.
    damage
        Runs the program carved and without a debugger and returns whether a victim was damaged; None where the damage
        needs no proof (silent controls).
    expected
        The findings expected in the buggy program; the fixed twin must be silent. Empty for a control.
    options
        Debugger options.
    carved
        The program takes its buffers from one flat tensor under the debugger too.
    host_only
        The finding needs the recorded stores of launches.
    declared
        The finding as it is expected needs a declaration, which a program that does not use the debugger cannot make.
    reuses
        On a device the finding needs memory to be reused as the program's own allocator does (layout ``faithful``).
    """

    id: str
    title: str
    report: str
    program: Program
    expected: tuple[Expected, ...] = ()
    damage: Callable[[Any], bool] | None = None
    options: tuple[tuple[str, Any], ...] = ()
    carved: bool = False
    host_only: bool = False
    declared: bool = False
    reuses: bool = False

    @property
    def control(self) -> bool:
        return not self.expected


def require(condition: bool, what: str) -> None:
    """Check a precondition of a case.

    Raises
    ------
    InvalidCaseError
        When it does not hold: the case proves nothing here.
    """
    if not condition:
        raise InvalidCaseError(f"precondition does not hold: {what}")


def _stale(finding: Finding) -> tuple[tuple[int, int, int | None], ...] | None:
    """First and last row of each stretch of stale rows, and the replay that they were written for."""
    detail = finding.detail
    return tuple((r.first, r.last, r.replay) for r in detail.stale) if isinstance(detail, StaleRowsDetail) else None
