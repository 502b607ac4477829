"""Source locations with shortened file paths, for texts and tables."""

from __future__ import annotations

import os


def short(path: str) -> str:
    """A path without its prefix up to site-packages or the working directory."""
    for marker in ("site-packages" + os.sep, "dist-packages" + os.sep):
        if marker in path:
            return path.split(marker, 1)[1]
    here = os.getcwd() + os.sep
    return path.removeprefix(here)


def at(file: str | None, line: int | None = None) -> str:
    """``" at model.py:33"``, or an empty string where no file is known."""
    if not file:
        return ""
    return f" at {short(file)}" if line is None else f" at {short(file)}:{line}"
