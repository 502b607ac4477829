"""Launches and replays that ran, as pure data: entries of the flight recorder's logs and of dumps."""

from __future__ import annotations

import msgspec

from shadowgraph.model.launches import Launch
from shadowgraph.model.phases import Phase


class Ran(msgspec.Struct, frozen=True):
    """A launch that ran; `node` and `graph` (a serial) where it was a node of a replay."""

    launch: Launch
    time: float
    phase: Phase | None = None
    graph: int | None = None
    node: int | None = None


class Replayed(msgspec.Struct, frozen=True):
    """A replay that began; `order` is that of its checkpoint, which numbers checkpoints and host writes."""

    graph: int
    replay: int
    time: float
    order: int
