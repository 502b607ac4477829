"""What launches were given, as plain data for reports and dumps."""

from __future__ import annotations

import msgspec


class LaunchArgument(msgspec.Struct, frozen=True):
    """The beginning of one integer argument of a launch; `owner` is what its buffer is called, or where it was
    allocated, or empty."""

    argument: str
    owner: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


class AssertedIndex(msgspec.Struct, frozen=True):
    """What an index that a launch of compiled code asserts would have been, worked out from what the launch was given.

    Attributes
    ----------
    rule
        As the code says it: ``0 <= tmp24 < ks2``.
    low, high
        The bounds' values; `high` is the first that is too large. None where the rule has no such bound.
    least, most
        Extreme values of the index over the whole launch.
    places, more_places
        Where along x the index is out of range: the first few, and how many more there are.
    into
        The argument that is indexed, or empty.
    owner
        What that argument's buffer is called, or empty; with `copied` it holds a copy of the buffer of this name.
    """

    rule: str
    low: int | None
    high: int | None
    least: int
    most: int
    places: tuple[int, ...] = ()
    more_places: int = 0
    into: str = ""
    owner: str = ""
    copied: bool = False


class LastLaunch(msgspec.Struct, frozen=True):
    """A launch that had begun when the device was lost, with small arguments as they were just before it; `asserted`
    where it then must have met an index out of range; `passed` counts the replays since then of which, and of what
    prepared them, nothing was seen."""

    name: str
    file: str | None
    line: int | None
    values: tuple[LaunchArgument, ...]
    asserted: AssertedIndex | None = None
    passed: int = 0
