"""What became of the host memory of a copy node: a decision from its storage's life and the driver's answers. Pure."""

from __future__ import annotations

from shadowgraph.checks.host_source.facts import Fate
from shadowgraph.model.host_copies import HostBlock, HostKind

CERTAIN = frozenset((Fate.FREED, Fate.MOVED, Fate.RECYCLED, Fate.UNPINNED))


def fate_of_storage(then: HostBlock | None, owned: bool, in_capture: bool, moved: bool, taken: bool) -> Fate | None:
    """What became of memory whose storage is gone, or is elsewhere; None where the graph may go on using it.

    Parameters
    ----------
    then
        What the driver said of it at the end of the capture.
    owned
        Whether the memory ends with its storage.
    in_capture
        Whether it was allocated during the capture: torch gives pinned memory from there to no other tensor.
    moved
        Whether the storage lives on.
    taken
        Whether pinned memory that torch has allocated since lies there now.
    """
    pinned = then is not None and then.kind is HostKind.PINNED
    if pinned and in_capture:
        return None
    if moved:
        return Fate.MOVED
    if owned or taken:
        return Fate.FREED
    return None if pinned else Fate.ENDED  # of pinned memory the driver tells when it is gone


def fate_by_driver(then: HostBlock | None, now: HostBlock | None) -> Fate | None:
    """What became of memory that was pinned, by the driver's answers; None where nothing is known to have."""
    if then is None or now is None or then.kind is not HostKind.PINNED:
        return None
    if now.kind is not HostKind.PINNED:
        return Fate.UNPINNED
    known = then.allocation and now.allocation
    return Fate.RECYCLED if known and then.allocation != now.allocation else None
