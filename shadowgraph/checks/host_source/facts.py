"""Facts of SG110, beside those of every finding. Pure data, no torch."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from shadowgraph.checks.host_source import CODE
from shadowgraph.model.findings import Successor
from shadowgraph.model.kinds import TAG, Detail
from shadowgraph.model.redaction import Kept


class Fate(StrEnum):
    """What became of the host memory of a copy node."""

    FREED = "freed"  # its storage is gone; the allocator may hand the block to another tensor
    MOVED = "moved"  # its storage lives on at another address or with another size
    RECYCLED = "recycled"  # the driver has another allocation there
    UNPINNED = "unpinned"  # the driver knows no allocation there any more: freed, or no longer registered
    ENDED = "ended"  # a tensor over it is gone; the memory is another library's, and may live on
    PAGEABLE = "pageable"  # the driver never knew it, and whether it lives on is not known


class HostSourceDetail(Detail, msgspec.Struct, frozen=True, tag=CODE, tag_field=TAG):
    """The copy, what became of its host memory, and what is there now.

    Attributes
    ----------
    fate
        What became of the memory.
    to_host
        Whether the node writes it; else it reads it.
    pinned
        Whether it was pinned at the end of the capture.
    node
        Index of the copy node.
    first, last
        The bytes that the node copies, inclusive, relative to the buffer's start.
    device
        The memory on the other side.
    victims
        Known host memory that now occupies these bytes.
    """

    fate: Fate
    to_host: bool
    pinned: bool
    node: Kept[int]
    first: Kept[int]
    last: Kept[int]
    device: Successor
    victims: tuple[Successor, ...] = ()
