"""Routes of the status server: the paths and the functions that build their content.

Called in the server's threads; a lock protects the deferred imports.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shadowgraph.render.text.run_text import RunReport
    from shadowgraph.wrap.status.dumped import NewestDumps
    from shadowgraph.wrap.status.snapshot import Snapshot

Made = tuple[str, bytes]  # a content type, and the content

_HTML = "text/html; charset=utf-8"
_FINDING = re.compile(r"/finding/([1-9]\d{0,5})")


class Pages:
    """The pages of one run folder. Their modules are imported at the first request: the command must start fast.

    Parameters
    ----------
    memory
        Whether the JSON includes the bytes of memory that findings show; their own pages always show them.
    """

    def __init__(self, folder: str | os.PathLike[str], memory: bool = False) -> None:
        self._folder, self._memory = folder, memory
        self._lock = threading.Lock()
        self._loaded: tuple[Snapshot, NewestDumps] | None = None
        self._by_path: dict[str, Callable[[], Made]] = {
            "/": self._status, "/json": self._json, "/metrics": self._metrics, "/map": self._map,
        }  # fmt: skip

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths; N stands for the number of a finding."""
        return (*self._by_path, "/finding/N")

    def of(self, path: str) -> Callable[[], Made] | None:
        """The function that builds the page of a path; None for an unknown path. Calling it raises as `read_run`, and
        LookupError for a finding that does not exist."""
        asked = _FINDING.fullmatch(path)
        return partial(self._finding, int(asked[1])) if asked is not None else self._by_path.get(path)

    def _parts(self) -> tuple[Snapshot, NewestDumps]:
        with self._lock:
            if self._loaded is None:
                from shadowgraph.wrap.status.dumped import NewestDumps
                from shadowgraph.wrap.status.snapshot import Snapshot

                self._loaded = Snapshot(self._folder), NewestDumps()
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
        from shadowgraph.wrap.status.memory import map_page

        snapshot, dumps = self._parts()
        return _HTML, snapshot.page("/map", lambda report: map_page(report, dumps))

    def _finding(self, number: int) -> Made:
        from shadowgraph.wrap.status.memory import finding_page

        snapshot, dumps = self._parts()
        return _HTML, snapshot.page(f"/finding/{number}", lambda report: finding_page(report, number, dumps))
