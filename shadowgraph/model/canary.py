"""The canary pattern that guards are filled with.

Each byte depends on its position, so that a kernel that stores one value over and over, or copies a guard elsewhere,
does not produce an intact guard. Every byte is odd and between 0xA1 and 0xBD: neither 0x00 nor 0xFF, the high bytes of
small integers of either sign, nor 0x3F, 0x40, 0xBF or 0xC0, the high bytes of ordinary floats, so that the edges of an
overwrite show even where a middle byte happens to match.
"""

from __future__ import annotations

import numpy as np

PERIOD = 4096


def _table() -> bytes:
    position = np.arange(PERIOD, dtype=np.uint32)
    mixed = (position + np.uint32(1)) * np.uint32(2654435761)  # Knuth's multiplicative hash
    mixed ^= mixed >> np.uint32(15)
    values = np.uint32(0xA1) + np.uint32(2) * ((mixed >> np.uint32(16)) % np.uint32(15))
    return values.astype(np.uint8).tobytes()


_TILE = _table() * 2


def canary(position: int, nbytes: int) -> bytes:
    """The canary bytes for ``[position, position + nbytes)``; position is relative to the engine's origin."""
    offset = position % PERIOD
    if offset + nbytes <= len(_TILE):
        return _TILE[offset : offset + nbytes]
    repeats = (offset + nbytes) // PERIOD + 1
    return (_TILE[:PERIOD] * repeats)[offset : offset + nbytes]
