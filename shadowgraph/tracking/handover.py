"""A block that passes from one tenant to the next in every replay, without work that comes to nothing.

Where memory is reused within a graph, each of its allocations is a change of tenant, and a replay goes through all of
them. The tenants of a block lie at one address and their guards differ in less than a block's rounding. So where the
guards of the one that leaves hold their canaries, over their whole length, only the difference is armed.
"""

from __future__ import annotations

from shadowgraph.model.buffers import Buffer
from shadowgraph.model.canary import canary
from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking.arena import HostArena
from shadowgraph.tracking.intact import Intact


class Handover:
    """One tenant of a block after another. Their guards differ in where the tail guard begins, at most; here both
    begin at the tenant's end, with no gap. The caller holds the allocator's lock.

    Parameters
    ----------
    previous, buffer
        The one that leaves, and the one that comes.

    Attributes
    ----------
    previous
        The one that leaves.
    intact
        Whether the guards of `previous` hold their canaries.
    """

    __slots__ = ("_canary", "_room", "intact", "previous")

    def __init__(self, arena: HostArena, previous: Buffer, buffer: Buffer) -> None:
        self.previous = previous
        stop = previous.stop + previous.tail_guard + previous.gap
        head = ByteRange(previous.start - previous.head_guard, previous.start)
        self.intact = Intact((head, ByteRange(previous.stop, stop)), arena.base)
        self._room: memoryview | None = None
        self._canary = b""
        if stop > previous.stop > buffer.stop:
            self._room = arena.view(buffer.stop, previous.stop).data
            self._canary = canary(buffer.stop - arena.base, self._room.nbytes)

    def arm(self) -> None:
        """Arm what the guards of the next tenant have beyond those of `previous`."""
        if self._room is not None:
            self._room[:] = self._canary

    def is_possible(self, buffer: Buffer) -> bool:
        """Whether both have no gap now. That the one may make way for the other was so before, and stays so."""
        return not (self.previous.gap or buffer.gap)
