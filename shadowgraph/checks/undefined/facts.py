"""Facts of SG107, beside those of every finding. Pure data, no torch."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from shadowgraph.checks.undefined import CODE
from shadowgraph.model.findings import Reader, Successor
from shadowgraph.model.kinds import TAG, Detail
from shadowgraph.model.redaction import Kept


class Source(StrEnum):
    """Why bytes must not matter."""

    GUARD = "guard"  # they belong to no tensor
    SLACK = "slack"  # of a static buffer, beyond the views that the graph captured
    UNWRITTEN = "unwritten"  # memory of the capture that neither a node nor host code has written
    PADDING = "padding"  # declared not to matter


class LoadFacts(msgspec.Struct, frozen=True):
    """A load of a kernel that read the bytes; known on the host alone.

    Attributes
    ----------
    program
        The program of the grid.
    line
        Line in the kernel's file; 0 where not known.
    """

    program: Kept[tuple[int, int, int]]
    line: Kept[int]


class UndefinedDetail(Detail, msgspec.Struct, frozen=True, tag=CODE, tag_field=TAG):
    """What depends on the bytes.

    Attributes
    ----------
    output
        The result that depends on them.
    first, last, count
        Its bytes that differ, relative to its start, inclusive, and how many differ.
    computed
        Whether nodes computed the result from them; else the bytes were read as they are.
    fills
        The two values that were put into them.
    values
        The first element of the result that differs, under each of the two.
    writer
        The node that was given the bytes to write, where nothing has written them.
    load
        The load that read them.
    runs
        Runs of the graph that showed it.
    """

    source: Source
    output: Successor
    first: Kept[int]
    last: Kept[int]
    count: Kept[int]
    computed: bool
    fills: Kept[tuple[str, str]] = ("", "")
    values: tuple[str, str] = ("", "")
    writer: Reader | None = None
    load: LoadFacts | None = None
    runs: Kept[int] = 0
