"""What the checks of rebound inputs share: which memory of a graph host code has to refresh, and how stale bytes are
reported. Called under the debugger's lock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import msgspec

from shadowgraph.checks.base import Checkpoint, Context, Detection, bytes_in
from shadowgraph.checks.rebound import CODE
from shadowgraph.checks.rebound.details import Rebound
from shadowgraph.checks.row_epochs import stretches
from shadowgraph.engines.base import WINDOW
from shadowgraph.graphs.dispatch.operand_notes import Interest
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.graphs import Access, Graph
from shadowgraph.model.launches import Launch
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.writes import Write, extent

LARGEST = 1 << 16  # bytes of an input that are compared
_CERTAIN = (Access.WRITE, Access.READ_WRITE)


@dataclass(frozen=True, slots=True)
class Stale:
    """Bytes of a graph's memory that are old, beside those that it should hold.

    Attributes
    ----------
    view, buffer
        The graph's memory.
    items
        Numbers of the elements that differ.
    found, wanted
        The first bytes of both memories, of one length.
    """

    view: TensorView
    buffer: Buffer
    items: list[int]
    found: bytes
    wanted: bytes


class Claims:
    """Which of several explanations is reported for a graph's memory: the first one, and no other."""

    def __init__(self) -> None:
        self._taken: dict[tuple[int, int], object] = {}

    def take(self, graph: Graph, start: int, explanation: object) -> bool:
        """Whether an explanation is, or becomes, the reported one."""
        return self._taken.setdefault((graph.serial, start), explanation) is explanation


def draft_of(checkpoint: Checkpoint, view: TensorView, buffer: Buffer, key: str, sure: bool = False) -> Detection:
    """A detection about a graph's memory, without bytes: the graph is about to read it. What is inferred, or seen where
    stores are not, is not quite `sure`."""
    whole = (view.start, view.stop) == (buffer.start, buffer.stop) and view.dtype == buffer.dtype
    serial = checkpoint.graph.serial if checkpoint.graph is not None else 0
    return Detection(
        code=CODE,
        checkpoint=checkpoint,
        buffer=buffer,
        first=view.start,
        last=view.stop - 1,
        count=0,
        ranges=(),
        phase=Phase.PREPARE,
        graph=checkpoint.graph,
        replay=checkpoint.replay,
        confidence="high" if sure else "medium",
        view=None if whole else view,
        key=f"{serial} {key} {view.start - buffer.start}",
    )


def stale_draft(
    checkpoint: Checkpoint, stale: Stale, key: str, by: Write | None, facts: Rebound, sure: bool = False
) -> Detection:
    """A detection about old bytes in a graph's memory; `by` wrote the other memory, where that is known."""
    start, item = stale.view.start, stale.view.itemsize
    ranges = (ByteRange(start + a * item, start + (b + 1) * item) for a, b in stretches(stale.items))
    return replace(
        draft_of(checkpoint, stale.view, stale.buffer, key, sure),
        **bytes_in(ranges),
        window=start,
        expected=stale.wanted[:WINDOW],
        found=stale.found[:WINDOW],
        culprits=(msgspec.structs.replace(by, opaque=True),) if by is not None else (),
        facts=facts,
    )


def first_reads(graph: Graph) -> Iterator[TensorView]:
    """Views that a graph reads of memory from before its capture, each once, without those that it certainly writes."""
    made = certainly_made(graph)
    seen: set[TensorView] = set()
    for _, pointer in graph.pointers():
        view = pointer.view
        if pointer.may_read and view.nbytes and view not in seen:
            seen.add(view)
            if not made.overlaps(view.hull):
                yield view


def certainly_made(graph: Graph) -> RangeSet:
    """Bytes that a graph's operators write; what a kernel does with a pointer is not known."""
    return RangeSet.of(part for _, p in graph.pointers() if p.access in _CERTAIN for part in extent(p.view)[0])


def input_of(graph: Graph, view: TensorView) -> Buffer | None:
    """The living buffer, given to a graph, that holds a view."""
    for buffer in graph.inputs.values():
        if buffer.alive and buffer.start <= view.start and view.stop <= buffer.stop:
            return buffer
    return None


def is_read(context: Context, where: ByteRange) -> bool:
    """Whether any captured graph was given memory in a range."""
    return bool(context.graphs_on(where))


def last_to(where: ByteRange, recent: Iterable[tuple[int, Write]], interest: Interest) -> Write | None:
    """The last launch that wrote memory in a range: of the writes that were seen, and of the noted results."""
    writes = [(order, write) for order, write in recent if write.ranges.overlaps(where)]
    made = [(order, launch) for order, launch in list(interest.results) if _led(launch, where)]
    latest: tuple[int, Write | None] = writes[-1] if writes else (0, None)
    return _write_by(made[-1][1]) if made and made[-1][0] > latest[0] else latest[1]


def _led(launch: Launch, where: ByteRange) -> bool:
    return any(pointer.view.hull.overlaps(where) for pointer in launch.pointers)


def _write_by(launch: Launch) -> Write:
    """A launch that returned a tensor, as a write."""
    ranges = RangeSet.of(pointer.view.hull for pointer in launch.pointers)
    return Write(launch, ranges, opaque=True)
