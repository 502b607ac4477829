"""Places in source files as a code host names them: relative to the root of the repository. Pure functions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from shadowgraph.model.findings import Culprit, Finding
from shadowgraph.model.stacks import Frame

_PACKAGES = frozenset(("site-packages", "dist-packages"))


class Place(NamedTuple):
    """A line of a file: relative to the root, or as an absolute path where it lies elsewhere. Line 0 is unknown."""

    file: str
    line: int
    is_below: bool


def source_root(named: str | None = None) -> Path:
    """The folder that paths are relative to: the one named, else the repository of the working directory, else that."""
    if named is not None:
        return Path(os.path.abspath(named))
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)


def place_of(file: str, line: int, root: Path) -> Place | None:
    """A line of a stack; None for a notebook's cell and for code that no file has."""
    if not file or file.startswith(("In[", "<")):
        return None
    path = os.path.normpath(file.replace("\\", "/"))
    below = os.path.relpath(path, root) if os.path.isabs(path) else path
    parts = below.split("/")
    is_below = parts[0] != ".." and _PACKAGES.isdisjoint(parts)
    return Place(below if is_below else path, max(line, 0), is_below)


def primary_place(finding: Finding, root: Path) -> Place | None:
    """The line to show a finding at: that of the kernel's store where it is known, else the innermost of the repository
    that launched the culprit, else that allocated the buffer, else that reads it; without any of the repository the
    innermost of all."""
    culprit = finding.culprit
    launched = (*store_frames(culprit), *launch_frames(culprit))
    frames = (*launched, *finding.buffer.allocated, *reader_frames(finding))
    known = [place for frame in frames if (place := place_of(frame.file, frame.line, root)) is not None]
    return next((place for place in known if place.is_below), next(iter(known), None))


def store_frames(culprit: Culprit) -> Iterable[Frame]:
    """The line of the store that hit the bytes."""
    return (culprit.stored_by.line,) if culprit.stored_by is not None else ()


def launch_frames(culprit: Culprit) -> Iterator[Frame]:
    """The lines of a launch, innermost first."""
    if not culprit.stack and culprit.file:
        yield Frame(culprit.file, culprit.line or 0, "")
    yield from culprit.stack


def reader_frames(finding: Finding) -> Iterable[Frame]:
    """The line of the next reader of the bytes."""
    reader = finding.reader
    return (Frame(reader.file, reader.line or 0, ""),) if reader is not None and reader.file else ()
