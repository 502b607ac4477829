"""Interactive memory map: zoom, pan and hover over the buffers of a run, in a notebook or a file of its own.

Drawn by Bokeh: bars on a canvas with hover, and a page in one file that needs no server. (plotly draws bars as SVG and
its figure in a notebook needs anywidget, ipympl shows nothing without a kernel, anywidget has no drawing of its own.)
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shadowgraph.common.atomic_files import atomic_write
from shadowgraph.common.console import tame
from shadowgraph.common.errors import MissingPackageError, UsageError
from shadowgraph.common.install_hint import install_command
from shadowgraph.common.words import plural, size
from shadowgraph.render.engine import render, source
from shadowgraph.render.plots.browsing import Chart, chart_of
from shadowgraph.views.memory_map import MemoryMap

if TYPE_CHECKING:
    from shadowgraph.dumps.live import LiveDebugger
    from shadowgraph.dumps.reader import Dump

Scripts = Literal["inline", "cdn"]

_TITLE = "Memory map"


class InteractiveMap:
    """A memory map with zoom. As the last value of a notebook cell it shows itself in a frame of its own.

    Holds plain data: nothing of the debugger, dump or tensors behind it. A page carries Bokeh's scripts, so that it
    works offline; with ``scripts="cdn"`` the browser fetches them from Bokeh's own site. Nothing of the run is sent
    anywhere in either case.

    Attributes
    ----------
    map
        The drawn map.
    """

    def __init__(self, map: MemoryMap, title: str = _TITLE, scripts: Scripts = "inline") -> None:
        self.map, self.title, self.scripts = map, title, scripts

    def html(self) -> str:
        """One whole page.

        Raises
        ------
        MissingPackageError
            When bokeh is not installed.
        """
        _require_bokeh()
        from bokeh.embed import file_html
        from bokeh.resources import Resources

        from shadowgraph.render.plots.bokeh_page import page_of

        resource = Resources(mode=self.scripts)  # only the scripts that the page uses
        page = page_of(self.map, self._chart, tame(self.title), counts(self.map))
        return str(file_html(page, resource, title=tame(self.title), template=source("map_page.html")))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page into a file, atomically.

        Parameters
        ----------
        path
            Ends in .html.

        Raises
        ------
        UsageError
            When the name does not end in .html.
        MissingFileError
            When the file cannot be written.
        MissingPackageError
            When bokeh is not installed.
        """
        require_html(path)
        return atomic_write(path, self.html().encode("utf-8"))

    @property
    def height(self) -> int:
        """Height of the page in pixels."""
        from shadowgraph.render.plots.bokeh_page import height_of

        return height_of(self.map, self._chart)

    @cached_property
    def _chart(self) -> Chart | None:
        return chart_of(self.map) if self.map.buffers else None

    def _repr_html_(self) -> str:
        return render("frame.html", page=self.html(), title=self.title, height=self.height)

    def __repr__(self) -> str:
        return f"<InteractiveMap: {counts(self.map)}>"


def interactive_map(
    source: LiveDebugger | Dump | MemoryMap, *, title: str | None = None, scripts: Scripts = "inline"
) -> InteractiveMap:
    """A memory map to zoom, pan and hover over.

    Parameters
    ----------
    source
        A debugger (its present state; no check runs), an opened dump, or a map.
    title
        First line, instead of "Memory map".
    scripts
        ``"inline"``: a page contains all its scripts. ``"cdn"``: small pages, whose scripts the browser fetches.

    Raises
    ------
    UsageError
        For another source, or another value of `scripts`.
    MissingPackageError
        When bokeh is not installed.
    """
    if scripts not in ("inline", "cdn"):
        raise UsageError(f"scripts must be 'inline' or 'cdn', not {scripts!r}")
    _require_bokeh()
    return InteractiveMap(_map_of(source), _TITLE if title is None else title, scripts)


def require_html(path: str | os.PathLike[str]) -> None:
    """Refuse a file name that browsers do not open as a page.

    Raises
    ------
    UsageError
    """
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"an interactive map is a page: the name must end in .html, not {os.fspath(path)!r}")


def counts(memory: MemoryMap) -> str:
    """Counts of buffers and findings in one line."""
    if not memory.buffers:
        return "no buffers: nothing was allocated under guard(), captured or declared"
    guarded = sum(buffer.tail_guard > 0 for buffer in memory.buffers)
    found = f"{plural(len(memory.damages), 'finding')} on {plural(len(memory.damaged), 'buffer')}"
    total = size(sum(buffer.nbytes for buffer in memory.buffers))
    said = f"{plural(len(memory.buffers), 'buffer')}, {total}, {guarded:,} guarded"
    return f"{said}; {found if memory.damages else 'no findings on them'}"


def _map_of(source: object) -> MemoryMap:
    if isinstance(source, MemoryMap):
        return source
    from shadowgraph.dumps.reader import Dump

    if isinstance(source, Dump):
        from shadowgraph.dumps.naming import BufferNames
        from shadowgraph.views.dumped_map import dumped_map

        return dumped_map(source, BufferNames(source))
    from shadowgraph.dumps.live import LiveDebugger

    if isinstance(source, LiveDebugger):
        return MemoryMap.of(source)
    raise UsageError(f"an interactive map takes a debugger, a dump or a MemoryMap, not {type(source).__name__}")


def _require_bokeh() -> None:
    try:
        import bokeh.embed  # noqa: F401
    except ImportError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MissingPackageError(
            f"interactive maps need bokeh ({reason}): {install_command('notebook', 'bokeh')}"
        ) from error
