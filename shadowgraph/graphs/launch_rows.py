"""Rows of the launch log for launches that pass unobserved: kernel, source line, stream, grid and pointers.

Called by the hooks of launchers, in the launching thread, before the launch: it costs a few microseconds, about a tenth
of what an observed launch costs (`tools/bench_steady_hooks.py`). A row has the addresses of tensors; their sizes are
those of the ledger when the row is read. No lock: two threads may at worst look up the same text twice.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

import torch

from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.model.launch_log import LaunchLog
from shadowgraph.model.stacks import cell_label, current_frame
from shadowgraph.tracking import launch_recording, novelty

GRID = "grid of a kernel"
_TEXTS = 8192  # kernels and lines whose numbers are kept
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))  # others may have no memory of their own
_NO_GRID = 0, 0, 0  # a function gives it, inside the launch


class _Numbers:
    """The numbers of kernels and lines in one log, by ids of Python objects, with these, so that ids stay unique."""

    def __init__(self, log: LaunchLog | None) -> None:
        self.log = log
        self.kernels: dict[int, tuple[object, int]] = {}
        self.lines: dict[tuple[int, int], tuple[CodeType, int]] = {}


_numbers = _Numbers(None)


def see_grid(kernel: object, grid: object) -> None:
    """Report the size of a launch that is about to run, observed or not: one beyond all before is observed."""
    sizes = novelty.current
    if sizes is not None and type(grid) is tuple:
        try:
            sizes.see(GRID, id(kernel), *grid)
        except Exception as error:  # no numbers, or more than three
            internal_errors.note("size of a launch", error)


def note(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any = None, stream: Any = 0) -> None:
    """Write the row of a launch that passes unobserved; called by the function that stands for the launcher.

    Parameters
    ----------
    kernel
        The launched function, the same object each time.
    grid
        Anything but a tuple of numbers is left out.
    """
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
    number = numbers.log.kernel(kernel.__name__)
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
    number = numbers.log.site(cell_label(code.co_filename) or code.co_filename, frame.f_lineno, code.co_name)
    numbers.lines[id(code), at] = code, number
    return number
