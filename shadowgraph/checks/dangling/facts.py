"""Facts of SG104, beside those of every finding. Pure data, no torch."""

from __future__ import annotations

import msgspec

from shadowgraph.checks.dangling import CODE
from shadowgraph.model.findings import Successor
from shadowgraph.model.kinds import TAG, Detail
from shadowgraph.model.redaction import Kept
from shadowgraph.model.stacks import Stack


class DanglingDetail(Detail, msgspec.Struct, frozen=True, tag=CODE, tag_field=TAG):
    """The graph's accesses, the buffers that now occupy the bytes, the owner's target.

    Attributes
    ----------
    access
        ``live-in`` (the graph reads the bytes before it writes them) or ``external-out`` (it only writes them).
    writes
        Whether the graph writes the bytes at all.
    fate
        ``freed``, or ``moved``: the storage lives on at another address or with another size, or its tensor was
        resized.
    first, last
        The bytes that the graph captured, inclusive, relative to the buffer's start.
    known
        Whether the accesses are known, by the signatures of operators; a kernel that was given the pointer may read and
        write the bytes, or leave them alone.
    freed_by
        Stack of the program, innermost first, where the last reference to the buffer went; empty where not known.
    freed_source
        Text of the innermost of these lines; empty where not known for sure, and where redacted.
    victims
        Known buffers that now occupy these bytes.
    replaced_by
        The buffer that the former owner refers to now.
    """

    access: Kept[str]
    writes: bool
    fate: Kept[str]
    first: Kept[int]
    last: Kept[int]
    victims: tuple[Successor, ...] = ()
    replaced_by: Successor | None = None
    known: bool = True
    freed_by: Kept[Stack] = ()
    freed_source: str = ""
