"""The two scales of an interactive map: bytes in proportion, and every part as wide as the logarithm of its length.

Both are monotonic and piecewise linear in the address, so that each position stands for one address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Spans = Sequence[tuple[int, int]]

_GUARD = 0.35  # of the width of a buffer of the same length
_GAP = 2.0  # width of a stretch between buffers: that of a buffer of three bytes
_FOLD = 1 / 80  # width of a folded gap, as a share of the whole


@dataclass(frozen=True, slots=True)
class Scale:
    """Positions of addresses; clamped at both ends.

    Attributes
    ----------
    addresses, places
        The points of the scale, ascending.
    """

    addresses: Floats
    places: Floats

    def at(self, addresses: Floats) -> Floats:
        """Positions of the given addresses."""
        return np.interp(addresses, self.addresses, self.places)


def islands_of(spans: Spans) -> Floats:
    """``[start, stop)`` rows that cover the spans, at least one, with close spans joined.

    Two islands are separated by a gap longer than a quarter of the used bytes spread over all of them.
    """
    islands = _joined(np.array(sorted(spans), dtype=np.float64), 0.0)
    used = float((islands[:, 1] - islands[:, 0]).sum())
    return _joined(islands, used / (4 * len(islands)))


def _joined(ordered: Floats, reach: float) -> Floats:
    ends = np.maximum.accumulate(ordered[:, 1])
    breaks = np.flatnonzero(ordered[1:, 0] - ends[:-1] > reach)
    starts = ordered[np.concatenate(([0], breaks + 1)), 0]
    return np.column_stack((starts, ends[np.concatenate((breaks, [len(ordered) - 1]))]))


def proportional(islands: Floats) -> Scale:
    """One unit for each byte inside islands; the gaps between them take a quarter of the whole at most."""
    lengths = islands[:, 1] - islands[:, 0]
    gaps = len(islands) - 1
    fold = np.ceil(lengths.sum() * min(_FOLD, 1 / (4 * max(1, gaps))))  # whole bytes, so that all positions are exact
    starts = np.concatenate(([0.0], np.cumsum(lengths + fold)[:-1]))
    return Scale(islands.reshape(-1), np.column_stack((starts, starts + lengths)).reshape(-1))


def logarithmic(spans: Spans, guards: Spans) -> Scale:
    """Each stretch between two edges as wide as the logarithm of its length, guards narrower, gaps of one width."""
    cuts = np.unique(np.array([*spans, *guards], dtype=np.float64))
    own, guarded = _covered(cuts, spans), _covered(cuts, guards)
    lengths = np.log2(1 + np.diff(cuts))
    widths = np.where(own, lengths, np.where(guarded, _GUARD * lengths, _GAP))
    return Scale(cuts, np.concatenate(([0.0], np.cumsum(widths))))


def _covered(cuts: Floats, spans: Spans) -> npt.NDArray[np.bool_]:
    """Whether each stretch between two cuts lies in a span; every end of a span is a cut."""
    change = np.zeros(len(cuts), dtype=np.int64)
    if spans:
        ends = np.array(spans, dtype=np.float64)
        np.add.at(change, np.searchsorted(cuts, ends[:, 0]), 1)
        np.add.at(change, np.searchsorted(cuts, ends[:, 1]), -1)
    return np.cumsum(change)[:-1] > 0
