"""Facts of SG111, beside those of every finding. Pure data, no torch."""

from __future__ import annotations

import msgspec

from shadowgraph.checks.host_write import CODE
from shadowgraph.model.findings import Successor
from shadowgraph.model.kinds import TAG, Detail
from shadowgraph.model.redaction import Kept, KernelName
from shadowgraph.model.stacks import Stack


class HostWriteDetail(Detail, msgspec.Struct, frozen=True, tag=CODE, tag_field=TAG):
    """The copy that was in flight.

    Attributes
    ----------
    copy
        The operator, or the node, that copies.
    copied_at
        The Python stack that queued or captured it, innermost first.
    node
        Index of the node; None for a copy of host code.
    target
        The memory that it copies to, where the wrong bytes arrived.
    nbytes, compared
        Bytes of the copy, and how many of them were compared.
    written_by_torch
        Whether operators were seen to write all bytes that arrived wrong; else numpy, Python or C++ wrote some.
    """

    copy: KernelName
    copied_at: Kept[Stack]
    node: Kept[int | None]
    target: Successor
    nbytes: Kept[int]
    compared: Kept[int]
    written_by_torch: bool
