"""Canary comparison at a fraction of a microsecond, for guards that are checked in every replay.

`memcmp` against one image of the periodic canary. The arguments are prepared once, and the interpreter lock stays held:
releasing and retaking it costs more than the comparison.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from shadowgraph.model.canary import PERIOD, canary
from shadowgraph.model.ranges import ByteRange

_PIECE = 64 << 10  # bytes compared by one call
_compare = ctypes.PyDLL(None).memcmp
_image = ctypes.create_string_buffer(canary(0, _PIECE + PERIOD), _PIECE + PERIOD)

Piece = tuple[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


class Intact:
    """Host memory ranges that are expected to hold their canaries.

    Parameters
    ----------
    ranges
        The ranges; they must stay mapped.
    origin
        Address at which canary positions start.
    """

    __slots__ = ("_pieces",)

    def __init__(self, ranges: Iterable[ByteRange], origin: int) -> None:
        image = ctypes.addressof(_image)
        self._pieces: list[Piece] = [
            (
                ctypes.c_void_p(start),
                ctypes.c_void_p(image + (start - origin) % PERIOD),
                ctypes.c_size_t(min(_PIECE, where.stop - start)),
            )
            for where in ranges
            for start in range(where.start, where.stop, _PIECE)
        ]

    def __call__(self) -> bool:
        """Whether every byte holds its canary now."""
        # No generator, which would cost half as much again: this runs for each node of a replay.
        for here, expected, nbytes in self._pieces:  # noqa: SIM110
            if _compare(here, expected, nbytes):
                return False
        return True
