"""Rows of the launch log for launches that pass unobserved: kernel, source line, stream, grid and pointers.

Called by the hooks of launchers, in the launching thread, before the launch. `note` is a function in C++ once the
observer's library is loaded (`observer/launch_rows.cpp`), and until then one in Python, which costs many times as much
(`tools/bench_steady_hooks.py`); both write the same rows. The library writes rows of events,
too (`LaunchLog.put_event`). A row has the addresses of tensors; their sizes are those of the ledger when the row is
read. No lock: two threads may at worst look up the same text twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from itertools import count
from types import CodeType, FrameType
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import torch

from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.graphs.observer.library import Library
from shadowgraph.graphs.observer.observer import observer
from shadowgraph.graphs.observer.operators import text_of
from shadowgraph.model.launch_log import LaunchLog
from shadowgraph.model.stacks import cell_label, current_frame, is_machinery
from shadowgraph.tracking import launch_recording, novelty, passing

GRID = "grid of a kernel"
_TEXTS = 8192  # kernels and lines whose numbers are kept
# Of the stream on which Triton launches. Absent where torch is built without CUDA, which launches nothing here.
_current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", int)
_current_device = getattr(torch._C, "_cuda_getDevice", int)
_PLAIN = torch.Tensor, torch.nn.Parameter  # others may have no memory of their own
_NO_GRID = 0, 0, 0  # a function gives it, inside the launch
_OF_LIBRARY = _NOT_NOTED = -1  # in place of the number of a line and of a kernel, for C++
_OPERATORS = torch._ops.OpOverload, torch._ops.OpOverloadPacket
_OF_TORCH = "aten.", "prim.", "prims."  # noted by kernels that stand in for theirs, or by what they call


class _Note(Protocol):
    def __call__(
        self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any = None, stream: Any = 0, /
    ) -> None:
        """Write the row of a launch that passes unobserved; called by the function that stands for the launcher.

        Parameters
        ----------
        kernel
            The launched function, or Triton's object for it: the same object each time.
        grid
            Anything but a tuple of numbers is left out.
        """


class _Numbers:
    """The numbers of kernels and lines in one log, by ids of Python objects, with these, so that ids stay unique."""

    def __init__(self, log: LaunchLog | None) -> None:
        self.log = log
        self.kernels: dict[int, tuple[object, int]] = {}
        self.lines: dict[tuple[int, int], tuple[CodeType, int]] = {}


class _Judged:
    """Grids that are not larger than all before, with the kernel's id: seen once, a grid never is again."""

    def __init__(self, sizes: novelty.Novelty | None) -> None:
        self.sizes = sizes
        self.grids: set[tuple[int, tuple[Any, ...]]] = set()


_numbers = _Numbers(None)
_judged = _Judged(None)


def see_grid(kernel: object, grid: object) -> bool:
    """Report the size of a launch that is about to run, observed or not: one beyond all before is observed.

    Returns
    -------
    bool
        Whether this grid need not be reported again.
    """
    sizes = novelty.current
    if sizes is None or type(grid) is not tuple:
        return False
    try:
        known = _judged.sizes is sizes and (id(kernel), grid) in _judged.grids
        return known or _judge(sizes, kernel, grid)
    except Exception as error:  # no numbers, or more than three
        internal_errors.note("size of a launch", error)
        return False


def _judge(sizes: novelty.Novelty, kernel: object, grid: tuple[Any, ...]) -> bool:
    global _judged
    if _judged.sizes is not sizes or len(_judged.grids) >= _TEXTS:
        _judged = _Judged(sizes)
    dropped = sizes.dropped
    sizes.see(GRID, id(kernel), *grid)
    if sizes.dropped != dropped:
        return False
    _judged.grids.add((id(kernel), grid))
    return True


def note_in_python(
    kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any = None, stream: Any = 0, /
) -> None:
    """`note` where there is no library."""
    log = launch_recording.current
    if log is None:
        return
    try:
        numbers = _numbers if _numbers.log is log else _of(log)
        known = numbers.kernels.get(id(kernel))
        number = known[1] if known is not None and known[0] is kernel else _kernel(numbers, kernel)
        given = [each.data_ptr() for each in args if type(each) in _PLAIN]
        if kwargs:
            given += [each.data_ptr() for each in kwargs.values() if type(each) in _PLAIN]
        log.launch_at(number, _line(numbers), stream, _extents(grid), given)
    except Exception as error:
        _failed(error)


note: _Note = note_in_python
_library: Library | None = None  # whose function `note` is
_logs_operators = False
_operators: tuple[LaunchLog | None, dict[int, int]] = None, {}  # names of operators in the latest log, by operator
_Run = TypeVar("_Run", bound=Callable[..., Any])
_StandIn = tuple[Callable[..., Any], Callable[..., Any], int]  # `original` and `seen` of `quickened`, and the kind
_stand_ins: WeakKeyDictionary[Callable[..., Any], _StandIn] = WeakKeyDictionary()


def _failed(error: Exception) -> None:
    internal_errors.note("row of a launch", error)


def _extents(grid: Any) -> tuple[int, int, int]:
    if type(grid) is not tuple:
        return _NO_GRID
    count = len(grid)
    return grid if count == 3 else (*grid, 1) if count == 2 else (*grid, 1, 1)


def _of(log: LaunchLog) -> _Numbers:
    """Numbers for a new log: that of another debugger, or of a forked child."""
    global _numbers
    _numbers = _Numbers(log)
    return _numbers


