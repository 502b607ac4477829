"""When each row of a static input was last written: runs of bytes, each with the last write that is still visible
there.

Times are those of `Context.clock`. A row is *fresh* for a replay if the host wrote it since the last replay that reads
the buffer began; else it was written for an older replay, or in set-up, of which no record is kept. Changed mostly
under the debugger's lock (see `checks.base`); lists of runs are replaced, never changed in place, so that other threads
may keep them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from shadowgraph.model.launches import Access, LaunchKind
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.writes import Write

LIMIT = 512  # runs of one buffer; a buffer written in more pieces is not checked
_ROWS = 1 << 14
_ROW_NBYTES = 1 << 16
_HIDDEN = -1e4  # a value of this or less, added to a score, masks the row
_CONSTANT = {"fill_", "zero_", "_foreach_zero_"}
# In-place operators that may leave elements of their output unwritten.
_PARTIAL = ("index", "scatter", "mask", "put", "diagonal", "resize", "set_")


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a view that a graph reads.

    Attributes
    ----------
    start, stop
        The view's first byte, and the end of its last.
    count, stride, nbytes
        Number of rows; bytes from one row to the next; bytes of one row, which may be fewer.
    """

    view: TensorView
    start: int
    stop: int
    count: int
    stride: int
    nbytes: int

    def of(self, where: ByteRange) -> range:
        """The rows that have a byte in a range."""
        first = -((self.start + self.nbytes - 1 - where.start) // self.stride)
        last = (where.stop - 1 - self.start) // self.stride
        return range(max(0, first), min(self.count, last + 1))

    def span(self, first: int, last: int) -> ByteRange:
        """From the first byte of row `first` to the last byte of row `last`."""
        return ByteRange(self.start + first * self.stride, self.start + last * self.stride + self.nbytes)


def rows_of(view: TensorView) -> Rows | None:
    """A view's rows, or None: fewer than two, rows with gaps inside, rows in another order, or too large for an input
    that changes with each step."""
    outer = next((dim for dim, size in enumerate(view.shape) if size > 1), None)
    if outer is None or 0 in view.shape:
        return None
    count, stride = view.shape[outer], view.stride[outer] * view.itemsize
    inner = msgspec.structs.replace(view, shape=view.shape[outer + 1 :], stride=view.stride[outer + 1 :])
    nbytes = inner.nbytes
    if not inner.contiguous or stride < nbytes or count > _ROWS or nbytes > _ROW_NBYTES:
        return None
    return Rows(view, view.start, view.stop, count, stride, nbytes)


class Run(NamedTuple):
    """Bytes with the same last writer.

    Attributes
    ----------
    time
        When they were written, by the clock.
    write
        None for an unseen writer, detected by changed values.
    sure
        Whether every byte of the run was written; else some may have been left.
    constant
        Whether the write filled them with one value, as padding does.
    """

    start: int
    stop: int
    time: float
    write: Write | None
    sure: bool
    constant: bool

    def cut(self, start: int, stop: int) -> Run:
        """A part of the run."""
        return Run(start, stop, *self[2:])


def is_sure(write: Write) -> bool:
    """Whether a launch writes every byte that its ranges list."""
    if write.stores is not None:
        return True
    if write.opaque or write.hull or write.launch.kind is not LaunchKind.ATEN:
        return False
    known, partial, _ = _said(write.launch.name)
    return known and not (partial and any(p.may_write and p.access is not Access.WRITE for p in write.launch.pointers))


def is_constant(write: Write) -> bool:
    """Whether a launch writes one value everywhere."""
    return write.launch.kind is LaunchKind.ATEN and _said(write.launch.name)[2]


@cache
def _said(operator: str) -> tuple[bool, bool, bool]:
    """Facts from an operator's name: whether it is torch's own, may leave elements unwritten, writes one value."""
    namespace, _, rest = operator.partition(".")
    name = rest.split(".")[0]
    return namespace == "aten", any(word in name for word in _PARTIAL), namespace == "aten" and name in _CONSTANT


class Epochs:
    """The runs of one buffer since its first look, in order of address; bytes in no run were never written.

    Attributes
    ----------
    last
        When the last replay of a graph that reads the buffer began.
    """

    __slots__ = ("last", "runs")

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.last: float = 0

    def note(self, run: Run) -> None:
        """Add a write."""
        runs = self.runs
        if not runs or (len(runs) == 1 and run.start <= runs[0].start and runs[0].stop <= run.stop):
            self.runs = [run]
            return
        self.runs = _overlaid(runs, run)
        if len(self.runs) > LIMIT:
            self.runs = [Run(self.runs[0].start, self.runs[-1].stop, run.time, None, False, False)]

    def mixed(self, rows: Rows) -> bool:
        """Whether some rows are fresh and others were last written for an older replay; called at each replay."""
        runs = self.runs
        if len(runs) < 2:
            return False
        fresh = stale = False
        start, stop, last = rows.start, rows.stop, self.last
        for run in runs:
            if run.stop <= start:
                continue
            if run.start >= stop:
                break
            if run.time > last:
                fresh = True
            elif run.sure and not run.constant:
                stale = True
        return fresh and stale

    def by_row(self, rows: Rows) -> list[list[Run]]:
        """The runs that have a byte in each row."""
        found: list[list[Run]] = [[] for _ in range(rows.count)]
        for run in self.runs:
            if run.start < rows.stop and rows.start < run.stop:
                for row in rows.of(ByteRange(run.start, run.stop)):
                    found[row].append(run)
        return found


def _overlaid(runs: Sequence[Run], run: Run) -> list[Run]:
    """A run, with those parts of others that it leaves visible."""
    before, after = [], []
    for old in runs:
        if old.start < run.start:
            before.append(old if old.stop <= run.start else old.cut(old.start, run.start))
        if old.stop > run.stop:
            after.append(old if old.start >= run.stop else old.cut(run.stop, old.stop))
    return [*before, run, *after]


def hold_values(runs: Sequence[Run]) -> bool:
    """Whether a row's runs were certainly written, none as a fill."""
    return bool(runs) and all(run.sure and not run.constant for run in runs)


@dataclass(frozen=True, slots=True)
class Mixture:
    """State of the rows at the start of a replay.

    Attributes
    ----------
    fresh
        Rows that were certainly written since the last replay.
    stale
        Rows that certainly were not, with the latest run in each.
    """

    fresh: tuple[int, ...]
    stale: dict[int, Run]

    @property
    def cut(self) -> int | None:
        """Where a fresh prefix ends and padding begins, or None where there is no such place: all rows before it are
        fresh, and none after it."""
        if not self.fresh or not self.stale:
            return None
        cut = min(self.stale)
        return cut if self.fresh == tuple(range(cut)) else None


def mixture(by_row: Sequence[Sequence[Run]], last: float) -> Mixture:
    """Classify rows. A row that holds the value of a fill, or a write that may be partial, is neither fresh nor
    stale."""
    fresh, stale = [], {}
    for row, runs in enumerate(by_row):
        now = [run for run in runs if run.time > last]
        if now:
            if all(run.sure for run in now):
                fresh.append(row)
        elif hold_values(runs):
            stale[row] = max(runs, key=lambda run: run.time)
    return Mixture(tuple(fresh), stale)


def pads(by_row: Sequence[Sequence[Run]], last: float, cut: int) -> bool | None:
    """Whether the rows from a cut on were written as padding in this step: all of them, by another write than the row
    before the cut, by a single write or with one value each. None where all rows were written at once."""
    if not _rewritten(by_row[cut:], last):
        return False
    edge, tail = by_row[cut - 1], list(chain.from_iterable(by_row[cut:]))
    before, ours = _writers(edge), _writers(tail)
    if before.isdisjoint(ours):
        return len(ours) == 1 or all(run.constant for run in tail)
    at_once = len(before | ours) == 1 and all(run.time > last for run in edge)
    return None if at_once else False


def _rewritten(by_row: Sequence[Sequence[Run]], last: float) -> bool:
    """Whether each row was certainly written in full since the last replay."""
    return all(by_row) and all(run.sure and run.time > last for runs in by_row for run in runs)


def _writers(runs: Iterable[Run]) -> set[int]:
    """The writes of runs, by identity; those of unseen writers count as one."""
    return {id(run.write) for run in runs}


def masks(rows: Rows, data: bytes, cut: int) -> bool:
    """Whether the values of rows with a known cut are a mask.

    That is ones and zeros, or zeros and a large negative number that is added to a score: one value alone from the cut
    on, and the other one as well in each row before it. Slots or lengths may happen to look like that. Or integers that
    are -1 from the cut on and never below zero before it: slots of rows to be skipped.
    """
    held = b"".join(data[start : start + rows.nbytes] for start in range(0, len(data), rows.stride))
    dtype = rows.view.dtype
    if dtype == "bfloat16":
        values = (np.frombuffer(held, np.uint16).astype(np.uint32) << 16).view(np.float32)
    elif dtype.startswith(("int", "uint")) or dtype in ("float16", "float32", "float64"):
        values = np.frombuffer(held, dtype)
    else:
        return dtype == "bool"
    by_row = values.reshape(-1, rows.nbytes // rows.view.itemsize)
    if dtype.startswith("int") and (by_row[cut:] == -1).all() and (by_row[:cut] >= 0).all():
        return True  # of these rows the kernels do nothing
    low, *others = np.unique(values).tolist()
    if others != [1 if low == 0 else 0] or not (low == 0 or low <= _HIDDEN):
        return False
    padding = by_row[cut:].ravel()
    return bool((padding == padding[:1]).all() and (by_row[:cut] != padding[:1]).any(axis=1).all())


def stretches(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of each stretch of consecutive numbers, which must ascend."""
    for place, row in enumerate(rows):
        if not place or rows[place - 1] != row - 1:
            first = row
        if place + 1 == len(rows) or rows[place + 1] != row + 1:
            yield first, row


def unequal(one: bytes, other: bytes, item: int) -> npt.NDArray[np.bool_]:
    """Mask of the elements in which two pieces differ, over their common length."""
    size = min(len(one), len(other)) // item * item
    differs = np.frombuffer(one[:size], np.uint8) != np.frombuffer(other[:size], np.uint8)
    found: npt.NDArray[np.bool_] = differs.reshape(-1, item).any(axis=1)
    return found
