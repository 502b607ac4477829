"""Fast path for a block that passes from one tenant to the next in every replay.

Where memory is reused within a graph, each of its allocations is a change of tenant, and a replay repeats all of them.
The tenants of a block share one address and their guards differ by less than a block's rounding. So where the guards of
the previous tenant hold their canaries over their whole length, only the difference is written.
"""

from __future__ import annotations

from shadowgraph.model.buffers import Buffer
from shadowgraph.model.canary import canary
from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking.intact import Intact
from shadowgraph.tracking.memory import raw_bytes


class Handover:
    """The passage of a block between two given tenants. Their guards differ at most in the start of the tail guard;
    both start at their tenant's end, without a gap. The caller holds the allocator's lock.

    Parameters
    ----------
    origin
        Address at which canary positions start.
    previous, buffer
        The leaving tenant, and the next one.

    Attributes
    ----------
    previous
        The leaving tenant.
    intact
        Whether the guards of `previous` hold their canaries.
    """

    __slots__ = ("_canary", "_room", "intact", "previous")

    def __init__(self, origin: int, previous: Buffer, buffer: Buffer) -> None:
        self.previous = previous
        stop = previous.stop + previous.tail_guard + previous.gap
        head = ByteRange(previous.start - previous.head_guard, previous.start)
        self.intact = Intact((head, ByteRange(previous.stop, stop)), origin)
        self._room: memoryview | None = None
        self._canary = b""
        if stop > previous.stop > buffer.stop:
            self._room = raw_bytes(buffer.stop, previous.stop - buffer.stop).data
            self._canary = canary(buffer.stop - origin, self._room.nbytes)

    def write_difference(self) -> None:
        """Write the canary over the bytes that the next tenant's guards cover beyond those of `previous`."""
        if self._room is not None:
            self._room[:] = self._canary

    def is_possible(self, buffer: Buffer) -> bool:
        """Whether neither tenant has a gap now. The right to replace `previous` was checked before, and stays."""
        return not (self.previous.gap or buffer.gap)
