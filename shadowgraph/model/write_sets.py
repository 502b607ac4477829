"""Write sets: the bytes that each node of a graph changed in one probed replay, as pure data for checks, dumps and
reports."""

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
    """The bytes of one buffer that one node changed.

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
    """Changed bytes by node. A store that does not change the value is not included.

    Attributes
    ----------
    graph, replay
        The graph's name, and the number of the probed replay.
    written
        In order of nodes.
    looked_at, left_out
        Buffers that were compared, and buffers left out for lack of space for copies.
    dropped
        Changes that were dropped for lack of space.
    """

    graph: str
    replay: int
    written: tuple[Written, ...]
    looked_at: tuple[Place, ...]
    left_out: tuple[Place, ...] = ()
    dropped: int = 0

    def of_node(self, node: int) -> tuple[Written, ...]:
        """The changes of one node.

        Parameters
        ----------
        node
            Index of a device node.
        """
        return tuple(one for one in self.written if one.node == node)

    def of_buffer(self, serial: int) -> tuple[Written, ...]:
        """The changes of one buffer, by node.

        Parameters
        ----------
        serial
            Serial of the buffer's allocation.
        """
        return tuple(one for one in self.written if one.buffer == serial)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return document


def write_sets_of(
    graph: str, outcome: Outcome, places: Mapping[int, Place], left_out: Iterable[Place] = ()
) -> WriteSets:
    """The write sets of an outcome.

    Parameters
    ----------
    places
        The buffer of each part of the probe, by the part's index; other parts are left out.
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
