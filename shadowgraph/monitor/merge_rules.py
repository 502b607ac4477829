"""What is kept of two sightings of one cause: named rules, of which the first that applies decides.

Pure functions over findings; `FindingStore` calls them.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shadowgraph.checks.kinds import kind_of
from shadowgraph.model.findings import ByteFacts, Finding, Severity, Sighting, Status
from shadowgraph.model.phases import Phase

Rule = Callable[[Finding, Finding], Finding | None]


def merged(known: Finding, again: Finding) -> Finding:
    """The known finding after one more sighting: phase, graph and replay stay those of the first one, unless that one
    knew the step alone."""
    if known.continues is not None:  # a note, as long as it is tied to its overrun
        again = msgspec.structs.replace(again, severity=known.severity)
    for rule in RULES:
        kept = rule(known, again)
        if kept is not None:
            kept = with_piece(kept, known, again)
            return msgspec.structs.replace(kept, occurrences=known.occurrences + 1)
    raise AssertionError("the last rule always applies")


def error_replaces_note(known: Finding, again: Finding) -> Finding | None:
    """A sighting that is an error takes the place of one that was a note, under its id."""
    if known.severity is Severity.NOTE and again.severity is Severity.ERROR:
        return msgspec.structs.replace(again, id=known.id, revision=known.revision + 1)
    return None


def kind_decides(known: Finding, again: Finding) -> Finding | None:
    """The rule of the finding's own kind."""
    return kind_of(known.code).merged(known, again)


def first_example_stays(known: Finding, again: Finding) -> Finding | None:
    """A note after an error adds nothing, nor does another example where the kind keeps its first one."""
    is_example = kind_of(known.code).keeps_first_example and known.detail is not None
    return known if known.severity is not again.severity or is_example else None


def widest_bytes(known: Finding, again: Finding) -> Finding | None:
    """The extreme bytes of both sightings; shows the bytes, and the facts, of the larger one."""
    old, new = known.bytes, again.bytes
    if old is None or new is None:
        return known
    shown, bytes_shown = (again, new) if _extent(new) > _extent(old) else (known, old)
    both = ByteFacts(
        first=min(old.first, new.first),
        last=max(old.last, new.last),
        count=max(old.count, new.count),
        ranges=bytes_shown.ranges,
        ranges_total=bytes_shown.ranges_total,
        side=old.side,
        distance=min(old.distance, new.distance),
        truncated=old.truncated or new.truncated,
    )
    if both == old and shown is known:
        return known
    grown = _extent(both)[0] > _extent(old)[0]
    detail = kind_of(known.code).widened(known, shown, grown)
    widest = _sighting(again) if shown is again else known.widest
    return msgspec.structs.replace(
        known, bytes=both, window=shown.window, detail=detail, widest=widest, revision=known.revision + grown
    )


def with_piece(kept: Finding, known: Finding, again: Finding) -> Finding:
    """A finding of which the step alone was known, once another sighting in these pieces shows the piece, or between
    which two it was: the step's number stays that of the first sighting."""
    old, new = known.step, again.step
    if known.phase is not Phase.STEP or again.phase not in (Phase.REPLAY, Phase.BETWEEN) or old is None or new is None:
        return kept
    edge = again.phase is Phase.BETWEEN  # code next to the first or the last of these pieces
    within = old.since - edge <= new.since <= new.until <= old.until + edge
    if (old.first, old.last) != (new.first, new.last) or not within:
        return kept
    replay = again.replay - new.number + old.number if again.replay is not None else None
    named = kept if kept.culprit.status is Status.CONFIRMED else again
    return msgspec.structs.replace(
        kept,
        culprit=named.culprit,
        candidates=named.candidates,
        phase=again.phase,
        graph=again.graph,
        replay=replay,
        step=msgspec.structs.replace(new, number=old.number),
        revision=known.revision + 1,
    )


RULES: tuple[Rule, ...] = (error_replaces_note, kind_decides, first_example_stays, widest_bytes)


def attributed(known: Finding, again: Finding) -> Finding:
    """Damage whose launches were not observed, after the first sighting whose launches were: phase, graph and replay
    stay those of the first one. It has the bytes and candidates of the observed one, which belong together; a confirmed
    culprit is a revision of its own."""
    kept = merged(known, again)
    if again.culprit.status is Status.CONFIRMED:
        return kept
    return msgspec.structs.replace(
        kept,
        revision=known.revision + 1,
        culprit=again.culprit,
        candidates=again.candidates,
        window=again.window,
        bytes=again.bytes,
        detail=again.detail,
        widest=_sighting(again) if again.bytes != known.bytes else known.widest,
    )


def shows_nothing_new(finding: Finding, *before: Finding) -> bool:
    """Whether a sighting shows only the state that was already seen: it counts as no occurrence."""
    return any(kind_of(finding.code).is_same_sight(seen, finding) for seen in before)


def writer_unknown(finding: Finding) -> bool:
    """Whether damage was seen too late to know its writer, and no closer look has shown it."""
    culprit, late = finding.culprit, kind_of(finding.code).writer_may_come_late
    return late and finding.confidence == "low" and culprit.name is None and culprit.kind is None


def _sighting(again: Finding) -> Sighting:
    return Sighting(again.phase, again.graph, again.replay, again.step)


def _extent(facts: ByteFacts) -> tuple[int, int]:
    return facts.last - facts.first, facts.count
