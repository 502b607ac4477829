"""Routes of the status server: the paths and the functions that build their content.

Called in the server's threads; a lock protects the deferred imports.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shadowgraph.render.text.run_text import RunReport
    from shadowgraph.wrap.status.memory import MapPage
    from shadowgraph.wrap.status.snapshot import Snapshot

Made = tuple[str, bytes]  # a content type, and the content

_HTML = "text/html; charset=utf-8"


class Pages:
    """The pages of one run folder. Their modules are imported at the first request: the command must start fast.

    Parameters
    ----------
    memory
        Whether the JSON includes the bytes of memory that findings show.
    """

    def __init__(self, folder: str | os.PathLike[str], memory: bool = False) -> None:
        self._folder, self._memory = folder, memory
        self._lock = threading.Lock()
        self._loaded: tuple[Snapshot, MapPage] | None = None
        self._by_path: dict[str, Callable[[], Made]] = {
            "/": self._status, "/json": self._json, "/metrics": self._metrics, "/map": self._map,
        }  # fmt: skip

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths."""
        return tuple(self._by_path)

    def of(self, path: str) -> Callable[[], Made] | None:
        """The function that builds the page of a path; None for an unknown path. Calling it raises as `read_run`."""
        return self._by_path.get(path)

    def _parts(self) -> tuple[Snapshot, MapPage]:
        with self._lock:
            if self._loaded is None:
                from shadowgraph.wrap.status.memory import MapPage
                from shadowgraph.wrap.status.snapshot import Snapshot

                self._loaded = Snapshot(self._folder), MapPage()
            return self._loaded

    def _status(self) -> Made:
        from shadowgraph.wrap.status.page import status_page

        return _HTML, self._parts()[0].page("/", status_page)

    def _json(self) -> Made:
        def encoded(report: RunReport) -> bytes:
            return (report.to_json(self._memory) + "\n").encode()

        return "application/json", self._parts()[0].page("/json", encoded)

    def _metrics(self) -> Made:
        from shadowgraph.wrap.status.metrics import CONTENT_TYPE, metrics

        def encoded(report: RunReport) -> bytes:
            return metrics(report).encode("utf-8", "backslashreplace")

        return CONTENT_TYPE, self._parts()[0].page("/metrics", encoded)

    def _map(self) -> Made:
        snapshot, memory = self._parts()
        return _HTML, snapshot.page("/map", lambda report: memory.of(report.run))
