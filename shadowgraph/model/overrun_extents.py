"""How far an overrun went, as plain data: which buffers it ran into, and which finding a broken guard belongs to."""

from __future__ import annotations

import msgspec

from shadowgraph.model.phases import Phase


class Origin(msgspec.Struct, frozen=True):
    """The finding of an overrun that went on as far as this one's buffer.

    Attributes
    ----------
    buffer, serial, fingerprint
        Name and serial of the buffer whose end, or start, it began at, and that finding's fingerprint.
    """

    buffer: str
    serial: int
    fingerprint: str


class Reached(msgspec.Struct, frozen=True):
    """A buffer that an overrun of another one went on to.

    Attributes
    ----------
    over
        Whether the guard behind it is broken too, so that its contents are lost; else the guard before it is.
    beyond
        Bytes from the edge of the buffer that was overrun to the furthest damage here.
    phase, graph, replay
        What ran when this was first seen.
    late
        It may have been there for some time by then.
    """

    name: str
    serial: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    over: bool
    beyond: int
    phase: Phase
    graph: str | None
    replay: int | None
    late: bool = False
