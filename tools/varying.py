"""What is printed without what differs from run to run: addresses, process numbers, times of day, days and durations.

Docs and notebooks keep their stored outputs where a new run prints the same up to these.
"""

from __future__ import annotations

import re

_VARYING = re.compile(
    r"0x[0-9a-f]{6,}|\bprocess \d+|\d\d:\d\d:\d\d(\.\d+)?|\b\d{4}-\d\d-\d\d\b|\b\d+(\.\d+)? ?(ms|us|s)\b"
)


def settled(text: str) -> str:
    """A text with a mark in place of each of them."""
    return _VARYING.sub("#", text)
