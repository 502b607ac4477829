"""Log of the last replays of each graph, with the last writes to its static inputs: the data behind the row map.

On the path of each replay only references are kept: runs are never changed in place. The state of rows is computed on
request: `RowLog.history` may run in any thread while others append.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeVar

from shadowgraph.checks.row_epochs import Rows, Run, hold_values
from shadowgraph.checks.stale_rows.static_inputs import Input, Story
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.row_history import InputRows, RowsAtReplay, RowState, RowStretch

REPLAYS = 32  # of each graph
_BEFORE = 8  # replays kept permanently before the first one with a finding
_INPUTS = 64  # of a graph
_STRETCHES = 64  # of rows in one replay
T = TypeVar("T")
Told = tuple[float, list[Run]]  # when the replay before began, and a buffer's runs


class _Seen(NamedTuple):
    """One replay; `told` by the buffer's serial, shared with the replay before if no write came in between."""

    replay: int
    order: int
    told: dict[int, Told]
    untouched: bool


_Entry = tuple[int, int, dict[int, Told], bool]  # the fields of `_Seen`; a plain tuple is cheaper per replay


@dataclass(slots=True)
class _Log:
    recent: deque[_Entry] = field(default_factory=lambda: deque(maxlen=REPLAYS))
    kept: tuple[_Entry, ...] = ()


class RowLog:
    """Bounded: `REPLAYS` of each live graph, and the replays up to each graph's first finding."""

    def __init__(self) -> None:
        self._logs: dict[int, _Log] = {}

    def note(
        self, graph: int, replay: int, order: int, stories: Iterable[Story], light: bool, untouched: bool = False
    ) -> None:
        """A replay is about to begin.

        Parameters
        ----------
        light
            Whether the runs' writes hold no stores; else runs are kept without their writes.
        untouched
            Whether no write came since the graph's replay before.
        """
        log = self._logs.get(graph)
        if log is None:
            log = self._logs[graph] = _Log()
        if untouched and log.recent:
            log.recent.append((replay, order, log.recent[-1][2], True))
            return
        told = {
            story.buffer.serial: (story.epochs.last, story.epochs.runs if light else _bare(story.epochs.runs))
            for story in stories
        }
        log.recent.append((replay, order, told, False))

    def keep(self, graph: int) -> None:
        """The latest replay of a graph has a finding: keep the replays that led to it, if it is the graph's first."""
        log = self._logs.get(graph)
        if log is not None and not log.kept:
            log.kept = tuple(log.recent)[-_BEFORE - 1 :]

    def forget(self, live: Iterable[int]) -> None:
        """Forget all graphs but these."""
        alive = set(live)
        self._logs = {serial: log for serial, log in self._logs.items() if serial in alive}

    def history(self, inputs: Mapping[int, Sequence[Input]], begun: Begun) -> list[InputRows]:
        """The known states of the rows of inputs, by the serials of their graphs."""
        found = []
        for graph, log in list(self._logs.items()):
            seen = {each.order: each for each in map(_Seen._make, (*log.kept, *copied(log.recent)))}
            for each in list(inputs.get(graph, ()))[:_INPUTS]:
                at = tuple(_at(each, seen[order], begun) for order in sorted(seen))
                rows, buffer = each.rows, each.story.buffer
                if any(state.rows for state in at):
                    offset = rows.start - buffer.start
                    found.append(InputRows(graph, buffer.serial, offset, rows.count, rows.stride, rows.nbytes, at))
        return found


class Begun:
    """Start times of replays.

    Parameters
    ----------
    replays
        Time, graph serial and number of the last replays, oldest first.
    whole
        Whether no earlier replay was forgotten.
    """

    def __init__(self, replays: Sequence[tuple[int, int, int]], whole: bool) -> None:
        self._replays, self._whole = replays, whole
        self._times = [time for time, _, _ in replays]

    def first_after(self, time: float, before: int, readers: Container[int]) -> tuple[int | None, int | None]:
        """Graph and number of the first replay of any of the `readers` after a time, if it began before another
        time."""
        place = bisect_right(self._times, time)
        if place or self._whole:
            for began, graph, replay in self._replays[place:]:
                if began >= before:
                    break
                if graph in readers:
                    return graph, replay
        return None, None


def copied(values: deque[T]) -> tuple[T, ...]:
    """A snapshot of a log to which other threads may append meanwhile."""
    while True:
        try:
            return tuple(values)
        except RuntimeError:
            continue


def _bare(runs: list[Run]) -> list[Run]:
    return [run._replace(write=None) for run in runs]


def _at(each: Input, seen: _Seen, begun: Begun) -> RowsAtReplay:
    told = seen.told.get(each.story.buffer.serial)
    if told is None:
        return RowsAtReplay(seen.replay, seen.order, ())
    stretches: list[RowStretch] = []
    last_began, runs = told
    for first, last, state, time in states_of(each.rows, seen.order if seen.untouched else last_began, runs):
        kept = state is RowState.KEPT
        since = begun.first_after(time, seen.order, each.story.readers) if kept else (None, None)
        before = stretches[-1] if stretches else None
        if before is not None and (before.state, before.graph, before.replay) == (state, *since):
            stretches[-1] = RowStretch(before.first, last, state, *since)
        else:
            stretches.append(RowStretch(first, last, state, *since))
    return RowsAtReplay(seen.replay, seen.order, tuple(stretches[:_STRETCHES]), len(stretches) > _STRETCHES)


def states_of(rows: Rows, last: float, runs: Sequence[Run]) -> Iterator[tuple[int, int, RowState, float]]:
    """First and last row, state, and time of the latest write of each stretch, in order; every row is in one.

    Uses the same definitions of fresh and stale as `mixture`.
    """
    held = [(rows.of(ByteRange(run.start, run.stop)), run) for run in runs if run.stop > rows.start]
    held = [(each, run) for each, run in held if each]
    edges = {0, rows.count}
    for each, _ in held:  # only the first and the last row of a run can have a part of another
        edges |= {each.start, each.start + 1, each.stop - 1, each.stop}
    begin = 0
    for start, stop in pairwise(sorted(edges)):
        while begin < len(held) and held[begin][0].stop <= start:
            begin += 1
        there = _runs_in(start, held[begin:])
        time = max((run.time for run in there), default=0)
        yield start, stop - 1, _state(there, last), time


def _runs_in(row: int, held: Sequence[tuple[range, Run]]) -> list[Run]:
    """The runs that have a byte in a row, of runs in order."""
    found: list[Run] = []
    for rows, run in held:
        if rows.start > row:
            break
        if rows.stop > row:
            found.append(run)
    return found


def _state(runs: Sequence[Run], last: float) -> RowState:
    now = [run for run in runs if run.time > last]
    if now:
        if not all(run.sure for run in now):
            return RowState.UNKNOWN
        return RowState.PADDED if all(run.constant for run in now) else RowState.REFRESHED
    return RowState.KEPT if hold_values(runs) else RowState.UNKNOWN
