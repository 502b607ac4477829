"""Parses the markers of a test."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from shadowgraph.common.errors import UsageError

_NAMES = ("shadowgraph", "no_shadowgraph")


@dataclass(frozen=True)
class Declared:
    """How one test is watched.

    Attributes
    ----------
    watched
        Whether the test is watched at all.
    by_itself
        Whether a marker or the fixture asks for shadowgraph.
    options
        Fields of `Settings`.
    expect
        Codes that must be found, and no others; None when none are expected.
    allow
        Codes that do not fail the test.
    """

    watched: bool
    by_itself: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    expect: frozenset[str] | None = None
    allow: frozenset[str] = frozenset()

    def fails(self, code: str) -> bool:
        """Whether a finding with this code fails the test."""
        return code not in self.allow and code not in (self.expect or ())


def declared_by(item: pytest.Item, everywhere: bool) -> Declared:
    """Merge the markers of a test, its class and its module; the closest one wins.

    Raises
    ------
    UsageError
        For an invalid marker.
    """
    markers = [marker for marker in item.iter_markers() if marker.name in _NAMES]
    if markers and markers[0].name == "no_shadowgraph":
        return Declared(False)
    said = _keywords(markers)
    by_itself = bool(markers) or "shadowgraph" in getattr(item, "fixturenames", ())
    expect = _codes("expect", said.pop("expect", None) or ())
    allow = _codes("allow", said.pop("allow", None) or ())
    return Declared(everywhere or by_itself, by_itself, said, expect or None, allow)


def _keywords(markers: Iterable[pytest.Mark]) -> dict[str, Any]:
    """Keywords of the markers, closest first, up to one that switches shadowgraph off."""
    said: dict[str, Any] = {}
    for marker in markers:
        if marker.name == "no_shadowgraph":
            break
        if marker.args:
            raise UsageError(f"the marker shadowgraph takes keywords only, not {marker.args[0]!r}")
        said = {**marker.kwargs, **said}
    if isinstance(said.get("guard_eager"), bool):
        said["guard_eager"] = "auto" if said["guard_eager"] else "off"
    return said


def _codes(name: str, given: str | Iterable[str]) -> frozenset[str]:
    from shadowgraph.checks.kinds import titles

    known = list(titles())
    codes = [given] if isinstance(given, str) else given
    for code in codes if isinstance(codes, (list, tuple, set, frozenset)) else [codes]:
        if code not in known:
            raise UsageError(f"{name} takes codes of findings ({known[0]} to {known[-1]}), not {code!r}")
    return frozenset(codes)
