"""Recorded arguments of launches, as plain data for reports and dumps."""

from __future__ import annotations

import msgspec

from shadowgraph.model.redaction import Kept


class LaunchArgument(msgspec.Struct, frozen=True):
    """The first bytes of one integer argument of a launch; `owner` is the name of its buffer, or the line that
    allocated it, or empty. `data` is empty where the launch passed unseen: `shape` is then flat."""

    argument: str
    owner: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


class AssertedIndex(msgspec.Struct, frozen=True):
    """The values of an index that a launch of compiled code asserts on, computed from the launch's recorded arguments.

    Attributes
    ----------
    rule
        As written in the code: ``0 <= tmp24 < ks2``.
    low, high
        Values of the bounds; `high` is exclusive. None where the rule has no such bound.
    least, most
        Smallest and largest value of the index over the whole launch.
    places, more_places
        The first few positions along x at which the index is out of range, and the number of further ones.
    into
        The indexed argument, or empty.
    owner
        Name of that argument's buffer, or empty; with `copied` the argument is a copy of the buffer of this name.
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
    """A launch that had begun when the device was lost, with its small arguments as they were just before it.
    `asserted` is set where it must then have met an index out of range; `passed` counts later replays that, like their
    prepare phases, passed unseen."""

    name: Kept[str]
    file: Kept[str | None]
    line: Kept[int | None]
    values: tuple[LaunchArgument, ...]
    asserted: AssertedIndex | None = None
    passed: Kept[int] = 0
