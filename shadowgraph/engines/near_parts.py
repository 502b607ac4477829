"""Near parts of many guards compared at once, without a loop in Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shadowgraph.tracking.canary import canary
from shadowgraph.tracking.guards import Guard
from shadowgraph.tracking.memory import raw_bytes


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Guards whose near parts have one size: their places among all guards, where those lie, what they hold."""

    places: npt.NDArray[np.intp]
    offsets: npt.NDArray[np.intp]
    nbytes: int
    expected: npt.NDArray[np.uint8]


class NearParts:
    """The near parts of a tuple of guards; valid as long as the guards' memory is.

    Parameters
    ----------
    origin
        Address that canary positions count from.
    """

    def __init__(self, guards: Sequence[Guard], origin: int) -> None:
        self.guards = guards
        self._low = min(guard.near.start for guard in guards)
        self._span = max(guard.near.stop for guard in guards) - self._low
        by_size: dict[int, list[int]] = {}
        for place, guard in enumerate(guards):
            by_size.setdefault(guard.near.nbytes, []).append(place)
        self._groups = [self._group(places, nbytes, origin) for nbytes, places in by_size.items() if nbytes]

    def broken(self) -> set[int]:
        """Places of the guards whose near part does not hold its canary."""
        memory = raw_bytes(self._low, self._span)
        found: set[int] = set()
        for group in self._groups:
            rows = np.lib.stride_tricks.sliding_window_view(memory, group.nbytes)[group.offsets]
            bad = (rows != group.expected).any(axis=1)
            if bad.any():
                found.update(group.places[bad].tolist())
        return found

    def _group(self, places: list[int], nbytes: int, origin: int) -> _Group:
        starts = [self.guards[place].near.start for place in places]
        expected = b"".join(canary(start - origin, nbytes) for start in starts)
        return _Group(
            np.array(places, dtype=np.intp),
            np.array([start - self._low for start in starts], dtype=np.intp),
            nbytes,
            np.frombuffer(expected, dtype=np.uint8).reshape(len(places), nbytes),
        )
