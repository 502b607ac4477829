"""Guard coverage: how many of the bytes that graphs may write are guarded, so that no finding is not taken for proof.

The graph registry owns the `CoverageLog`, which takes no lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from shadowgraph.model.buffers import Buffer, Ledger
from shadowgraph.model.graphs import Graph
from shadowgraph.model.ranges import RangeSet

_LISTED = 8


class Coverage(msgspec.Struct, frozen=True):
    """Bytes that graphs may write, by how well the buffers that hold them are guarded.

    Attributes
    ----------
    written
        Bytes that some node may write, summed over the graphs captured in the run.
    exact
        The part of `written` in buffers whose guard starts right after their last byte.
    unguarded
        Dtype and shape of the largest written buffers without guards, at most eight.
    dropped
        Launch records that were dropped for lack of space.
    inputs
        Buffers without guards that graphs read: a write past one of them in prepare breaks no guard.
    inexact
        Bytes of `written` in buffers whose next guard stands at a distance from their last byte: a short overrun is
        missed.
    gaps
        Dtype and shape of the buffers with the largest such distances, and these in bytes; at most eight.
    """

    written: int
    exact: int
    unguarded: tuple[str, ...]
    dropped: int
    inputs: int = 0
    inexact: int = 0
    gaps: tuple[tuple[str, int], ...] = ()

    @property
    def percent(self) -> int:
        """Exactly guarded share, rounded down, so that 100 means all."""
        return 100 * self.exact // self.written if self.written else 0

    def sentence(self) -> str:
        """The guarded share, the dropped records and the number of unguarded graph buffers, as text."""
        if not self.written:
            return f"no graph wrote anything yet, {self.dropped} records dropped"
        said = f"{self.percent} % of graph-written bytes guarded exactly, {self.dropped} records dropped"
        if self.inexact:
            said += f"; {max(1, 100 * self.inexact // self.written)} % guarded at a distance"
        if self.inputs:
            noun = "buffer that graphs use has" if self.inputs == 1 else "buffers that graphs use have"
            said += f"; {self.inputs} {noun} no guards"
        return said


class CoverageLog:
    """Coverage of every graph of a run, measured after its capture: graphs and their memory come and go."""

    def __init__(self) -> None:
        self._by_graph: dict[int, tuple[int, int, int]] = {}
        self._unguarded: dict[str, int] = {}
        self._gaps: dict[str, int] = {}
        self._inputs: set[int] = set()

    def note(self, graph: Graph, tenants: Iterable[Buffer], ledger: Ledger) -> None:
        """Measure a captured graph. `tenants`: buffers whose guards stand."""
        written = RangeSet.of(p.view.hull for _, p in graph.pointers() if p.may_write)
        own = [buffer for buffer in ledger.freed if buffer.graph == graph.serial]  # of blocks reused since
        missing = written - RangeSet.of(buffer.range for buffer in (*tenants, *own) if buffer.exact)
        used = {b.serial for p in graph.spans for b in ledger.overlapping(p.start, p.stop) if not _near_a_guard(b)}
        self._inputs |= used
        distant = self._note_missing(missing, ledger)
        self._by_graph[graph.serial] = (written.nbytes, written.nbytes - missing.nbytes, distant.nbytes)

    def _note_missing(self, missing: RangeSet, ledger: Ledger) -> RangeSet:
        """Note the buffers that hold missing bytes; returns those bytes that have a guard at a distance."""
        distant = RangeSet()
        for part in missing:
            for buffer in ledger.overlapping(part.start, part.stop):
                form = f"{buffer.dtype}{list(buffer.shape)}"
                if _near_a_guard(buffer):
                    self._gaps[form] = max(self._gaps.get(form, 0), buffer.inexact + buffer.gap)
                    distant.add(part.intersect(buffer.range) or part)
                else:
                    self._unguarded[form] = buffer.nbytes
        return distant

    def coverage(self, dropped: int) -> Coverage:
        """The sum over all graphs captured so far."""
        written, exact, inexact = (sum(row[at] for row in self._by_graph.values()) for at in range(3))
        return Coverage(
            written=written,
            exact=exact,
            unguarded=tuple(_largest(self._unguarded)),
            dropped=dropped,
            inputs=len(self._inputs),
            inexact=inexact,
            gaps=tuple((form, self._gaps[form]) for form in _largest(self._gaps)),
        )


def _near_a_guard(buffer: Buffer) -> bool:
    """Whether a guard stands after a buffer, directly or at a distance."""
    return buffer.guarded or buffer.gap > 0


def _largest(sizes: Mapping[str, int]) -> list[str]:
    return sorted(sizes, key=lambda name: -sizes[name])[:_LISTED]
