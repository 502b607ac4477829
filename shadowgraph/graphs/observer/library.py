"""The compiled observer, loaded, and the layout of its rows.

Loaded once in a process and never unloaded: a thread may be inside of it. Its calls hold the GIL, since they are short.
"""

from __future__ import annotations

import atexit
import ctypes
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shadowgraph.graphs.observer.building import BuildError
from shadowgraph.model.launch_log_format import LATEST_AT, NUMBERS, OPERATORS, OPERATORS_AT, POINTERS, ROWS, ROWS_AT
from shadowgraph.model.launch_log_format import ROW as LAUNCH_ROW

Rows = npt.NDArray[Any]
Words = npt.NDArray[np.uint64]
ALONE = 0xFFFFFFFF  # `member` of an argument that is no list
HOST = -1  # `device` of a tensor in host memory
# The words that `put` and `add` in observer.cpp write.
_PLACE = np.dtype(
    [
        ("address", "<u8"), ("nbytes", "<u8"),
        ("argument", "u1"), ("writes", "u1"), ("dtype", "i1"), ("device", "i1"), ("member", "<u4"),
    ]
)  # fmt: skip
ROW = np.dtype(
    [
        ("sequence", "<u8"), ("first", "<u8"), ("time", "<u8"), ("thread", "<u8"), ("stream", "<i8"),
        ("operator", "<u4"), ("depth", "<u2"), ("count", "u1"), ("part", "u1"),
        ("omitted", "<u4"), ("opaque", "<u4"), ("places", _PLACE, (6,)),
    ]
)  # fmt: skip


_HANDLE, _WORD, _INT = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int
_WORDS = ctypes.POINTER(ctypes.c_uint64)
# Result and arguments of the functions in captures.cpp.
_CAPTURES: dict[str, tuple[Any, ...]] = {
    "shadowgraph_capture_begin": (
        _WORD, _WORD, _INT, _INT, _HANDLE, _INT, _INT, ctypes.py_object, _WORD, _HANDLE, _HANDLE,
    ),
    "shadowgraph_capture_alike": (ctypes.c_uint32, _WORD, _WORDS),
    "shadowgraph_capture_stop": (_WORD, _WORD),
    "shadowgraph_capture_free": (None, _WORD),
    "shadowgraph_captures_over": (_WORD,),
    "shadowgraph_captures_known": (_WORD,),
    "shadowgraph_launch_begin": (_WORD, _WORD),
    "shadowgraph_launch_end": (None, _WORD, _WORD),
    "shadowgraph_capture_open": (_WORD, _WORD),
    "shadowgraph_capture_advanced": (_INT, _WORD, _WORD),
    "shadowgraph_capture_words": (_WORD, _WORD, _INT, _WORDS, _WORD),
    "shadowgraph_capture_weak": (_WORD, _WORD, _WORD),
}  # fmt: skip
# Arguments of `shadowgraph_launch_rows`, and the sizes and places in the launch log that launch_rows.cpp writes.
_LAUNCH_ROWS: tuple[Any, ...] = *[ctypes.py_object] * 7, _WORD, _WORD
_LAUNCHER: tuple[Any, ...] = *[ctypes.py_object] * 8, ctypes.c_int
_LAUNCH_ROW = LATEST_AT, ROWS_AT, ROWS, LAUNCH_ROW, POINTERS, NUMBERS, OPERATORS, OPERATORS_AT
_OPERATORS = 1 << 14  # as in observer.cpp
_PATIENCE = 1.0  # seconds at most that the end of the interpreter waits for threads that run Python in a callback


