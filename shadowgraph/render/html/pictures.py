"""Memory map as an image embedded in an HTML page."""

from __future__ import annotations

import base64
import dataclasses
import io
from dataclasses import dataclass

from shadowgraph.common.errors import MissingPackageError
from shadowgraph.render.text.map_text import DumpedMap, MapReport
from shadowgraph.views.memory_map import MemoryMap

ROWS = 40  # buffers with a row of their own
_DAMAGES = 60  # findings that are drawn; each takes about ten milliseconds
_LARGEST = 1_000_000  # bytes of an SVG image; a larger one is rasterised


@dataclass(frozen=True, slots=True)
class MapView:
    """A memory map: its image as a data URL, or the reason for none; its lines; the number of omitted findings."""

    picture: str
    why: str
    lines: tuple[str, ...]
    left_out: int = 0


def map_view(drawn: DumpedMap) -> MapView:
    """The map of a process, as an image where matplotlib is installed, and as lines."""
    map, left_out = drawn.map, max(0, len(drawn.map.damages) - _DAMAGES)
    if left_out:
        map = dataclasses.replace(map, damages=map.damages[:_DAMAGES])
    lines = tuple(line.plain for line in MapReport([DumpedMap(drawn.pid, drawn.dump, map)], ROWS).lines())
    try:
        return MapView(picture_of(map, f"Memory map of process {drawn.pid}"), "", lines, left_out)
    except MissingPackageError as error:
        return MapView("", f"no picture: {error}", lines, left_out)


def picture_of(map: MemoryMap, title: str) -> str:
    """A data URL for an ``img`` element, in which no script of an SVG image runs, whatever its texts contain.

    Raises
    ------
    MissingPackageError
        When matplotlib is not installed.
    """
    from shadowgraph.render.plots.memory_map import memory_map

    figure = memory_map(map, limit=ROWS, title=title)
    content = io.BytesIO()
    figure.savefig(content, format="svg", metadata={"Date": None})
    kind = "svg+xml"
    if content.tell() > _LARGEST:
        content, kind = io.BytesIO(), "png"
        figure.savefig(content, format="png", dpi=110)
    return f"data:image/{kind};base64,{base64.b64encode(content.getvalue()).decode()}"
