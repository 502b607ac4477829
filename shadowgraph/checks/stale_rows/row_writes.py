"""Rows of the observer in C++ as arrays: which places of interest they write, and one number for a pattern of writes.

Pure, any thread. No object per row: a server has thousands between two looks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shadowgraph.graphs.observer.library import Words

Places = npt.NDArray[np.int64]
# Words of a row: time; number of the operator, depth, count of places, part; and of a place: address, bytes, facts.
_TIME, _HEAD, _ADDRESS, _PLACE = 2, 5, 7, 3
_MOST = 6  # places in a row
_COUNT = np.uint64(48), np.uint64(0xFF)  # of the head: how far down, and how wide
_WRITES = np.uint64(0xFF00)  # of a place's facts
_ODD = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], np.uint64)
_FURTHER = np.uint64(0xBF58476D1CE4E5B9)


class Writes(NamedTuple):
    """Writes of places of interest, in order: a call that writes several has several.

    Attributes
    ----------
    row
        Index of the row.
    span
        Index of the span that it hits.
    value
        Number that stands for operator, depth, part, argument, address and bytes.
    """

    row: Places
    span: Places
    value: Words


def writes_in(words: Words, starts: Words, stops: Words) -> Writes:
    """The writes of rows into spans.

    Parameters
    ----------
    starts, stops
        Of spans in order, of which none overlaps another.
    """
    count = (words[:, _HEAD] >> _COUNT[0]) & _COUNT[1]
    bounds = np.append(starts, np.uint64(2**64 - 1))
    found = [np.zeros((3, 0), np.int64)]
    for place in range(_MOST):
        at = _ADDRESS + _PLACE * place
        row = np.flatnonzero((count > place) & ((words[:, at + 2] & _WRITES) != 0))
        if not len(row):
            break  # what a call writes comes first
        begin, nbytes = (np.take(words[:, word], row) for word in (at, at + 1))
        stop = begin + nbytes
        first = np.searchsorted(stops, begin, "right")
        hit = np.flatnonzero(np.take(bounds, first) < stop)
        if len(hit):
            last = np.searchsorted(starts, stop[hit], "left")
            found.append(_each_span(row[hit], first[hit], last, at))
    row, span, at_word = np.concatenate(found, axis=1)
    order = np.argsort(row, kind="stable")
    row, span, at_word = row[order], span[order], at_word[order]
    return Writes(row, span, _values(words, row, at_word))


def _each_span(row: Places, first: Places, last: Places, at: int) -> Places:
    """Row, span and the place's first word, for each span from `first` up to `last`."""
    count = last - first
    span = first
    if (count > 1).any():
        row, start = np.repeat(row, count), np.repeat(np.cumsum(count) - count, count)
        span = np.repeat(first, count) + np.arange(len(row)) - start
    return np.stack([row, span, np.full(len(row), at)])


def _values(words: Words, row: Places, at: Places) -> Words:
    head = words[row, _HEAD] & ~(_COUNT[1] << _COUNT[0])
    address, nbytes, facts = words[row, at], words[row, at + 1], words[row, at + 2]
    value: Words = head * _ODD[0] + address * _ODD[1] + nbytes * _ODD[2] + facts * _ODD[3]
    return value


def times_of(words: Words) -> npt.NDArray[np.float64]:
    """When rows began, as `time.time`."""
    seconds: npt.NDArray[np.float64] = words[:, _TIME] / 1e9
    return seconds


def patterns(value: Words, replay: Places, count: int) -> list[int]:
    """A number for the writes of each of `count` replays, in order; 0 for none.

    Parameters
    ----------
    replay
        Which replay each write belongs to, never descending; writes of later replays are left out.
    """
    made = np.zeros(count, np.uint64)
    until = int(np.searchsorted(replay, count))
    value, replay = value[:until], replay[:until]
    if until:
        begins = np.flatnonzero(np.diff(replay, prepend=-1))
        place = np.arange(until) - np.repeat(begins, np.diff(begins, append=until))
        mixed = value + place.astype(np.uint64) * _FURTHER
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _FURTHER
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _ODD[0]
        made[replay[begins]] = np.add.reduceat(mixed ^ (mixed >> np.uint64(31)), begins)
    numbers: list[int] = made.tolist()
    return numbers
