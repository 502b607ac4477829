"""Which finding a sighting belongs to where host launches were not observed: place and date are known, the writer is
not.

`FindingStore` calls it under the debugger's lock.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TypeVar

from shadowgraph.model.suppressions import Rule

Cause = tuple[str, int, str, str]
Where = tuple[str, int, str]
_K = TypeVar("_K")
_V = TypeVar("_V")


_MOST = 4096  # places


class UnobservedSightings:
    """Places at which damage was seen while launches were not observed. The oldest places are forgotten first.

    Attributes
    ----------
    stirs
        Changes when one of them is a reason to observe launches: the first, second, fourth, ... sighting at a place.
    """

    def __init__(self) -> None:
        self.stirs = 0
        self._open: dict[Where, Cause] = {}  # causes of which no observed sighting is known
        self._also: dict[Cause, Cause] = {}  # the same causes, as observed sightings show them
        self._last: dict[Where, Cause] = {}
        self._quiet: dict[Where, Rule] = {}  # where findings were suppressed, and by what
        self._times: dict[Where, int] = {}

    def is_open(self, where: Where) -> bool:
        """Whether damage there has no observed sighting yet: the next one tells its writer, and its fingerprint."""
        return where in self._open

    def suppressed(self, where: Where, observed: bool, rule: Rule | None) -> Rule | None:
        """The rule that hides a sighting: of an unobserved one, whose writer is not known, the rule that hid the last
        observed one there."""
        if observed:
            if rule is not None:
                _keep(self._quiet, where, rule)
            else:
                self._quiet.pop(where, None)
            return rule
        _keep(self._times, where, self._times.get(where, 0) + 1)
        if self._times[where].bit_count() == 1:
            self.stirs += 1
        return rule or self._quiet.get(where)

    def cause_of(self, where: Where, observed: bool, cause: Cause, known: Container[Cause]) -> Cause:
        """The cause as which a sighting is to be stored: for an unobserved one the cause that was last seen there."""
        if not observed:
            return self._last.get(where, cause)
        if where in self._open and cause not in known:
            _keep(self._also, cause, self._open[where])
        return self._also.get(cause, cause)

    def entered(self, where: Where, observed: bool, cause: Cause, is_new: bool) -> None:
        """A sighting was stored as one of that cause."""
        self._last[where] = cause
        if is_new and not observed:
            self._open[where] = cause

    def withdrawn(self, where: Where, observed: bool) -> Cause | None:
        """The cause without an observed sighting that a suppressed sighting turns out to be of."""
        return self._open.pop(where, None) if observed else None

    def shows_writer(self, where: Where, observed: bool, cause: Cause) -> bool:
        """Whether a sighting is the first observed one of a cause."""
        if not observed or self._open.get(where) != cause:
            return False
        del self._open[where]
        return True


def _keep(known: dict[_K, _V], key: _K, value: _V) -> None:
    known[key] = value
    if len(known) > _MOST:
        del known[next(iter(known))]
