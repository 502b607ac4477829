"""When each row of a static input was last written: runs of bytes, each with the write that is still to be seen there.

Times are the debugger's clock. A row is *fresh* for a replay if the host wrote it since the last replay that reads the
buffer began, else what it holds was written for an older one, or in set-up, of which nothing is noted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import msgspec
import numpy as np

from shadowgraph.model.launches import Access, LaunchKind
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.writes import Write

LIMIT = 512  # runs of one buffer; one that is written in more pieces is not judged
_ROWS = 1 << 14
_ROW_NBYTES = 1 << 16
_HIDDEN = -1e4  # added to a score, and less, it hides the row
_CONSTANT = {"fill_", "zero_", "_foreach_zero_"}
# In place, and of what they are given to write they may leave elements alone.
_PARTIAL = ("index", "scatter", "mask", "put", "diagonal", "resize", "set_")


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a view that a graph reads.

    Attributes
    ----------
    start, stop
        The view's first byte, and the end of its last.
    count, stride, nbytes
        How many; bytes from one to the next; bytes of one, which may be less.
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
        """From the first byte of a row to the last byte of another, both included."""
        return ByteRange(self.start + first * self.stride, self.start + last * self.stride + self.nbytes)


def rows_of(view: TensorView) -> Rows | None:
    """A view's rows, or None: fewer than two, rows with gaps inside, rows in another order, or too large for inputs
    that change with each step."""
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
    """Bytes whose last writer is the same.

    Attributes
    ----------
    time
        When it wrote, by the clock.
    write
        None for a writer that nobody saw, told by the values that changed.
    sure
        It wrote every byte of the run; else it may have left some alone.
    constant
        It filled them with one value: as padding is, whatever it was filled for.
    """

    start: int
    stop: int
    time: float
    write: Write | None
    sure: bool
    constant: bool

    def cut(self, start: int, stop: int) -> Run:
        """A part of it."""
        return Run(start, stop, *self[2:])


def is_sure(write: Write) -> bool:
    """Whether a launch writes every byte that it is said to write."""
    if write.stores is not None:
        return True
    if write.opaque or write.hull or write.launch.kind is not LaunchKind.ATEN:
        return False
    known, partial, _ = _said(write.launch.name)
    return known and not (partial and any(p.may_write and p.access is not Access.WRITE for p in write.launch.pointers))


def is_constant(write: Write) -> bool:
    """Whether a launch gives all that it writes one value."""
    return write.launch.kind is LaunchKind.ATEN and _said(write.launch.name)[2]


@cache
def _said(operator: str) -> tuple[bool, bool, bool]:
    """What an operator's name says: whether it is torch's own, may leave elements alone, gives them one value."""
    namespace, _, rest = operator.partition(".")
    name = rest.split(".")[0]
    return namespace == "aten", any(word in name for word in _PARTIAL), namespace == "aten" and name in _CONSTANT


class Epochs:
    """The runs of one buffer since it was first looked at, in order of address; what is in none was never written.

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
        """Something was written."""
        runs = self.runs
        if not runs or (len(runs) == 1 and run.start <= runs[0].start and runs[0].stop <= run.stop):
            self.runs = [run]
            return
        before, after = [], []
        for old in runs:
            if old.start < run.start:
                before.append(old if old.stop <= run.start else old.cut(old.start, run.start))
            if old.stop > run.stop:
                after.append(old if old.start >= run.stop else old.cut(run.stop, old.stop))
        self.runs = [*before, run, *after]
        if len(self.runs) > LIMIT:
            self.runs = [Run(self.runs[0].start, self.runs[-1].stop, run.time, None, False, False)]

    def mixed(self, rows: Rows) -> bool:
        """Whether some rows are fresh and others were last written for an older replay; on the path of each replay."""
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


@dataclass(frozen=True, slots=True)
class Mixture:
    """What rows hold at the start of a replay.

    Attributes
    ----------
    fresh
        Rows that were surely written since the last one.
    stale
        Rows that surely were not, with the run that is the latest in each.
    """

    fresh: tuple[int, ...]
    stale: dict[int, Run]

    @property
    def cut(self) -> int | None:
        """Where a fresh prefix ends and padding begins, or None where it does not look like that: all rows before it
        are fresh, and none after it."""
        if not self.fresh or not self.stale:
            return None
        cut = min(self.stale)
        return cut if self.fresh == tuple(range(cut)) else None


def mixture(by_row: Sequence[Sequence[Run]], last: float) -> Mixture:
    """Tell rows apart. A row that holds what a fill put there, or what somebody may have written, is neither."""
    fresh, stale = [], {}
    for row, runs in enumerate(by_row):
        now = [run for run in runs if run.time > last]
        if now:
            if all(run.sure for run in now):
                fresh.append(row)
        elif runs and all(run.sure and not run.constant for run in runs):
            stale[row] = max(runs, key=lambda run: run.time)
    return Mixture(tuple(fresh), stale)


def pads(by_row: Sequence[Sequence[Run]], last: float, cut: int) -> bool | None:
    """Whether the rows from a cut on were written as padding in this step: all of them, by another write than the row
    before it, by one alone or with one value each. None where all rows were written at once."""
    tail = [run for runs in by_row[cut:] for run in runs]
    if not all(by_row[cut:]) or not all(run.sure and run.time > last for run in tail):
        return False
    before = {id(run.write) for run in by_row[cut - 1]}
    ours = {id(run.write) for run in tail}
    if not before.isdisjoint(ours):
        return None if len(before | ours) == 1 and all(run.time > last for run in by_row[cut - 1]) else False
    return len(ours) == 1 or all(run.constant for run in tail)


def masks(rows: Rows, data: bytes, cut: int) -> bool:
    """Whether values of rows, of which a cut is known, are a mask.

    That is ones and zeros, or zeros and a large negative number that is added to a score: one of them alone from the
    cut on, and in each row before it the other one too. Slots or lengths may happen to be that.
    """
    held = b"".join(data[start : start + rows.nbytes] for start in range(0, len(data), rows.stride))
    dtype = rows.view.dtype
    if dtype == "bfloat16":
        values = (np.frombuffer(held, np.uint16).astype(np.uint32) << 16).view(np.float32)
    elif dtype.startswith(("int", "uint")) or dtype in ("float16", "float32", "float64"):
        values = np.frombuffer(held, dtype)
    else:
        return dtype == "bool"
    low, *others = np.unique(values).tolist()
    if others != [1 if low == 0 else 0] or not (low == 0 or low <= _HIDDEN):
        return False
    by_row = values.reshape(-1, rows.nbytes // rows.view.itemsize)
    padding = by_row[cut:].ravel()
    return bool((padding == padding[:1]).all() and (by_row[:cut] != padding[:1]).any(axis=1).all())


def stretches(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of each stretch of consecutive numbers, which must ascend."""
    for place, row in enumerate(rows):
        if not place or rows[place - 1] != row - 1:
            first = row
        if place + 1 == len(rows) or rows[place + 1] != row + 1:
            yield first, row
