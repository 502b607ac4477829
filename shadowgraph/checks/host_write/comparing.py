"""The bytes of a source when its copy was queued, those that arrived, and those of the source since: was it rewritten
in flight, and by which of the operators that were seen to write it? Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shadowgraph.model.check_log import WINDOW
from shadowgraph.model.ranges import ByteRange

_BEFORE = 16  # bytes shown before the first wrong one


@dataclass(frozen=True, slots=True)
class Format:
    """How bytes of the source become bytes of the target: dtypes as torch names them."""

    source: str
    target: str
    itemsize: int

    @property
    def converts(self) -> bool:
        """Whether the copy converts the elements, which are integers then."""
        return self.source != self.target


@dataclass(frozen=True, slots=True)
class Damage:
    """The wrong bytes, as offsets in the source.

    Attributes
    ----------
    ranges, count
        Inclusive pairs, in order, and the number of wrong bytes.
    window, expected, found
        Offset and bytes around the first wrong one; `expected` are those of the source when the copy was queued.
    writer
        Place of the write behind which the source had the bytes that arrived, among those that were seen; None where
        it had them behind none.
    """

    ranges: tuple[tuple[int, int], ...]
    count: int
    window: int
    expected: bytes
    found: bytes
    writer: int | None


def damage_of(
    pieces: Sequence[ByteRange],
    before: Sequence[bytes],
    arrived: Sequence[bytes],
    now: Sequence[bytes] | None,
    writes: Sequence[Sequence[bytes]],
    form: Format,
) -> Damage | None:
    """What a rewrite of the source has done to a copy; None where all bytes arrived, and where it is not known that the
    source was rewritten: something else may have written the target then.

    Parameters
    ----------
    pieces
        Offsets in the source.
    before, now
        Bytes of the source when the copy was queued, and after it has run; None where the source is gone.
    arrived
        Bytes of the target.
    writes
        Bytes of the source after each write that was seen meanwhile, the first one first.
    """
    wrong = [_wrong(old, got, form) for old, got in zip(before, arrived, strict=True)]
    if not any(each.any() for each in wrong):
        return None
    writer = next((place for place, data in enumerate(writes) if _agrees(data, arrived, wrong, form)), None)
    changed = now is not None and _differs(now, before, wrong, form)
    if writer is None and not changed:
        return None
    return _damage(pieces, before, arrived, wrong, form, writer)


def _wrong(old: bytes, got: bytes, form: Format) -> npt.NDArray[np.bool_]:
    """Per byte of the source, or per element where the copy converts, whether another value arrived."""
    wanted = _converted(old, form)
    return np.asarray(np.frombuffer(wanted, _unit(form)) != np.frombuffer(got, _unit(form)))


def _unit(form: Format) -> npt.DTypeLike:
    return np.dtype(form.target) if form.converts else np.uint8


def _converted(data: bytes, form: Format) -> bytes:
    """The bytes that the target has after a copy of these."""
    if not form.converts:
        return data
    return np.frombuffer(data, np.dtype(form.source)).astype(np.dtype(form.target)).tobytes()


def _agrees(
    data: Sequence[bytes], arrived: Sequence[bytes], wrong: Sequence[npt.NDArray[np.bool_]], form: Format
) -> bool:
    """Whether these bytes of the source are those that arrived, wherever wrong ones did."""
    pairs = zip(data, arrived, wrong, strict=True)
    return not any((_wrong(each, got, form) & where).any() for each, got, where in pairs)


def _differs(
    data: Sequence[bytes], before: Sequence[bytes], wrong: Sequence[npt.NDArray[np.bool_]], form: Format
) -> bool:
    """Whether these bytes of the source are others than before, somewhere where wrong ones arrived."""
    pairs = zip(data, before, wrong, strict=True)
    return any((_wrong(each, _converted(old, form), form) & where).any() for each, old, where in pairs)


def _damage(
    pieces: Sequence[ByteRange],
    before: Sequence[bytes],
    arrived: Sequence[bytes],
    wrong: Sequence[npt.NDArray[np.bool_]],
    form: Format,
    writer: int | None,
) -> Damage:
    size = form.itemsize if form.converts else 1
    runs = [run for piece, where in zip(pieces, wrong, strict=True) for run in _runs(where, size, piece.start)]
    place = next(place for place, where in enumerate(wrong) if where.any())
    first = runs[0][0] - pieces[place].start
    begin = max(0, first - _BEFORE) // form.itemsize * form.itemsize
    got = arrived[place]
    if form.converts:
        back = np.frombuffer(got, np.dtype(form.target)).astype(np.dtype(form.source))
        got = np.where(wrong[place], back, np.frombuffer(before[place], np.dtype(form.source))).tobytes()
    return Damage(
        ranges=tuple(runs),
        count=sum(last + 1 - start for start, last in runs),
        window=pieces[place].start + begin,
        expected=before[place][begin : begin + WINDOW],
        found=got[begin : begin + WINDOW],
        writer=writer,
    )


def _runs(wrong: npt.NDArray[np.bool_], size: int, start: int) -> list[tuple[int, int]]:
    """First and last offset of each run of wrong bytes."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], wrong, [False])).astype(np.int8)))
    return [(start + int(a) * size, start + int(b) * size - 1) for a, b in zip(edges[::2], edges[1::2], strict=True)]
