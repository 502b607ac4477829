"""Which finding a sighting belongs to where replays passed unseen: what is known of it is no more than where."""

from __future__ import annotations

from collections.abc import Container
from typing import TypeVar

from shadowgraph.model.findings import NAP, Finding

Cause = tuple[str, int, str, str]
Where = tuple[str, int, str]
_K = TypeVar("_K")
_V = TypeVar("_V")


_MOST = 4096  # places remembered, which suppressed sightings have as well


class NapSightings:
    """Places at which replays that passed had left something. Those that were known first are forgotten first.

    Attributes
    ----------
    stirs
        Changes when one of them is a reason to watch: the first, second, fourth, ... time at a place.
    """

    def __init__(self) -> None:
        self.stirs = 0
        self._open: dict[Where, Cause] = {}  # causes of which it is known only that they happened in a nap
        self._also: dict[Cause, Cause] = {}  # what those turned out to be, by what was seen of it
        self._last: dict[Where, Cause] = {}
        self._quiet: dict[Where, None] = {}  # where findings were suppressed
        self._times: dict[Where, int] = {}

    def suppressed(self, finding: Finding, where: Where, is_suppressed: bool) -> bool:
        """Whether a sighting is suppressed: one in a nap is where one outside naps was, since it cannot tell who did
        it."""
        if finding.detected_at != NAP:
            if is_suppressed:
                _keep(self._quiet, where, None)
            else:
                self._quiet.pop(where, None)
            return is_suppressed
        _keep(self._times, where, self._times.get(where, 0) + 1)
        if self._times[where].bit_count() == 1:
            self.stirs += 1
        return is_suppressed or where in self._quiet

    def cause_of(self, finding: Finding, where: Where, cause: Cause, known: Container[Cause]) -> Cause:
        """The cause as which a sighting is to be entered: in a nap the one that was last seen there."""
        if finding.detected_at == NAP:
            return self._last.get(where, cause)
        if where in self._open and cause not in known:
            _keep(self._also, cause, self._open[where])
        return self._also.get(cause, cause)

    def entered(self, finding: Finding, where: Where, cause: Cause, is_new: bool) -> None:
        """A sighting was entered as one of that cause."""
        self._last[where] = cause
        if is_new and finding.detected_at == NAP:
            self._open[where] = cause

    def withdrawn(self, finding: Finding, where: Where) -> Cause | None:
        """The cause, seen in naps only, that a suppressed sighting turns out to be of."""
        return self._open.pop(where, None) if finding.detected_at != NAP else None

    def dates(self, finding: Finding, where: Where, cause: Cause) -> bool:
        """Whether a sighting is the first that says when something happens that was seen in naps only."""
        if finding.detected_at == NAP or self._open.get(where) != cause:
            return False
        del self._open[where]
        return True


def _keep(known: dict[_K, _V], key: _K, value: _V) -> None:
    known[key] = value
    if len(known) > _MOST:
        del known[next(iter(known))]
