"""The result of a probed replay, as passed to the checks that use write sets, and the detection made from it.

The locator calls those checks when the replay has ended, under the debugger's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, ClassVar

from shadowgraph.checks.base import Check, Checkpoint, Context, Detection
from shadowgraph.checks.culprits import culprit_of_node
from shadowgraph.common.errors import FindingsError
from shadowgraph.engines.base import RANGES
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.device_nodes import DeviceNode, NodeKind
from shadowgraph.model.graphs import Graph
from shadowgraph.model.phases import Phase
from shadowgraph.model.probes import Hit
from shadowgraph.model.ranges import ByteRange, RangeSet


@dataclass(frozen=True, slots=True)
class Change:
    """Bytes of one buffer, or of a piece of one, that one node changed."""

    buffer: Buffer
    hit: Hit

    @property
    def extent(self) -> ByteRange:
        """From the first changed byte to the last."""
        return ByteRange(self.hit.first, self.hit.last + 1)


@dataclass(frozen=True, slots=True)
class CellChange:
    """Bytes of one cell of a buffer that one node changed; no view given to a launch ends inside a cell."""

    buffer: Buffer
    cell: ByteRange
    hit: Hit

    @property
    def extent(self) -> ByteRange:
        """From the first changed byte to the last."""
        return ByteRange(self.hit.first, self.hit.last + 1)


@dataclass(frozen=True, slots=True)
class Probed:
    """A probed replay.

    Attributes
    ----------
    changes
        In order of nodes.
    meanwhile
        Bytes that launches outside the graph wrote during the replay, as far as seen.
    cells
        Changes, cell by cell, of buffers of which launches were given parts; the same bytes as in `changes`.
    """

    graph: Graph
    replay: int
    changes: tuple[Change, ...]
    meanwhile: RangeSet
    cells: tuple[CellChange, ...] = ()


class ProbedCheck(Check):
    """A check that judges the write sets of probed replays. The locator calls it, under the debugger's lock.

    Attributes
    ----------
    pending
        By graph serial: what the next probed replay of the graph has to confirm. While a graph is in it, its next
        replay is probed.
    needs_whole_buffers
        Whether it judges a replay only where all tracked memory was compared, or the buffers that it wanted.
    """

    needs_whole_buffers: ClassVar[bool] = False

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.pending: MutableMapping[int, Any] = {}

    def probed(self, seen: Probed) -> None:
        """Memory was compared after every node of a replay."""

    def buffers_wanted(self, graph: int) -> Iterable[Buffer]:
        """Buffers to compare as a whole in a graph's next replay."""
        return ()

    def pieces_wanted(self, graph: int) -> Iterable[tuple[Buffer, ByteRange]]:
        """Bytes to compare piece by piece in a graph's next replay."""
        return ()

    def cells_wanted(self, graph: int) -> Iterable[Buffer]:
        """Buffers to compare cell by cell in a graph's next replay."""
        return ()


_EXACT = (NodeKind.MEMCPY, NodeKind.MEMSET)
_IDLE = (NodeKind.EMPTY, NodeKind.EVENT, NodeKind.ALLOC, NodeKind.FREE)


def disturbed_parts(nodes: Callable[[int], DeviceNode | None], hits: Iterable[Hit]) -> set[int]:
    """Parts that another writer changed during the replay: the apparent writer writes nothing, or not there.

    Parameters
    ----------
    nodes
        The node with an index.
    """
    return {hit.part for hit in hits if _is_elsewhere(nodes(hit.node), hit)}


def _is_elsewhere(node: DeviceNode | None, hit: Hit) -> bool:
    """Whether a node cannot have made the change that it seems to have made."""
    if node is None or node.kind in _IDLE:
        return True
    written = ByteRange(hit.first, hit.last + 1)
    return node.kind in _EXACT and bool(node.writes) and not any(where.covers(written) for where in node.writes)


def report_all(context: Context, drafts: Iterable[Detection]) -> None:
    """Report every detection; the first finding raised in sync mode is raised after all are reported."""
    raised: FindingsError | None = None
    for draft in drafts:
        try:
            context.report(draft)
        except FindingsError as error:
            raised = raised or error
    if raised is not None:
        raise raised


def draft_of(
    code: str,
    context: Context,
    seen: Probed,
    buffer: Buffer,
    nodes: tuple[int, ...],
    where: RangeSet,
    count: int,
    confidence: str,
) -> Detection:
    """A detection about bytes that nodes changed, the culprit first.

    Parameters
    ----------
    count
        Changed bytes: at most as many as `where` has.
    """
    parts = list(where)
    hull = ByteRange(parts[0].start, parts[-1].stop)
    found = tuple(
        culprit_of_node(seen.graph, node, seen.replay, buffer.range, hull, context.ledger, context.names)
        for node in nodes
    )
    return Detection(
        code=code,
        checkpoint=Checkpoint("probed_replay", Phase.REPLAY, seen.graph, seen.replay),
        buffer=buffer,
        first=hull.start,
        last=hull.stop - 1,
        count=count,
        ranges=tuple((part.start, part.stop - 1) for part in parts[:RANGES]),
        ranges_total=len(parts),
        located=found,
        phase=Phase.REPLAY,
        graph=seen.graph,
        replay=seen.replay,
        confidence=confidence,
        key=" ".join(sorted({f"{culprit.name}" for culprit in found})),
    )
