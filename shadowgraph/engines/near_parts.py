"""Vectorised comparison of many guards' near parts, without a loop in Python, and of single guards in full.

Used by the host engine, at each check; no lock of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shadowgraph.model.canary import canary
from shadowgraph.model.guards import Guard
from shadowgraph.tracking.intact import Intact
from shadowgraph.tracking.memory import raw_bytes


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Guards whose near parts have one size: their places among all guards, their offsets among all windows of that
    size, and their canaries."""

    places: npt.NDArray[np.intp]
    offsets: npt.NDArray[np.intp]
    windows: npt.NDArray[np.uint8]
    expected: npt.NDArray[np.uint8]
    image: bytes

    def broken(self) -> list[int]:
        """Places of the guards whose near part does not hold its canary."""
        rows = self.windows[self.offsets]
        if rows.tobytes() == self.image:  # one comparison for all: most checks find nothing
            return []
        broken: list[int] = self.places[(rows != self.expected).any(axis=1)].tolist()
        return broken


class NearParts:
    """The near parts of a tuple of guards; valid as long as the guards' memory is.

    Parameters
    ----------
    origin
        Address at which canary positions start.
    """

    def __init__(self, guards: Sequence[Guard], origin: int) -> None:
        self.guards = guards
        self._low = min(guard.near.start for guard in guards)
        self._memory = raw_bytes(self._low, max(guard.near.stop for guard in guards) - self._low)
        by_size: dict[int, list[int]] = {}
        for place, guard in enumerate(guards):
            by_size.setdefault(guard.near.nbytes, []).append(place)
        self._groups = [self._group(places, nbytes, origin) for nbytes, places in by_size.items() if nbytes]
        self._origin = origin
        self._wholes: dict[int, Intact] = {}

    def broken(self) -> set[int]:
        """Places of the guards whose near part does not hold its canary."""
        return {place for group in self._groups for place in group.broken()}

    def is_intact(self, place: int) -> bool:
        """Whether a guard holds its canary over its whole length."""
        whole = self._wholes.get(place)
        if whole is None:
            whole = self._wholes[place] = Intact((self.guards[place].whole,), self._origin)
        return whole()

    def _group(self, places: list[int], nbytes: int, origin: int) -> _Group:
        starts = [self.guards[place].near.start for place in places]
        image = b"".join(canary(start - origin, nbytes) for start in starts)
        return _Group(
            np.array(places, dtype=np.intp),
            np.array([start - self._low for start in starts], dtype=np.intp),
            np.lib.stride_tricks.sliding_window_view(self._memory, nbytes),
            np.frombuffer(image, dtype=np.uint8).reshape(len(places), nbytes),
            image,
        )
