"""What launches were given, as plain data for reports and dumps."""

from __future__ import annotations

import msgspec


class GivenValue(msgspec.Struct, frozen=True):
    """The beginning of one integer argument of a launch; `owner` is what its buffer is called, or where it was
    allocated, or empty."""

    argument: str
    owner: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


class LastLaunch(msgspec.Struct, frozen=True):
    """A launch that had begun when the device was lost, with small arguments as they were just before it."""

    name: str
    file: str | None
    line: int | None
    values: tuple[GivenValue, ...]
