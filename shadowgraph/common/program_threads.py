"""Python threads of the program beside the current one: they may write to its memory at any time.

Any thread may ask; no lock of shadowgraph. Each answer is about that moment.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType

# Packages whose threads serve a test runner, a notebook or a progress bar, and shadowgraph's own: they run no code of
# the program.
_SERVICES = frozenset({"shadowgraph", "_pytest", "pytest_timeout", "xdist", "execnet", "IPython", "ipykernel", "tqdm"})
_CELLS = "ipykernel.subshell"  # but these run cells
_COMPILER = "torch._inductor."  # its threads wait for processes that compile


def other_threads() -> list[str]:
    """Names of the other threads that may run code of the program.

    Every thread counts that is alive, a daemon or an idle worker of a pool as well, since what it will run next is not
    known: all but those that a service started, as its class, the function of its timer or its outermost function says.
    Threads without Python code are not seen.
    """
    own, frames = threading.get_ident(), sys._current_frames()
    frames.pop(own, None)  # a reference to this function's own frame would be a cycle
    found = []
    for thread in threading.enumerate():
        frame = frames.pop(thread.ident, None) if thread.ident is not None else None
        if thread.ident != own and not _is_service(_origin(thread, frame)):
            found.append(thread.name)
    found += [f"thread {ident}" for ident, frame in frames.items() if not _is_service(_outermost(frame))]
    return found


def _is_service(module: str) -> bool:
    return (module.split(".")[0] in _SERVICES and module != _CELLS) or module.startswith(_COMPILER)


def _origin(thread: threading.Thread, frame: FrameType | None) -> str:
    """The module whose code a thread runs; empty where that is not known."""
    if type(thread).__module__ != threading.__name__:
        return type(thread).__module__
    if isinstance(thread, threading.Timer):
        return str(getattr(thread.function, "__module__", ""))
    return _outermost(frame)


def _outermost(frame: FrameType | None) -> str:
    """The module of a thread's outermost function, but for those that start every thread; empty without one."""
    module = ""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        module = name if name != threading.__name__ else module
        frame = frame.f_back
    return module
