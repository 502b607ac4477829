"""Facts of SG115, beside those of every finding. Pure data, no torch."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from shadowgraph.checks.unordered_access import CODE
from shadowgraph.model.kinds import TAG, Detail
from shadowgraph.model.redaction import Kept


class Missing(StrEnum):
    """The order that is missing."""

    REPLAY_AFTER_WRITE = "replay after write"  # the replay may read before, or while, the bytes are written
    WRITE_AFTER_REPLAY = "write after replay"  # the bytes may be written while an earlier replay still reads them
    BOTH = "both"


class UnorderedDetail(Detail, msgspec.Struct, frozen=True, tag=CODE, tag_field=TAG):
    """A write and a replay on streams that nothing orders.

    Attributes
    ----------
    missing
        Which of the two has to wait for the other.
    write_stream, replay_stream
        Handles of their streams; 0 is the default stream.
    reading
        The replay that may still read, where the write comes after it.
    """

    missing: Missing
    write_stream: Kept[int]
    replay_stream: Kept[int]
    reading: Kept[int | None] = None
