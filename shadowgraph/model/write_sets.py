"""Which bytes each node of a graph changed in one probed replay: pure data, for checks, dumps and reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from shadowgraph.model.probes import Outcome


class Place(msgspec.Struct, frozen=True):
    """A buffer by the serial of its allocation; `name` as in findings."""

    buffer: int
    name: str
    address: int
    nbytes: int


class Written(msgspec.Struct, frozen=True):
    """What one node changed of one buffer.

    Attributes
    ----------
    node
        Index of the device node.
    buffer
        Serial of the buffer.
    first, last, count
        Extreme changed bytes, inclusive, from the buffer's start, and how many changed.
    """

    node: int
    buffer: int
    first: int
    last: int
    count: int


class WriteSets(msgspec.Struct, frozen=True):
    """Values that changed, node by node. A store of the value that was there already is not in it.

    Attributes
    ----------
    graph, replay
        The graph's name, and which of its replays was probed.
    written
        In order of nodes.
    looked_at, left_out
        Buffers that were compared, and those for whose copies there was no room.
    dropped
        Changes for which there was no room.
    """

    graph: str
    replay: int
    written: tuple[Written, ...]
    looked_at: tuple[Place, ...]
    left_out: tuple[Place, ...] = ()
    dropped: int = 0

    def of_node(self, node: int) -> tuple[Written, ...]:
        """What a node changed.

        Parameters
        ----------
        node
            Index of a device node.
        """
        return tuple(one for one in self.written if one.node == node)

    def of_buffer(self, serial: int) -> tuple[Written, ...]:
        """Who changed a buffer.

        Parameters
        ----------
        serial
            Its allocation's.
        """
        return tuple(one for one in self.written if one.buffer == serial)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return document


def write_sets_of(
    graph: str, outcome: Outcome, places: Mapping[int, Place], left_out: Iterable[Place] = ()
) -> WriteSets:
    """The write sets that an outcome shows.

    Parameters
    ----------
    places
        The buffer that each part of the probe is, by the part's index; other parts are left out.
    """
    written = []
    for hit in outcome.hits:
        place = places.get(hit.part)
        if place is not None:
            first, last = hit.first - place.address, hit.last - place.address
            written.append(Written(hit.node, place.buffer, first, last, hit.count))
    return WriteSets(
        graph=graph,
        replay=outcome.replay,
        written=tuple(sorted(written, key=lambda one: (one.node, one.buffer))),
        looked_at=tuple(places.values()),
        left_out=tuple(left_out),
        dropped=outcome.dropped,
    )