class Library:
    """The functions of the compiled observer.

    Attributes
    ----------
    sequence
        Its value is the sequence number of the latest row of all threads.
    failures
        Its value counts operators that could not be noted.
    captures
        The functions in captures.cpp, for `recorder`; None where the library was built without them.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._calls = calls = ctypes.PyDLL(str(path))
            self.sequence = ctypes.c_uint64.in_dll(calls, "shadowgraph_sequence")
            self.failures = ctypes.c_uint64.in_dll(calls, "shadowgraph_failures")
            words = calls.shadowgraph_row_words
            self.captures = _captures_in(calls)
        except (OSError, AttributeError, ValueError) as error:
            raise BuildError(f"the library cannot be loaded: {error}") from error
        if words() * 8 != ROW.itemsize:
            raise BuildError("the library has rows of another size")
        calls.shadowgraph_read.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64]
        for call in (calls.shadowgraph_read, calls.shadowgraph_rows, calls.shadowgraph_lost, calls.shadowgraph_noted):
            call.restype = ctypes.c_uint64
        calls.shadowgraph_log.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        calls.shadowgraph_noted.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        self._tables: list[npt.NDArray[np.uint32]] = []  # names of operators in logs
        self._logged: dict[int, int] | None = None  # what the latest was made of
        calls.shadowgraph_look.restype, calls.shadowgraph_note.argtypes = ctypes.c_int64, [ctypes.c_int]
        for call in (calls.shadowgraph_operator, calls.shadowgraph_overload):
            call.argtypes, call.restype = [ctypes.c_uint32], ctypes.c_char_p

    def start(self) -> None:
        """Note operators from here on, in all threads."""
        left = 1
        while left > 0:  # other threads run between two calls
            left = self._calls.shadowgraph_look()
        if left < 0:
            raise BuildError("torch refused kernels that stand in for its own")
        self._calls.shadowgraph_note(1)

    def stop(self) -> None:
        """Note no more operators."""
        self._calls.shadowgraph_note(0)

    def read(self, after: int, until: int) -> tuple[Rows, int]:
        """The rows with sequence numbers after one and up to another, in order, and how many others replaced."""
        wanted = max(0, until - after)
        rows = np.empty(min(wanted, self._calls.shadowgraph_rows()), ROW)
        count = self._calls.shadowgraph_read(after, until, rows.ctypes.data, len(rows))
        # Rows that are missing for another reason are being written.
        return _in_order(rows[:count]), wanted - count if self.lost() > after else 0

    def lost(self) -> int:
        """The largest sequence number of a row that another has replaced."""
        return int(self._calls.shadowgraph_lost())

    @property
    def writes_rows(self) -> bool:
        """Whether it writes rows of the launch log in the format of today."""
        if not hasattr(self._calls, "shadowgraph_launch_rows"):
            return False
        return tuple((_WORD * len(_LAUNCH_ROW)).in_dll(self._calls, "shadowgraph_launch_row")) == _LAUNCH_ROW

    def launch_rows(self, *given: Any) -> Callable[..., None]:
        """A builtin function that writes rows of launches; parameters as of `shadowgraph_launch_rows` in
        launch_rows.cpp.

        Raises
        ------
        TypeError
            Where the interpreter lays out objects in another way.
        """
        make = self._calls.shadowgraph_launch_rows
        make.restype, make.argtypes = ctypes.py_object, _LAUNCH_ROWS
        made: Callable[..., None] = make(*given)
        return made

    def event_rows(self) -> Callable[..., bool]:
        """A builtin function that writes rows of events: `LaunchLog.put_event`."""
        make = self._calls.shadowgraph_event_rows
        make.restype, make.argtypes = ctypes.py_object, []
        made: Callable[..., bool] = make()
        return made

    def quicken(self, *given: Any) -> bool:
        """Have calls of a function run in C++; parameters as of `shadowgraph_quicken` in launchers.cpp."""
        make = self._calls.shadowgraph_quicken
        make.restype, make.argtypes = ctypes.c_int, _LAUNCHER
        return bool(make(*given) > 0)

    def host_tensors(self, note: Callable[..., None]) -> tuple[Callable[..., Any], ...]:
        """The functions of `graphs.host_tensors`, in its order, for a function of `launch_rows`."""
        make = self._calls.shadowgraph_host_tensors
        make.restype, make.argtypes = ctypes.py_object, [ctypes.py_object, ctypes.c_int]
        return tuple(make(note, which) for which in range(3))

    def noted(self) -> list[int]:
        """Numbers of the operators that are noted, for `name_of`."""
        ids = np.empty(_OPERATORS, np.uint32)
        return list(ids[: self._calls.shadowgraph_noted(ids.ctypes.data, len(ids))].tolist())

    def log_operators(self, log: int, names: dict[int, int]) -> None:
        """Have operators written into a launch log as well, from now on.

        Parameters
        ----------
        log
            Its address, in memory that stays for the life of the process; 0 for none.
        names
            The number of each operator's name in that log.
        """
        if names and names is not self._logged:
            numbers = np.zeros(_OPERATORS, np.uint32)
            numbers[list(names)] = list(names.values())
            self._tables.append(numbers)  # a thread may be reading an older one
            self._logged = names
        table = self._tables[-1].ctypes.data if self._tables else None
        self._calls.shadowgraph_log(log or None, table)

    def name_of(self, operator: int) -> tuple[str, str]:
        """The name of an operator, such as ``aten::copy_``, and its overload."""
        name, overload = self._calls.shadowgraph_operator(operator), self._calls.shadowgraph_overload(operator)
        return name.decode(), overload.decode()


def words_of(rows: Rows) -> Words:
    """The same memory, as words: to take rows is many times faster so."""
    return rows.view(np.uint64).reshape(len(rows), ROW.itemsize // 8)


def _in_order(rows: Rows) -> Rows:
    order = np.argsort(rows["sequence"], kind="stable")
    return np.take(words_of(rows), order, axis=0).reshape(-1).view(ROW)


def _captures_in(calls: ctypes.PyDLL) -> Any:
    if not hasattr(calls, "shadowgraph_capture_begin"):
        return None
    for name, (result, *arguments) in _CAPTURES.items():
        function = getattr(calls, name)
        function.restype, function.argtypes = result, arguments
    atexit.register(_end_captures, calls.shadowgraph_captures_over)
    return calls


def _end_captures(over: Callable[[], int]) -> None:
    """Stop all recordings before the interpreter ends: threads that ask for its lock later never get it."""
    until = time.monotonic() + _PATIENCE
    while over() and time.monotonic() < until:
        time.sleep(0.001)


@cache
def loaded(path: Path) -> Library:
    """The library at a path; one object for the process.

    Raises
    ------
    BuildError
        When it cannot be loaded.
    """
    return Library(path)
