"""Records one CUDA capture in C++: its operators, the nodes that each launch made, the storages from before it.

Made in the capturing thread; launches are noted by any thread of the capture, and any may end it. The lock is in C++,
where a recording is known by a number that is never used again: a call that comes too late, or in a forked child, does
nothing. `recording` decodes what was recorded.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import torch

from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.graphs.observer.library import Library
from shadowgraph.graphs.observer.recording import Recording, Taught, Tensor, tensor_at
from shadowgraph.tracking.traces import Trace, gather

_TYPES = {"cpu": 0, "cuda": 1}  # c10::DeviceType
_CALLED = 1 << 62  # first number of an owner that is no launch
_ROWS, _MARKS, _FRESH, _INPUTS, _OPERATORS = range(5)
_NO_TRACE = -1
_CHECKED = 16  # kChecked in capture_recorder.cpp
_UNTOLD = 1 << 63  # kUntold there
_FRAMES = 16  # innermost ones that are compared with an earlier capture's
MOST_TAUGHT = 16


class Question(NamedTuple):
    """How the driver is asked for the newest nodes of a stream that captures.

    Attributes
    ----------
    address
        Of ``cuStreamGetCaptureInfo_v2``, or of ``_v3``.
    edges
        Whether it is the latter, which also answers where edges carry data.
    """

    address: int
    edges: bool


class _Stacks:
    """The stacks of a recording; no reference leads from here to the recorder, which must end with its last one."""

    def __init__(self, taught: Sequence[Taught]) -> None:
        self._taught = taught
        self._numbers = itertools.count()  # a handler of a signal, or another thread, may come in between
        self.traces: dict[int, Trace] = {}
        self.by_operator: dict[int, Trace] = {}
        self.places: dict[int, object] = {}

    def keep(self, number: int) -> int:
        """Called from C++ at an operator, in its thread; returns what `trace_of` in capture_recorder.cpp expects.

        An exception that a signal handler raises in here is raised in the program a moment later: torch drops what its
        callbacks raise.

        Parameters
        ----------
        number
            The operator's number in the capture; -1 for one that consists of others.
        """
        try:
            trace, at = gather(), next(self._numbers)
            self.traces[at] = trace
            if number < 0:
                return at
            self.by_operator[number] = trace
            return at | self._refuted(number) << 32
        except BaseException as error:
            internal_errors.note("stack of an operator", error)
            return _NO_TRACE

    def _refuted(self, number: int) -> int:
        """A bit for each earlier capture whose operator of that number was called from elsewhere."""
        if number % _CHECKED:
            return 0
        place = self.places.setdefault(number, _calls_from(sys._getframe(1).f_back))  # None in autograd's thread
        return sum(1 << at for at, each in enumerate(self._taught) if each.places.get(number) != place)


class CaptureRecorder:
    """A recording that is on from its making to `stop`.

    To a `CaptureTracer` it is what `Marks` is: `open`, `advanced`, `mark`.

    Parameters
    ----------
    graph
        Handle of the graph that the current stream captures into.
    device
        Only tensors there are recorded.
    keep
        Keep every tensor's storage until `release`, so that no memory gets a second tenant.
    taught
        Earlier captures by the same code. As long as the operators are those of one of them, most need no stack.

    Attributes
    ----------
    graph
        The handle.
    called
        Owners that are no launches.
    strays
        How often there were new nodes that neither a launch nor an owner made; set by `stop`.

    Raises
    ------
    RuntimeError
        When the current stream does not capture into the graph, or too many recordings are on.
    """

    _number = 0  # none yet

    def __init__(
        self,
        library: Library,
        graph: int,
        device: torch.device,
        question: Question,
        keep: bool,
        taught: Sequence[Taught] = (),
    ) -> None:
        self._library, self._calls = library, library.captures
        self._free = self._calls.shadowgraph_capture_free  # at the interpreter's end globals may be gone
        self.called: list[Any] = []
        self._taught = tuple(taught[:MOST_TAUGHT])
        self._stacks = _Stacks(self._taught)
        words = [each.operators for each in self._taught]
        starts = (ctypes.c_void_p * max(1, len(words)))(*map(ctypes.addressof, words))
        counts = (ctypes.c_uint64 * max(1, len(words)))(*map(len, words))
        self.graph = graph
        self.strays = 0
        self._number = self._calls.shadowgraph_capture_begin(
            graph, _TYPES[device.type], device.index or 0, question.address, question.edges, keep, self._stacks.keep,
            len(words), starts, counts,
        )  # fmt: skip
        if not self._number:
            raise RuntimeError("the capture cannot be recorded in C++")

    # -- launches that are no operators -------------------------------------------------------------------------

    def begin(self) -> int:
        """A launch begins; returns its number."""
        return int(self._calls.shadowgraph_launch_begin(self._number))

    def end(self, number: int) -> None:
        """The launch has ended."""
        self._calls.shadowgraph_launch_end(self._number, number)

    @property
    def open(self) -> int:
        """Launches and operators that run now."""
        return int(self._calls.shadowgraph_capture_open(self._number))

    def advanced(self) -> tuple[int, ...] | None:
        """Not None if there are nodes that no mark knows."""
        return () if self._calls.shadowgraph_capture_advanced(self._number, 0) else None

    def mark(self, owner: object, newest: tuple[int, ...]) -> None:
        """Attribute these nodes to an owner that is no launch."""
        self.called.append(owner)
        self._calls.shadowgraph_capture_advanced(self._number, _CALLED + len(self.called) - 1)

    # -- the end --------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Record no more."""
        self.strays = int(self._calls.shadowgraph_capture_stop(self._number))

    def inputs(self) -> Iterator[tuple[Tensor, torch.UntypedStorage | None]]:
        """Tensors from before the capture, each storage once, and the storage unless it has ended meanwhile."""
        rows, places = self._words(_ROWS), self._words(_INPUTS)
        for at, place in enumerate(places):
            weak = self._calls.shadowgraph_capture_weak(self._number, at)
            if not weak:
                return  # released meanwhile
            try:
                yield tensor_at(rows, place), torch.UntypedStorage._new_with_weak_ptr(weak)
            finally:
                torch.UntypedStorage._free_weak_ref(weak)

    def recording(self) -> Recording:
        """What was recorded; call it once, after `stop`."""
        learnt, _ = self._learnt()
        return Recording(
            self._words(_ROWS), self._words(_MARKS), frozenset(self._words(_FRESH)), self._stacks.traces,
            partial(_named, self.called), self._library.name_of, learnt.traces if learnt is not None else {},
        )  # fmt: skip

    def teaches(self, graph: str) -> Taught | None:
        """What later captures can learn from this one of a graph; None where it had nothing but what others taught."""
        learnt, agreed = self._learnt()
        words = self._words(_OPERATORS)
        before = _until(agreed, learnt.traces) if learnt is not None else {}
        own = {number: (trace, graph) for number, trace in self._stacks.by_operator.items()}
        if not words or (learnt is not None and agreed == len(words) and before.keys() >= own.keys()):
            return None
        traces = {**before, **own}
        told = (word if at in traces else word | _UNTOLD for at, word in enumerate(words))
        places = {**(_until(agreed, learnt.places) if learnt is not None else {}), **self._stacks.places}
        return Taught((ctypes.c_uint64 * len(words))(*told), traces, places)

    def _learnt(self) -> tuple[Taught | None, int]:
        """The earlier capture that most operators were those of, the latest of several, and how many these were."""
        agreed = ctypes.c_uint64()
        alike = int(self._calls.shadowgraph_capture_alike(self._number, ctypes.byref(agreed)))
        return (self._taught[alike.bit_length() - 1] if alike else None), agreed.value

    def release(self) -> None:
        """Release the recording and the storages that it keeps."""
        self._free(self._number)

    def __del__(self) -> None:
        if self._number:
            self._free(self._number)

    def _words(self, which: int) -> Sequence[int]:
        count = self._calls.shadowgraph_capture_words(self._number, which, None, 0)
        words = (ctypes.c_uint64 * count)()
        self._calls.shadowgraph_capture_words(self._number, which, words, count)
        return memoryview(words).cast("B").cast("Q")


def _named(called: Sequence[Any], number: int) -> Any:
    """The owner of nodes by its number in the marks."""
    return called[number - _CALLED] if number >= _CALLED else number or None


def _until(number: int, found: Mapping[int, Any]) -> dict[int, Any]:
    """What there is of the operators before a number."""
    return {at: each for at, each in found.items() if at < number}


def _calls_from(frame: FrameType | None) -> tuple[object, ...]:
    """The innermost calls that lead to a frame."""
    found: list[object] = []
    while frame is not None and len(found) < 2 * _FRAMES:
        found += (frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return tuple(found)
