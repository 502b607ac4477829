"""The commands that bring what is missing. No package index has shadowgraph itself: they name the packages of an extra.

Called where an optional package cannot be imported, and by `shadowgraph doctor`; in any thread.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

_PROJECT = "shadowgraph"
_EXTRA = re.compile(r"\bextra\s*==\s*['\"]([\w-]+)['\"]")
_NAME = re.compile(r"[\w.-]+")


def install_command(extra: str, *only: str) -> str:
    """What to type for an extra.

    Parameters
    ----------
    extra
        A name under ``[project.optional-dependencies]``.
    only
        Names of the packages that are missing; all of the extra by default.
    """
    wanted = [line for line in requirements(extra) if not only or _NAME.match(line)[0] in only]  # type: ignore[index]
    if not wanted:  # a copy of the package alone
        return f"install shadowgraph from a checkout or a wheel file, with its extra {extra}"
    return f"pip install {' '.join(map(shlex.quote, wanted))}"


@cache
def requirements(extra: str) -> tuple[str, ...]:
    """The requirements of an extra, from the checkout that this is, else from the installed package."""
    try:
        project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
        if project["name"] == _PROJECT:
            return tuple(project["optional-dependencies"][extra])
    except (OSError, KeyError):
        pass
    return _installed(extra)


def _installed(extra: str) -> tuple[str, ...]:
    try:
        lines = requires(_PROJECT) or []
    except PackageNotFoundError:
        return ()
    parts = (line.partition(";") for line in lines)
    return tuple(line.strip() for line, _, marker in parts if extra in _EXTRA.findall(marker))
