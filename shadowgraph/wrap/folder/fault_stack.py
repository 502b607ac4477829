"""The Python stack of a process with fences at a fatal signal, which `faulthandler` writes into the run folder.

`FaultStack` is made by a wrapped process, in the thread that starts its debugger; `read_fault` is called by the reader
of run folders.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
from pathlib import Path

from shadowgraph.common.atomic_files import create
from shadowgraph.model.stacks import is_machinery

SEGFAULT = "Segmentation fault at "
_SIGNAL = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_LARGEST = 64 << 10
_SHOWN = 2  # frames
_ours = False  # the handler of this process was enabled here, or in the parent that this process was forked from


def fault_file(log: Path) -> Path:
    """Where the stack of the process of a findings log goes."""
    return log.with_name(f"{log.stem.replace('findings', 'fault', 1)}.txt")


class FaultStack:
    """Has `faulthandler` write into a file, unless the program has enabled it itself.

    Parameters
    ----------
    log
        The findings log of the process.
    """

    def __init__(self, log: Path) -> None:
        global _ours
        self._path = fault_file(log)
        if faulthandler.is_enabled() and not _ours:
            return
        with contextlib.suppress(OSError):
            faulthandler.enable(create(self._path), all_threads=False)  # the file stays open
            _ours = True

    def remove(self) -> None:
        """Remove the file: the process ends in an orderly way."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)


def read_fault(log: Path) -> str | None:
    """The fatal signal of a process and the innermost frames of its program, in a line; None where they are not
    known."""
    try:
        with open(fault_file(log), "rb") as file:
            text = file.read(_LARGEST).decode("utf-8", "replace")
    except OSError:
        return None
    frames = [
        f"{os.path.basename(file)}:{line} in {function}"
        for file, line, function in _FRAME.findall(text)
        if not is_machinery(file)
    ]
    signal = _SIGNAL.search(text)
    return f"{signal[1]} at {', from '.join(frames[:_SHOWN])}" if signal is not None and frames else None
