"""The checks of one debugger, made by the kinds of finding, in the order in which the monitor calls them."""

from __future__ import annotations

from typing import TypeVar

from shadowgraph.checks.base import Check, Context
from shadowgraph.checks.kinds import BUILT_IN, kinds
from shadowgraph.checks.probed import ProbedCheck

_C = TypeVar("_C", bound=Check)


class Checks:
    """The checks of one debugger: each by its class, and all of them in order. Owned by the monitor.

    Attributes
    ----------
    all
        Every check, in the order of the kinds; those of kinds registered from outside come last.
    probed
        The checks that judge write sets of probed replays.
    needs_every_write
        The checks that must see every write of the host; with any write missing their findings would be wrong.
    """

    def __init__(self, context: Context) -> None:
        order = {kind.code: place for place, kind in enumerate(BUILT_IN)}
        known = sorted(kinds(), key=lambda kind: order.get(kind.code, len(order)))
        self.all: tuple[Check, ...] = tuple(check for kind in known for check in kind.make_checks(context))
        self._by_class = {type(check): check for check in self.all}
        self.probed = tuple(check for check in self.all if isinstance(check, ProbedCheck))
        self.needs_every_write = tuple(check for check in self.all if check.needs_every_write)

    def __getitem__(self, kind: type[_C]) -> _C:
        """The check of a class."""
        check = self._by_class[kind]
        assert isinstance(check, kind)
        return check

    def find(self, kind: type[_C]) -> _C | None:
        """The check of a class, where the settings have it."""
        return self[kind] if kind in self._by_class else None

    def invalidate_writers(self) -> None:
        """After unseen writes."""
        for check in self.all:
            check.invalidate_writers()
