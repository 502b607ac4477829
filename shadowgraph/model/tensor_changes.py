"""A change of a watched tensor, as pure data: reports and dumps use it where torch is not imported."""

from __future__ import annotations

import msgspec

from shadowgraph.model.phases import Phase
from shadowgraph.model.redaction import Kept
from shadowgraph.model.stacks import Stack


class Change(msgspec.Struct, frozen=True):
    """One write to a watched tensor, or a change of its bytes without a seen write (`writer` None).

    Attributes
    ----------
    first, last
        Written bytes, inclusive, relative to the watched tensor.
    """

    phase: Phase | None
    graph: Kept[str | None]
    replay: Kept[int | None]
    writer: Kept[str | None]
    node: Kept[int | None]
    stack: Kept[Stack]
    first: Kept[int]
    last: Kept[int]
