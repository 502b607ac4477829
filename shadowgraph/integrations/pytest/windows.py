"""Findings grouped by the test, fixture or import in which they were seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from shadowgraph.integrations.pytest.declared import Declared
from shadowgraph.model.findings import Finding, Severity


@dataclass(eq=False)
class Sighting:
    """A finding that was new, or seen again, in one place of a run.

    Attributes
    ----------
    finding
        The finding in its latest state.
    phase
        ``setup``, ``call`` or ``teardown`` of a test; empty outside tests.
    where
        The place in words; may be empty for a test's own call.
    told
        Whether a test's report has shown the sighting.
    """

    finding: Finding
    phase: str = ""
    where: str = ""
    told: bool = False

    @property
    def is_error(self) -> bool:
        """Whether it is a finding: no note, and not suppressed since."""
        return self.finding.severity is Severity.ERROR and not self.finding.suppressed_by


@dataclass(eq=False)
class Window:
    """One run of one test, from its set-up to its tear-down.

    Attributes
    ----------
    fixtures
        Name and scope of the fixtures being set up, innermost last.
    """

    nodeid: str
    declared: Declared
    phase: str = "setup"
    sightings: list[Sighting] = field(default_factory=list)
    fixtures: list[tuple[str, str]] = field(default_factory=list)
    dump: Path | None = None

    def where(self) -> str:
        """The current place within the test; empty in its call."""
        if self.fixtures:
            name, scope = self.fixtures[-1]
            return f"in fixture {name!r} ({scope} scope)"
        return {"setup": "in set-up", "teardown": "in tear-down"}.get(self.phase, "")

    def failing(self, untold: bool = False) -> list[Sighting]:
        """Sightings that fail the test; with `untold`, only those that no report has shown."""
        return [s for s in self.errors() if self.declared.fails(s.finding.code) and not (untold and s.told)]

    def errors(self) -> list[Sighting]:
        """Sightings of findings, without notes."""
        return [s for s in self.sightings if s.is_error]

    def codes(self) -> list[str]:
        """Codes of the findings, sorted."""
        return sorted({s.finding.code for s in self.errors()})

    def missing(self) -> list[str]:
        """Codes that were expected and not found."""
        return sorted((self.declared.expect or frozenset()) - set(self.codes()))
