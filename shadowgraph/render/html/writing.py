"""HTML pages as files."""

from __future__ import annotations

import os
from pathlib import Path

from markupsafe import Markup

from shadowgraph.common.atomic_files import atomic_write
from shadowgraph.common.errors import MissingFileError, UsageError
from shadowgraph.common.version import VERSION
from shadowgraph.render.engine import digest, render, script
from shadowgraph.render.html.page import Page


def page_html(page: Page) -> str:
    """A whole page in one self-contained file."""
    filtering = script()
    ours = {"script": Markup(filtering), "digest": digest(filtering)}
    return render("page.html", page=page, version=VERSION, **ours) + "\n"


def require_target(path: str | os.PathLike[str], option: str = "--html") -> Path:
    """Refuse a path that cannot become a page, or what else an option writes, before a large dump is read.

    Raises
    ------
    UsageError
        For ``-``.
    MissingFileError
        For a folder, and for a file in a folder that does not exist.
    """
    target = Path(path)
    if os.fspath(path) == "-":
        raise UsageError(f"{option} writes into a file; for a pipe, name /dev/stdout")
    if target.is_dir():
        raise MissingFileError(f"cannot write {target}: it is a folder")
    if not target.parent.is_dir():
        raise MissingFileError(f"cannot write {target}: there is no folder {target.parent}")
    return target


def write_page(text: str, path: str | os.PathLike[str]) -> Path:
    """Write the text of a page atomically.

    Raises
    ------
    MissingFileError
        When the file cannot be written; an older file of that name is left as it was.
    """
    return atomic_write(path, text.encode("utf-8", "backslashreplace"))
