"""What suppression rules hid, as lines: below a report, in the summary of a test run. Pure functions over facts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from shadowgraph.common.console import tame
from shadowgraph.common.source_paths import short
from shadowgraph.common.words import plural
from shadowgraph.model.suppressions import RuleCount

_STALE = 20  # lines on rules that hid nothing


def suppressed_lines(sightings: int, rules: Sequence[RuleCount], ended: bool) -> Iterator[Text]:
    """The number of hidden findings, and each rule with what it hid.

    Parameters
    ----------
    sightings
        How often hidden findings were seen.
    ended
        Whether the run is over: before that, a rule that has hidden nothing is left out.
    """
    found = sum(rule.findings for rule in rules)
    if sightings:
        said = (
            f"{plural(found, 'finding')}, {plural(sightings, 'sighting')}" if found else plural(sightings, "sighting")
        )
        yield Text(f"suppressed: {said}")
    stale = [rule for rule in rules if rule.is_stale]
    left_out = frozenset(stale if not ended else stale[_STALE:])
    for rule in rules:
        if rule in left_out:
            continue
        style = "yellow" if rule.is_stale or rule.expired else "none"
        yield Text(f"suppression {short(rule.rule.place)}: {tame(rule.sentence())}", style=style)
    if ended and left_out:
        yield Text(f"suppression: {plural(len(left_out), 'more rule')} hid nothing in this run", style="yellow")
