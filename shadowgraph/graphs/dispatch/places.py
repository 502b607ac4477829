"""Places of the program, by which `Settings.guard_eager` and `Settings.fence` select allocations: a function, or a
line, that is on the stack of the allocating thread.

`Places.on_stack` runs in that thread, inside the dispatch mode; no lock: two threads may at worst look at the same
file's name twice.
"""

from __future__ import annotations

import os
import sys
from itertools import islice
from types import FrameType

from shadowgraph.model.stacks import cell_label

_FRAMES = 48


class Places:
    """Some functions and lines.

    Parameters
    ----------
    text
        ``in:module:qualname`` and ``FILE:LINE``, several separated by commas. A FILE is an absolute path, the end of
        one, or the label of a notebook cell.
    """

    def __init__(self, text: str) -> None:
        parts = text.split(",")
        self._functions = {tuple(part[3:].rsplit(":", 1)) for part in parts if part.startswith("in:")}
        self._lines: dict[str, set[int]] = {}
        for part in parts:
            if not part.startswith("in:"):
                file, _, line = part.rpartition(":")
                self._lines.setdefault(os.path.normpath(file), set()).add(int(line))
        self._known: dict[str, frozenset[int]] = {}  # lines by the name of a code's file

    def on_stack(self) -> bool:
        """Whether one of them is on this thread's stack, not far up."""
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_FRAMES):
            if frame is None:
                return False
            if self._functions and (frame.f_globals.get("__name__"), frame.f_code.co_qualname) in self._functions:
                return True
            if self._lines and self._runs_line(frame):
                return True
            frame = frame.f_back
        return False

    def _runs_line(self, frame: FrameType) -> bool:
        name = frame.f_code.co_filename
        lines = self._known.get(name)
        if lines is None:
            lines = self._lines_in(name)
            if not name.startswith("<") and cell_label(name) is None:  # a cell that runs again is renumbered
                self._known[name] = lines
        return bool(lines) and not lines.isdisjoint(_running(frame))

    def _lines_in(self, name: str) -> frozenset[int]:
        forms = {os.path.abspath(name), os.path.realpath(name), cell_label(name) or name}
        found: set[int] = set()
        for file, lines in self._lines.items():
            if any(form == file or form.endswith(os.sep + file) for form in forms):
                found |= lines
        return frozenset(found)


def _running(frame: FrameType) -> range:
    """The lines of the expression that a frame evaluates: a call may be spread over several."""
    first, last, _, _ = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    return range(first or frame.f_lineno, (last or frame.f_lineno) + 1)
