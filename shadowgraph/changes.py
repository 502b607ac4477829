"""A change of a watched tensor, as data."""

from __future__ import annotations

import msgspec

from shadowgraph.tracking.phases import Phase
from shadowgraph.tracking.stacks import Stack


class Change(msgspec.Struct, frozen=True):
    """One write to a watched tensor, or bytes that changed with no write seen (`writer` None).

    Attributes
    ----------
    first, last
        Written bytes, inclusive, relative to the watched tensor.
    """

    phase: Phase | None
    graph: str | None
    replay: int | None
    writer: str | None
    node: int | None
    stack: Stack
    first: int
    last: int
