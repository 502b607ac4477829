"""Facts of SG105, beside those of every finding. Pure data, no torch."""

from __future__ import annotations

import msgspec

from shadowgraph.checks.pool_clobber import CODE
from shadowgraph.model.findings import Successor
from shadowgraph.model.kinds import TAG, Detail
from shadowgraph.model.redaction import Kept


class Access(msgspec.Struct, frozen=True):
    """A launch that reads or writes the bytes, or a read by the host.

    Attributes
    ----------
    graph, replay, node
        Of a captured launch, else None.
    """

    name: Kept[str]
    graph: Kept[str | None] = None
    replay: Kept[int | None] = None
    node: Kept[int | None] = None
    file: Kept[str | None] = None
    line: Kept[int | None] = None


class ClobberDetail(Detail, msgspec.Struct, frozen=True, tag=CODE, tag_field=TAG):
    """The tensors that have the bytes in turn, and the accesses in their order: made, overwritten (the culprit), read.

    Attributes
    ----------
    owner
        The graph whose capture allocated the buffer.
    fate
        ``alive``, ``freed`` (it is read by a storage or a captured pointer that does not own it) or ``unknown``.
    by
        The tensor that was written over it.
    by_owner
        The graph whose capture allocated that one.
    read
        The read that got the other's values.
    made
        The write that gave the bytes their own values.
    apart
        Whether this run kept the two apart (layout ``isolate``), and torch's allocator would not.
    """

    owner: Kept[str]
    fate: Kept[str]
    by: Successor
    by_owner: Kept[str]
    read: Access
    made: Access
    apart: bool = False
