"""A change of a watched tensor, as pure data: reports and dumps use it where torch is not imported."""

from __future__ import annotations

import msgspec

from shadowgraph.model.phases import Phase
from shadowgraph.model.stacks import Stack


class Change(msgspec.Struct, frozen=True):
    """One write to a watched tensor, or a change of its bytes without a seen write (`writer` None).

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
