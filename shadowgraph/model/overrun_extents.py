"""The extent of an overrun, as plain data: the buffers that it reached, and the finding that a broken guard belongs
to."""

from __future__ import annotations

import msgspec

from shadowgraph.model.phases import Phase
from shadowgraph.model.redaction import Kept, OwnerPath


class Origin(msgspec.Struct, frozen=True):
    """The finding of an overrun that reached this finding's buffer.

    Attributes
    ----------
    buffer, serial, fingerprint
        Name and serial of the buffer whose end, or start, was overrun, and the fingerprint of that finding.
    """

    buffer: OwnerPath
    serial: Kept[int]
    fingerprint: Kept[str]


class Reached(msgspec.Struct, frozen=True):
    """A buffer that an overrun of another buffer reached.

    Attributes
    ----------
    over
        Whether the guard after it is broken too, so that its contents are lost; else the guard before it is.
    beyond
        Bytes from the edge of the overrun buffer to the furthest damage here.
    phase, graph, replay
        The phase in which this was first seen.
    late
        The damage may be older than that.
    """

    name: OwnerPath
    serial: Kept[int]
    nbytes: Kept[int]
    dtype: Kept[str]
    shape: Kept[tuple[int, ...]]
    over: bool
    beyond: Kept[int]
    phase: Phase
    graph: Kept[str | None]
    replay: Kept[int | None]
    late: bool = False
