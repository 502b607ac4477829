"""Facts of SG114, beside those of every finding. Pure data, no torch."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from shadowgraph.checks.lost_preparation import CODE
from shadowgraph.model.kinds import TAG, Detail
from shadowgraph.model.redaction import Kept, KernelName
from shadowgraph.model.stacks import Stack


class Known(StrEnum):
    """How it is known which graph a write was for."""

    DECLARED = "declared"  # a prepare block, or a plan of an object that the graph was captured with
    LINES = "lines"  # until then, only this graph read what the line wrote, and the other graph what the other line did
    CALLS = "calls"  # only this graph reads all that the call wrote that made it, and so with the other one
    ORDER = "order"  # each replay had a write of its own before; this time two writes came first, then two replays,
    # of two graphs or of one
    COUNT = "count"  # as `ORDER`, but no step before had a write for each replay


class LostWrite(msgspec.Struct, frozen=True):
    """The write that was overwritten before its replay: operator, kernel or plan, with its line."""

    name: KernelName
    kind: Kept[str]
    file: Kept[str | None] = None
    line: Kept[int | None] = None
    stack: Kept[Stack] = ()


class LostDetail(Detail, msgspec.Struct, frozen=True, tag=CODE, tag_field=TAG):
    """The write that was lost, and the replay for which its bytes were overwritten.

    Attributes
    ----------
    lost
        The write of bytes that the graph of the finding was to read.
    other, other_replay
        The graph that the culprit wrote for, and the number of its coming replay then.
    known
        How it is known which graph each of the two wrote for.
    """

    lost: LostWrite
    other: Kept[str]
    other_replay: Kept[int | None]
    known: Known
