"""Final results of one process of a run, beyond its tests' reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from shadowgraph.model.suppressions import RuleCount, added_counts

if TYPE_CHECKING:
    from shadowgraph.integrations.pytest.quieting import FaultsAside
    from shadowgraph.integrations.pytest.watcher import Watcher
    from shadowgraph.model.run_facts import RunFacts


class Tally(msgspec.Struct, frozen=True):
    """Final results of one process.

    Attributes
    ----------
    outside
        Code and text of each finding that no test's report shows.
    checks, slowest, slowest_in
        Number of full checks, and the duration of the longest in seconds, with its place.
    coverage
        One sentence, or empty when no debugger ran.
    lines
        Other lines for the summary.
    suppressed, rules
        How often suppressed findings were seen, and what each suppression rule hid.
    faults
        Internal errors, counted.
    details
        Messages of internal errors, with tracebacks.
    """

    outside: tuple[tuple[str, str], ...] = ()
    checks: int = 0
    slowest: float = 0.0
    slowest_in: str = ""
    coverage: str = ""
    lines: tuple[str, ...] = ()
    suppressed: int = 0
    rules: tuple[RuleCount, ...] = ()
    faults: dict[str, int] = {}
    details: tuple[str, ...] = ()

    def encoded(self) -> str:
        """Encode as text to pass between processes."""
        return msgspec.json.encode(self).decode()


def decoded(text: str) -> Tally:
    """The inverse of `Tally.encoded`."""
    return msgspec.json.decode(text, type=Tally)


def tally_of(watcher: Watcher, aside: FaultsAside, faults_before: Mapping[str, int]) -> Tally:
    """The tally of this process; includes internal errors that occur while it is made."""
    from shadowgraph.common.internal_errors import error_barrier, internal_errors

    told: list[tuple[str, str]] = []
    with error_barrier("summary"):
        told += _outside(watcher)
    coverage, lines = "", tuple(watcher.said)
    facts: list[RunFacts] = []
    with error_barrier("summary"):
        facts += [debugger.facts() for debugger in watcher.debuggers]
        coverage, more = _facts(facts)
        lines += more
    counted = {what: n - faults_before.get(what, 0) for what, n in internal_errors.counts.items()}
    return Tally(
        outside=tuple(told),
        checks=watcher.checks,
        slowest=watcher.slowest[0],
        slowest_in=watcher.slowest[1],
        coverage=coverage,
        lines=lines,
        suppressed=sum(made.suppressed for made in facts),
        rules=added_counts(made.suppressions for made in facts),
        faults={what: n for what, n in counted.items() if n > 0},
        details=tuple(aside.kept),
    )


def _outside(watcher: Watcher) -> list[tuple[str, str]]:
    from shadowgraph.integrations.pytest.failing import shown

    kept = [s for s in watcher.outside if s.is_error and not s.told]
    return [(s.finding.code, "\n".join(shown(s))) for s in kept]


def _facts(facts: list[RunFacts]) -> tuple[str, tuple[str, ...]]:
    """Coverage over all debuggers, and their lines on limits."""
    from shadowgraph.wrap.folder.merging import coverage_of

    if not facts:
        return "", ("no test was watched",)
    lines = [f"limit: {limit}" for made in facts for limit in made.limits]
    lines += [f"the device is lost, checking ended: {made.lost}" for made in facts if made.lost is not None]
    lines += _left_out(facts)
    return coverage_of(made.coverage for made in facts).sentence(), tuple(dict.fromkeys(lines))


def _left_out(facts: list[RunFacts]) -> list[str]:
    """Lines on captures without guards, and on where the debugger stepped aside."""
    from shadowgraph.common.words import plural

    left = [(reason, n) for made in facts for reason, n in made.left_alone.items()]
    lines = [f"guards: left out of {plural(n, 'capture')}: {reason}" for reason, n in left]
    aside = sum((Counter(made.stepped_aside) for made in facts), Counter[str]())
    return lines + [f"stepped aside: {n:,} {reason}" for reason, n in aside.items()]
