"""Names for buffers without owners, from variables that are alive when a finding needs a name.

An allocation stores nothing but the stack that the ledger keeps anyway. When a finding is about a buffer without an
owner, variables are searched: globals of the main module and of the modules on that stack; locals of the running
functions on it; locals of all other running functions. The first scope with a variable that leads to the buffer names
it. Runs on the thread that asks for the name; no lock.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType

import torch

from shadowgraph.model.buffers import Buffer
from shadowgraph.model.owners import Owner
from shadowgraph.model.ranges import RangeIndex
from shadowgraph.model.stacks import cell_label, is_machinery
from shadowgraph.tracking.aliases import NameBook
from shadowgraph.tracking.names import WalkResult, walk
from shadowgraph.tracking.pool_watch import Sight, borrowers

_OBJECTS = (100, 4_000)  # expanded for each variable, in a first and a second pass
_SECONDS = 1.0  # for one search
_OF_BLOCKS = 0.5  # for all searches at ends of blocks, which a program may enter at every step
_HISTORY = re.compile(r"_{1,3}|_i{1,3}|_i?\d+|_[iod]h|In|Out|exit|quit|open")  # names that IPython defines
_NO_ROOTS = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type, str, bytes, int, float, type(None))

Variable = tuple[str, object]
Take = Callable[[str, object, Mapping[int, list[Owner]]], None]  # variable name, value, owners by buffer serial


class VariableNames:
    """Searches variables that lead to buffers, within a time limit for the whole process.

    Parameters
    ----------
    names
        Receives the variables that were found; it holds them weakly.
    seconds
        Time for all searches together; half of it is reserved for searches for a finding.
    """

    def __init__(self, names: NameBook, seconds: float = 5.0) -> None:
        self._names = names
        self._left = seconds
        self._kept = seconds / 2
        self._of_blocks = min(_OF_BLOCKS, seconds)
        self._tried: set[int] = set()  # serials of `find_new`
        self._noted: set[int] = set()  # serials of `note_former`
        self._used: dict[str, list[int]] = {}  # by variable name: the ids of its objects

    def find(self, buffer: Buffer) -> None:
        """Give a buffer an owner name, if a living variable leads to it."""
        self._search([buffer], self._name)

    def find_new(self, buffers: Iterable[Buffer]) -> None:
        """`find` for several buffers, each tried once."""
        self._search_new(buffers, self._tried, self._name)

    def note_former(self, buffers: Iterable[Buffer], seconds: float = _SECONDS) -> None:
        """Record the variables that lead to several buffers, each tried once: names for use after their free only."""
        self._search_new(buffers, self._noted, self._note, seconds)

    def note_block(self, buffers: list[Buffer], seconds: float) -> None:
        """`note_former` for the buffers of a block that ends, within a time limit for all blocks. They can be tried
        again: what holds them later may have a better name."""
        if buffers and self._of_blocks > 0:
            began = time.monotonic()
            try:
                self._search(buffers, self._note, min(seconds, self._of_blocks))
            finally:
                self._of_blocks -= time.monotonic() - began

    def _search_new(self, buffers: Iterable[Buffer], tried: set[int], take: Take, seconds: float = _SECONDS) -> None:
        new = [buffer for buffer in buffers if buffer.serial not in tried]
        if new and self._left > self._kept:
            tried.update(buffer.serial for buffer in new)
            self._search(new, take, seconds)

    def _search(self, buffers: list[Buffer], take: Take, seconds: float = _SECONDS) -> None:
        began = time.monotonic()
        deadline = began + min(seconds, self._left)
        try:
            for objects in _OBJECTS:  # shallow targets first, then targets deep in large objects
                buffers = self._missing(buffers, objects, deadline, take)
                if not buffers:
                    return
        finally:
            self._left -= time.monotonic() - began

    def _missing(self, buffers: list[Buffer], objects: int, deadline: float, take: Take) -> list[Buffer]:
        """One pass over all scopes; returns the buffers still without a name, or none once the time is up."""
        seen: set[int] = set()
        left = {buffer.serial: buffer for buffer in buffers}
        index = RangeIndex((buffer.range, buffer) for buffer in buffers if buffer.nbytes)
        for variables in _scopes(buffers):
            for name, value in variables:
                if time.monotonic() > deadline:
                    return []
                if id(value) not in seen and not issubclass(type(value), _NO_ROOTS):
                    seen.add(id(value))
                    found = _by_buffer(walk(value, name, max_objects=objects), index)
                    if found:
                        take(name, value, found)
                    for serial in found:
                        left.pop(serial, None)
            if not left:
                return []
        return list(left.values())

    def _name(self, name: str, value: object, found: Mapping[int, list[Owner]]) -> None:
        same = self._used.setdefault(name, [])
        if id(value) not in same:
            same.append(id(value))
        place = same.index(id(value)) + self._names.gives(name)
        self._names.add(f"{name}#{place + 1}" if place else name, value, found=True)

    def _note(self, name: str, value: object, found: Mapping[int, list[Owner]]) -> None:
        for serial, owners in found.items():
            self._names.note_former(serial, owners)


def _by_buffer(found: WalkResult, buffers: RangeIndex[Buffer]) -> dict[int, list[Owner]]:
    """The owners that lead to each buffer, by serial, without the buffers that none leads to."""
    led: dict[int, list[Owner]] = {}
    for owner, sight in zip(found.owners, found.sights, strict=True):
        for buffer in buffers.at(owner.view.start):
            if _leads(sight, buffer):
                led.setdefault(buffer.serial, []).append(owner)
    return led


def _leads(sight: Sight | None, buffer: Buffer) -> bool:
    if not buffer.alive:  # of its names only those of storages that were made over it are left
        return sight is not None and sight.owner == buffer.serial
    return sight is None or not borrowers.is_older(sight, buffer)


def _scopes(buffers: list[Buffer]) -> Iterator[list[Variable]]:
    for module in _modules(buffers):
        yield _named(vars(module))
    for frame in _frames(buffers):
        yield _locals(frame)


def _modules(buffers: list[Buffer]) -> list[types.ModuleType]:
    """The program's main module and the modules whose code allocated the buffers, the outermost first."""
    files = list(dict.fromkeys(frame.file for buffer in buffers for frame in reversed(buffer.stack)))
    by_file = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if type(file) is str and file in files:
            by_file[file] = module
    found = [sys.modules["__main__"], *(by_file[file] for file in files if file in by_file)]
    return list({id(module): module for module in found if isinstance(module, types.ModuleType)}.values())


