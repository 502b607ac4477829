"""The extent of an overrun, as plain data: the buffers that it reached, the finding that a broken guard belongs to, and
the reference from a consequence to its cause."""

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
    finding
        The id of that finding; 0 in records of older versions.
    """

    buffer: OwnerPath
    serial: Kept[int]
    fingerprint: Kept[str]
    finding: Kept[int] = 0


class CausedBy(msgspec.Struct, frozen=True):
    """The finding whose damage led to another finding.

    Attributes
    ----------
    finding, code, fingerprint
        Its id in the same process (in a run's report: in that report), code and fingerprint.
    buffer, serial
        Name and serial of its buffer.
    sure
        Both findings have one confirmed launch, which was not given the buffer of the consequence. Else the place and
        the replay alone speak for it.
    """

    finding: Kept[int]
    code: Kept[str]
    fingerprint: Kept[str]
    buffer: OwnerPath
    serial: Kept[int]
    sure: Kept[bool]


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
    overwritten
        How many of its own bytes the overrun is known to have written; None where that is not known. All of them where
        its guards on both sides are broken and the launch's stores are not known.
    sure
        Whether the launch is confirmed for the damage here; else it is one run of changed bytes, seen at one boundary.
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
    overwritten: Kept[int | None] = None
    sure: Kept[bool] = True
