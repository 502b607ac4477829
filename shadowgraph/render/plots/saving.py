"""Maps and figures as files, written atomically. Called by the verbs that draw and by programs, in any thread."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from shadowgraph.common.atomic_files import atomic_write
from shadowgraph.common.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
_DPI = 144
_MOST_PIXELS = 60_000  # the rasteriser's limit is 65,536 a side
_NO_DATE: dict[str, dict[str, None]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def format_of(path: str | os.PathLike[str]) -> str:
    """The picture format of a path's suffix.

    Raises
    ------
    UsageError
        For any other suffix than png, svg and pdf.
    """
    suffix = Path(path).suffix.lower().lstrip(".")
    if suffix not in FORMATS:
        raise UsageError(f"cannot save a picture as {os.fspath(path)!r}: the name must end in .png, .svg or .pdf")
    return suffix


def save_map(
    draw: Callable[..., Figure], map: object, path: str | os.PathLike[str], *, limit: int = 40, title: str | None = None
) -> Path:
    """Draw a map into a file, atomically.

    Parameters
    ----------
    draw
        The function that draws this kind of map, such as `write_map`.
    map
        The map to draw.
    path
        The file, which is replaced; its suffix png, svg or pdf selects the format.
    limit, title
        As for `draw`.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    UsageError
        For a suffix that is no picture format, or a limit out of range.
    MissingFileError
        When the file cannot be written; an older file of that name is left as it was.
    MissingPackageError
        When matplotlib is not installed.
    """
    format_of(path)
    return save_figure(draw(map, limit=limit, title=title), path)


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure under a temporary name and move it into place.

    Raises
    ------
    UsageError
        For a suffix that is no picture format.
    MissingFileError
        When the file cannot be written; an older file of that name is left as it was.
    """
    kind = format_of(path)
    content = io.BytesIO()
    dpi = min(_DPI, _MOST_PIXELS / max(figure.get_size_inches()))
    figure.savefig(content, format=kind, dpi=dpi, metadata=_NO_DATE[kind])
    return atomic_write(path, content.getbuffer())
