"""Guard coverage: how many of the bytes that graphs may write are guarded, so that no finding is not taken for proof.

The graph registry owns the `CoverageLog`, which takes no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

import msgspec

from shadowgraph.common.words import plural, size
from shadowgraph.model.buffers import Buffer, Ledger, Role
from shadowgraph.model.graphs import Graph
from shadowgraph.model.ranges import ByteRange, RangeSet

_LISTED = 8


class BufferClass(StrEnum):
    """What a buffer is to a program with graphs."""

    STATIC = "static inputs"
    WORKSPACE = "workspaces"
    KV_POOL = "KV pool"
    GRAPH_POOL = "graph pool"
    WEIGHTS = "weights"
    OTHER = "other"  # not known


ClassOf = Callable[[Buffer], BufferClass]


def class_by_role(buffer: Buffer) -> BufferClass:
    """The class as far as it follows from where a buffer's memory comes from."""
    return {Role.POOL: BufferClass.GRAPH_POOL, Role.STATIC: BufferClass.STATIC}.get(buffer.role, BufferClass.OTHER)


class ClassCoverage(msgspec.Struct, frozen=True):
    """The coverage of the buffers of one class.

    Attributes
    ----------
    name
        A `BufferClass`.
    written, exact
        As of `Coverage`.
    """

    name: str
    written: int
    exact: int

    @property
    def percent(self) -> int:
        """Exactly guarded share, rounded down."""
        return 100 * self.exact // self.written if self.written else 0


