"""Ties: names that led to memory of a graph at its capture, with what was seen of them since. Used by `RenamedInputs`,
under the debugger's lock."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from shadowgraph.checks.base import Detection
from shadowgraph.checks.rebound.drafts import LARGEST
from shadowgraph.graphs.dispatch.operand_notes import order
from shadowgraph.graphs.dispatch.tensors import ORDINARY, is_lazy_copy
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.graphs import Graph
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.stacks import Stack
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.trails import Trail

PATIENCE = 16  # sightings without a verdict, or refreshes while the name led elsewhere, until a name is given up
_ALWAYS, _BY_TURNS = 16, 4  # names followed at each replay, besides those that led elsewhere at the one before


@dataclass(slots=True, eq=False)
class Tie:
    """A name, and the memory that a graph was captured with when the name led there.

    Attributes
    ----------
    read
        Bytes of it that the graph was given.
    stacks
        Of the launches that may read them.
    sightings, in_a_row
        Number of sightings so far, and whether the latest two came at consecutive replays.
    replay
        Number of the replay of the latest sighting.
    latest, disturbed
        When the latest sighting was, and when something last took back what was seen before, by `order`: bytes arrive
        late.
    written
        Whether a write to the memory was seen since the graph last began to replay.
    found, other
        The first bytes of both memories at the latest sighting.
    looks, tries
        How often its bytes were requested, while the name led elsewhere; sightings and refreshes meanwhile.
    watched
        Whether reads and results of eager operators are noted for it.
    sources
        Memory that the writes since then read, the first few: a refresh may be copied from there.
    copies
        At how many replays a refresh had been copied from the memory that the name led to.
    told
        Whether there was enough evidence for a report.
    draft
        The latest report.
    taken
        Names in the code that was captured that may be this one, once they were looked up.
    home
        The graph's memory, from its first byte to its last.
    """

    graph: Graph
    trail: Trail
    buffer: Buffer
    read: RangeSet
    stacks: tuple[Stack, ...]
    sightings: int = 0
    in_a_row: bool = False
    replay: int = 0
    latest: int = 0
    disturbed: int = 0
    written: bool = False
    found: bytes = b""
    other: bytes = b""
    looks: int = 0
    tries: int = 0
    watched: bool = False
    sources: list[ByteRange] = field(default_factory=list)
    copies: int = 0
    told: bool = False
    draft: Detection | None = None
    taken: set[tuple[str, ...]] | None = None
    home: ByteRange = field(init=False)

    def __post_init__(self) -> None:
        self.home = self.view.hull

    @property
    def view(self) -> TensorView:
        return self.trail.view

    @property
    def size(self) -> int:
        return min(self.view.nbytes, LARGEST)

    @property
    def lags(self) -> bool:
        """Whether the graph's memory follows the name by copies, in some steps only or late: one alone is no habit."""
        return self.copies > 1

    @property
    def given_up(self) -> bool:
        """Whether it was looked at often enough without a verdict, or its verdict is final."""
        if self.told:
            return self.lags
        return self.tries >= PATIENCE or self.looks >= 2 * PATIENCE

    def disturb(self) -> None:
        """Discard what was seen so far."""
        self.watched = False
        if self.looks:
            self.disturbed = next(order)

    def begins(self) -> None:
        """A replay begins: writes count anew."""
        self.written = False
        self.sources.clear()

    def start_over(self) -> None:
        """Count sightings anew."""
        self.sightings, self.in_a_row, self.found, self.other = 0, False, b"", b""


def likelihood(tie: Tie) -> tuple[bool, int]:
    """Sorts names: indices and short ways first."""
    return not tie.view.dtype.startswith(("int", "uint")), len(tie.trail.name)


def due(ties: list[Tie], replay: int) -> list[Tie]:
    """The names that are followed at a replay."""
    first = _ALWAYS + replay * _BY_TURNS % max(1, len(ties) - _ALWAYS)
    by_turns = range(first, first + _BY_TURNS)
    return [tie for at, tie in enumerate(ties) if at < _ALWAYS or tie.watched or at in by_turns]


def is_at(tensor: torch.Tensor, view: TensorView) -> bool:
    """Whether a tensor starts where a view does."""
    if type(tensor) not in ORDINARY or is_lazy_copy(tensor):
        return False
    try:
        return tensor.data_ptr() == view.address
    except RuntimeError:
        return False