def _frames(buffers: list[Buffer]) -> list[FrameType]:
    """Running frames of the program, innermost first; frames of functions that led to an allocation come first, then
    this thread's before other threads'."""
    threads = sys._current_frames()
    own = threads.pop(threading.get_ident(), None)
    frames: list[FrameType] = []
    for innermost in (own, *threads.values()):
        frame = innermost
        while frame is not None:
            if not is_machinery(frame.f_code.co_filename) and frame.f_code.co_name != "<module>":
                frames.append(frame)
            frame = frame.f_back
    del own, innermost  # this frame: a cycle would keep the variables of every caller alive
    led = {(at.file, at.function) for buffer in buffers for at in buffer.stack}
    return sorted(frames, key=lambda frame: _place(frame) not in led)


def _place(frame: FrameType) -> tuple[str, str]:
    """A frame's file and function, as stacks have them."""
    code = frame.f_code
    return cell_label(code.co_filename) or code.co_filename, code.co_name


_OWNERS = 3  # references to a frame's copy of its variables: the frame, `snapshot`, and the call of `getrefcount`


def _locals(frame: FrameType) -> list[Variable]:
    """A frame's variables. Leaves no copy that would keep them alive after the frame drops them."""
    snapshot = frame.f_locals
    found = _named(snapshot)
    ours_alone = sys.getrefcount(snapshot) <= _OWNERS  # the program may hold the result of `locals()`
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(snapshot) is dict and ours_alone:
        snapshot.clear()  # before Python 3.13 the frame keeps this copy of its variables
    return found


def _named(variables: Mapping[str, object]) -> list[Variable]:
    """Variables, tensors first, else in order of name length; `self` is replaced by the name of its class."""
    pairs = [pair for pair in list(variables.items()) if _is_name(pair[0])]
    if "get_ipython" in variables:  # of a notebook: results and inputs are kept there beside the user's variables
        pairs = [pair for pair in pairs if not _HISTORY.fullmatch(pair[0])]
    named = [(type(value).__name__ if name == "self" else name, value) for name, value in pairs]
    return sorted(named, key=lambda pair: (not issubclass(type(pair[1]), torch.Tensor), len(pair[0])))


def _is_name(text: object) -> bool:
    """Whether the program chose a name: not `__file__`, nor the names of comprehensions and test runners."""
    return type(text) is str and text.isidentifier() and not text.startswith("__")
