"""Versions of the packages that have an adapter, as far as they are alike. Any thread; no lock."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

Version = tuple[int, int, int]


def installed(*names: str) -> str | None:
    """Version of an installed distribution, of the first of several names that is; None where none is. Imports
    nothing."""
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def parsed(text: str) -> Version | None:
    """The release number of a version, without post-release; None for other texts and pre-releases."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)(?:\.post\d+)?(?:\+.*)?$", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def written(release: Iterable[int]) -> str:
    """A release number as text."""
    return ".".join(map(str, release))