class LargeGuards(msgspec.Struct, frozen=True):
    """Guards behind large eager allocations, and what they take.

    Attributes
    ----------
    buffers, nbytes
        The guarded buffers, and their bytes.
    guards
        Bytes of the guards.
    added
        Bytes of memory that the program would not have taken without them.
    """

    buffers: int = 0
    nbytes: int = 0
    guards: int = 0
    added: int = 0

    def __add__(self, other: LargeGuards) -> LargeGuards:
        return LargeGuards(
            self.buffers + other.buffers,
            self.nbytes + other.nbytes,
            self.guards + other.guards,
            self.added + other.added,
        )

    def __sub__(self, other: LargeGuards) -> LargeGuards:
        return self + LargeGuards(-other.buffers, -other.nbytes, -other.guards, -other.added)

    def sentence(self) -> str | None:
        """What they take, as text; None without any."""
        if not self.buffers:
            return None
        share = 100 * self.added / self.nbytes
        what = f"{size(self.guards)} of guards behind {plural(self.buffers, 'large buffer')} of {size(self.nbytes)}"
        return f"{what}, which took {size(self.added)} more memory than the program alone ({share:.1f} %)"


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
    classes
        `written` and `exact` by class of buffer, in the order of `BufferClass`; classes without written bytes are left
        out.
    large
        Guards behind large buffers, when they took most memory.
    """

    written: int
    exact: int
    unguarded: tuple[str, ...]
    dropped: int
    inputs: int = 0
    inexact: int = 0
    gaps: tuple[tuple[str, int], ...] = ()
    classes: tuple[ClassCoverage, ...] = ()
    large: LargeGuards = LargeGuards()

    @property
    def percent(self) -> int:
        """Exactly guarded share, rounded down, so that 100 means all."""
        return 100 * self.exact // self.written if self.written else 0

    def sentence(self) -> str:
        """The exactly guarded share of each class of buffer, buffers without guards and dropped records, as text.

        Guards show writes past a buffer's end, and nothing of memory that is freed, shared or stale: the text says so,
        for a reader who comes to it from a finding of another kind.
        """
        dropped = f"{plural(self.dropped, 'record')} dropped"
        if not self.written:
            return f"no graph captured under the debugger wrote anything yet; {dropped}"
        said = [f"guarded exactly against out-of-bounds writes: {self.by_class()}"]
        if self.inexact:
            said.append(f"{max(1, 100 * self.inexact // self.written)} % guarded at a distance")
        if self.inputs:
            noun = "buffer that graphs use has" if self.inputs == 1 else "buffers that graphs use have"
            said.append(f"{self.inputs:,} {noun} no guards")
        return "; ".join((*said, dropped))

    def by_class(self) -> str:
        """The guarded share of each class, as text; of all bytes that graphs write, where no class is known."""
        if not self.classes:
            return f"{self.percent} % of the {size(self.written)} that graphs write"
        return ", ".join(f"{row.name} {row.percent} % of {size(row.written)}" for row in self.classes)


def added_classes(parts: Iterable[tuple[ClassCoverage, ...]]) -> tuple[ClassCoverage, ...]:
    """The sums of several coverages by class."""
    sums: dict[str, tuple[int, int]] = {}
    for row in (row for rows in parts for row in rows):
        written, exact = sums.get(row.name, (0, 0))
        sums[row.name] = written + row.written, exact + row.exact
    order = [*BufferClass, *sums]
    return tuple(ClassCoverage(name, *sums[name]) for name in sorted(sums, key=order.index))


class CoverageLog:
    """Coverage of every graph of a run, measured after its capture: graphs and their memory come and go."""

    def __init__(self) -> None:
        self._by_graph: dict[int, tuple[int, int, int]] = {}
        self._classes: dict[int, tuple[ClassCoverage, ...]] = {}
        self._unguarded: dict[str, int] = {}
        self._gaps: dict[str, int] = {}
        self._inputs: set[int] = set()

    def note(self, graph: Graph, tenants: Iterable[Buffer], ledger: Ledger, class_of: ClassOf = class_by_role) -> None:
        """Measure a captured graph. `tenants`: buffers whose guards stand."""
        written = RangeSet.of(p.view.hull for _, p in graph.pointers() if p.may_write)
        own = [buffer for buffer in ledger.freed if buffer.graph == graph.serial]  # of blocks reused since
        missing = written - RangeSet.of(buffer.range for buffer in (*tenants, *own) if buffer.exact)
        used = {b.serial for p in graph.spans for b in ledger.overlapping(p.start, p.stop) if not _near_a_guard(b)}
        self._inputs |= used
        distant = self._note_missing(missing, ledger)
        self._by_graph[graph.serial] = (written.nbytes, written.nbytes - missing.nbytes, distant.nbytes)
        known = [*own, *(b for part in written for b in ledger.overlapping(part.start, part.stop))]
        self._classes[graph.serial] = _by_class(written, missing, known, class_of)

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

    def coverage(self, dropped: int, large: LargeGuards = LargeGuards()) -> Coverage:  # noqa: B008  it is frozen
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
            classes=added_classes(self._classes.values()),
            large=large,
        )


def _by_class(
    written: RangeSet, missing: RangeSet, buffers: Iterable[Buffer], class_of: ClassOf
) -> tuple[ClassCoverage, ...]:
    """The bytes that a graph may write, by the class of the buffers that hold them; each byte in one class. Of
    overlapping buffers the smaller ones come first."""
    rest, rows = written.copy(), []
    for buffer in sorted(buffers, key=lambda each: each.nbytes):
        own = rest.intersection(buffer.range)
        if own:
            rest.discard(buffer.range)
            rows.append(_row(class_of(buffer), own, missing))
    return added_classes([(*rows, *([_row(BufferClass.OTHER, list(rest), missing)] if rest else []))])


def _row(kind: BufferClass, parts: list[ByteRange], missing: RangeSet) -> ClassCoverage:
    lost = sum(hole.nbytes for part in parts for hole in missing.intersection(part))
    written = sum(part.nbytes for part in parts)
    return ClassCoverage(str(kind), written, written - lost)


def _near_a_guard(buffer: Buffer) -> bool:
    """Whether a guard stands after a buffer, directly or at a distance."""
    return buffer.guarded or buffer.gap > 0


def _largest(sizes: Mapping[str, int]) -> list[str]:
    return sorted(sizes, key=lambda name: -sizes[name])[:_LISTED]
