"""Memory map page of a run: the buffers of the newest dump in its folder, in order of address.

Built in a thread of the status server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shadowgraph.common.errors import ShadowgraphError
from shadowgraph.dumps.naming import BufferNames
from shadowgraph.dumps.reader import Dump, read_dump
from shadowgraph.model.buffers import Buffer
from shadowgraph.render.engine import render
from shadowgraph.wrap.folder.reader import Run
from shadowgraph.wrap.status.tables import Row, Table

_ROWS = 500
_HEADINGS = ("address", "bytes", "guard before", "guard after", "role", "findings", "buffer")
_NONE = (
    "no dump in the run folder yet. A process writes one at its first finding, and at the signal that --dump-signal "
    "names (SIGUSR2): `kill -USR2 PID`"
)


class MapPage:
    """Builds the page of the newest dump and caches it until there is a newer dump."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: tuple[tuple[Path, int], bytes] | None = None

    def of(self, run: Run) -> bytes:
        """The page; it says so when there is no dump, or no readable one."""
        with self._lock:
            newest = max(_dated(run.dumps), default=None)
            if newest is None:
                return _rendered(missing=_NONE)
            key = newest[1], newest[0]
            if self._made is None or self._made[0] != key:
                self._made = key, _page(newest[1])
            return self._made[1]


def _dated(dumps: tuple[Path, ...]) -> Iterator[tuple[int, Path]]:
    for path in dumps:
        try:
            yield path.stat().st_mtime_ns, path
        except OSError:
            continue  # deleted meanwhile


def _page(path: Path) -> bytes:
    try:
        with read_dump(path) as dump:
            return _rendered(**_contents(path, dump))
    except ShadowgraphError as error:
        return _rendered(missing=str(error))


def _rendered(**values: Any) -> bytes:
    return render("memory.html", **{"missing": "", **values}).encode("utf-8", "backslashreplace")


def _contents(path: Path, dump: Dump) -> dict[str, Any]:
    about, names = dump.manifest, BufferNames(dump)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(about.time))
    found: dict[int, list[str]] = {}
    for finding in about.facts.damage:
        found.setdefault(finding.buffer.serial, []).append(f"{finding.code} (#{finding.id} of this process)")
    graphs = {graph.serial: graph.name for graph in about.graphs}
    order = sorted(dump.buffers, key=lambda buffer: (buffer.serial not in found, -buffer.nbytes))
    shown = sorted(order[:_ROWS], key=lambda buffer: buffer.start)
    rows = (_row(buffer, names, graphs, found) for buffer in shown)
    return {
        "title": f"Memory of process {about.pid} at {when}",
        "about": f"from the newest dump, {path.name} (reason: {about.reason})",
        "buffers": Table.of("map", _HEADINGS, rows, len(order) - len(shown)),
    }


def _row(buffer: Buffer, names: BufferNames, graphs: dict[int, str], found: dict[int, list[str]]) -> Row:
    role = (
        f"{buffer.role} of {graphs.get(buffer.graph, buffer.graph)}" if buffer.graph is not None else f"{buffer.role}"
    )
    form = f"{names.name(buffer)}  {buffer.dtype}{list(buffer.shape)}"
    bad = ", ".join(found.get(buffer.serial, ()))
    return f"{buffer.start:#x}", buffer.nbytes, buffer.head_guard, buffer.tail_guard, role, bad, form