def _kernel(numbers: _Numbers, kernel: Any) -> int:
    assert numbers.log is not None
    if len(numbers.kernels) >= _TEXTS:
        numbers.kernels.clear()
    number = _number_of_kernel(numbers.log, kernel)
    numbers.kernels[id(kernel)] = kernel, number
    return number


def _line(numbers: _Numbers) -> int:
    """The number of the program's line that launches; 0 where all frames are of libraries."""
    frame = current_frame(3)  # above this function, `note` and the launcher's hook
    if frame is None:
        return 0
    code, at = frame.f_code, frame.f_lasti
    known = numbers.lines.get((id(code), at))
    if known is not None and known[0] is code:
        return known[1]
    assert numbers.log is not None
    if len(numbers.lines) >= _TEXTS:
        numbers.lines.clear()
    number = _number_of_line(numbers.log, frame)
    numbers.lines[id(code), at] = code, number
    return number


def _number_of_kernel(log: LaunchLog, kernel: Any) -> int:
    if isinstance(kernel, _OPERATORS):
        text = str(kernel)  # with its namespace
        return _NOT_NOTED if text.startswith(_OF_TORCH) else log.kernel(text)
    return log.kernel(getattr(kernel, "fn", kernel).__name__)  # Triton's object, or the function itself


def _number_of_line(log: LaunchLog, frame: FrameType) -> int:
    code = frame.f_code
    return log.site(cell_label(code.co_filename) or code.co_filename, frame.f_lineno, code.co_name)


# -- what the writer in C++ asks of Python -------------------------------------------------------------------------


def written_in_cpp(library: Library, texts: int = _TEXTS) -> _Note | None:
    """A `note` in C++ that remembers this many kernels and lines; None where library or interpreter do not fit."""
    if not library.writes_rows:
        return None
    sample = torch.empty(0, device="meta")
    address, held = torch.Tensor.data_ptr, sample._cdata
    try:
        return library.launch_rows(vars(launch_recording), *_PLAIN, address, _begin, _failed, sample, held, texts)
    except TypeError:
        return None


class _Kind(IntEnum):
    """As in launchers.cpp."""

    TRITON = 0
    COMPILED = 1
    OPERATOR = 2


def quickened(run: _Run, original: Callable[..., Any], seen: Callable[..., Any], compiled: bool = False) -> _Run:
    """Have calls of a function that stands for a launcher run in C++, now or once the library is there: what passes is
    noted, and all else is handed to `seen`, as the function does.

    Parameters
    ----------
    original
        The launcher, which takes the kernel first.
    compiled
        Whether it launches compiled code of torch, which gives the stream as a keyword and has no grid of numbers.
    """
    _stand_ins[run] = original, seen, _Kind.COMPILED if compiled else _Kind.TRITON
    if _library is not None:
        _quicken(run, _library)
    return run


def _quicken(run: Callable[..., Any], library: Library) -> None:
    original, seen, kind = _stand_ins[run]
    library.quicken(note, run, original, seen, see_grid, stream, vars(passing), vars(novelty), kind)


def _begin(
    log: LaunchLog,
) -> tuple[int, count[int], Callable[[Any], int], Callable[[FrameType], int], Callable[..., None]]:
    """What is to be known of a log: the address, the counter of rows, what numbers a kernel and a frame's line, and
    what writes a row whose values do not fit."""
    kernel, line = partial(_number_of_kernel, log), partial(_number_of_program_line, log)
    return log.address, log.rows, kernel, line, partial(_write, log)


def _number_of_program_line(log: LaunchLog, frame: FrameType) -> int:
    return _OF_LIBRARY if is_machinery(frame.f_code.co_filename) else _number_of_line(log, frame)


def _write(log: LaunchLog, kernel: int, line: int, stream: Any, grid: Any, addresses: Sequence[int]) -> None:
    log.launch_at(kernel, line, stream, _extents(grid), addresses)


def stream() -> int:
    """The handle of the stream on which Triton would launch in this thread."""
    return int(_current_stream(_current_device()))


def log_operators(on: bool) -> None:
    """Whether operators that are noted in C++ have rows in the launch log, too, from now on: while dispatch modes let
    them pass, so that what outlives the process has them. No effect without the library, until it is there."""
    global _logs_operators
    _logs_operators = on
    if _library is None:
        return
    log = launch_recording.current
    if on and log is not None:
        _library.log_operators(log.address, _operators_in(log, _library))
    else:
        _library.log_operators(0, {})


def follow_log() -> None:
    """`log_operators` as before, for a process that has another launch log now."""
    log_operators(_logs_operators)


def _operators_in(log: LaunchLog, library: Library) -> dict[int, int]:
    """The numbers of operators' names in a log, which are put there at the first call."""
    global _operators
    if _operators[0] is not log:
        _operators = log, {each: log.kernel(text_of(*library.name_of(each))) for each in library.noted()}
    return _operators[1]


def _use(library: Library) -> None:
    global note, _library
    written = written_in_cpp(library)
    if written is not None:
        note, LaunchLog.put_event, _library = written, library.event_rows(), library
        for run in list(_stand_ins):
            _quicken(run, library)
        for each in _OPERATORS:  # libraries' operators, whose kernels are left where they are
            call = vars(each)["__call__"]
            library.quicken(note, call, call, call, see_grid, stream, vars(passing), vars(novelty), _Kind.OPERATOR)
        log = launch_recording.current
        if log is not None:  # here, in the thread that loads, and not where the steady state begins
            _operators_in(log, library)
        follow_log()


observer.when_loaded(_use)
