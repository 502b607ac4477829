"""Memory map page of a run: the buffers of the newest dump in its folder, in order of address.

Built in a thread of the status server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

from shadowgraph.common.errors import ShadowgraphError
from shadowgraph.dumps.naming import BufferNames
from shadowgraph.dumps.reader import Dump, read_dump
from shadowgraph.model.buffers import Buffer
from shadowgraph.wrap.folder.reader import Run
from shadowgraph.wrap.status.html import page, table, text

_ROWS = 500
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
                return page("shadowgraph: memory map", [f'<p id="none">{text(_NONE)}</p>'])
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
            body = list(_body(path, dump))
    except ShadowgraphError as error:
        body = [f'<p id="none">{text(error)}</p>']
    return page("shadowgraph: memory map", body)


def _body(path: Path, dump: Dump) -> Iterator[str]:
    about = dump.manifest
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(about.time))
    yield f"<h1>Memory of process {about.pid:d} at {when}</h1>"
    yield f'<p class="dim">from the newest dump, {text(path.name)} (reason: {text(about.reason)})</p>'
    yield '<nav><a href="./">status</a></nav>'
    names = BufferNames(dump)
    facts = about.facts
    found: dict[int, list[str]] = {}
    for finding in facts.damage:
        found.setdefault(finding.buffer.serial, []).append(f"{finding.code} (#{finding.id} of this process)")
    graphs = {graph.serial: graph.name for graph in about.graphs}
    order = sorted(dump.buffers, key=lambda buffer: (buffer.serial not in found, -buffer.nbytes))
    shown = sorted(order[:_ROWS], key=lambda buffer: buffer.start)
    headings = ("address", "bytes", "guard before", "guard after", "role", "findings", "buffer")
    rows = (_row(buffer, names, graphs, found) for buffer in shown)
    yield table("map", headings, rows, len(order) - len(shown))


def _row(
    buffer: Buffer, names: BufferNames, graphs: dict[int, str], found: dict[int, list[str]]
) -> tuple[str | int, ...]:
    role = (
        f"{buffer.role} of {graphs.get(buffer.graph, buffer.graph)}" if buffer.graph is not None else f"{buffer.role}"
    )
    form = f"{names.name(buffer)}  {buffer.dtype}{list(buffer.shape)}"
    bad = ", ".join(found.get(buffer.serial, ()))
    return f"{buffer.start:#x}", buffer.nbytes, buffer.head_guard, buffer.tail_guard, role, bad, form
