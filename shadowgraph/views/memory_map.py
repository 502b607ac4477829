"""Data of a memory map: buffers by address, other owners of their bytes, and damage. Draws nothing.
Drawn by `shadowgraph.render.plots.memory_map` and, to zoom into, by `shadowgraph.render.plots.interactive`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shadowgraph.checks.kinds import kind_of
from shadowgraph.checks.verdicts import when, who
from shadowgraph.common.errors import UsageError
from shadowgraph.model.buffers import Buffer, buffer_view
from shadowgraph.model.findings import BufferFacts, Finding
from shadowgraph.model.owners import Owner
from shadowgraph.model.views import TensorView, describe_slice

if TYPE_CHECKING:
    from shadowgraph.dumps.live import LiveDebugger
    from shadowgraph.tracking.aliases import NameBook


@dataclass(frozen=True, slots=True)
class MapAlias:
    """Another owner of some of a buffer's bytes.

    Attributes
    ----------
    name, relation
        The owner's path, and how it is made from the owner that names the buffer (``""``: the same view). Where no
        owner covers the whole buffer, all are listed and the relation is to the buffer as a flat array of its dtype.
    start, stop
        Addresses of its first byte and after its last; there may be gaps between.
    """

    name: str
    relation: str
    start: int
    stop: int


@dataclass(slots=True, unsafe_hash=True)
class MapBuffer:
    """A buffer at its place. Never changed; not frozen, which would double the time to make 100,000 of them.

    Attributes
    ----------
    name, names
        Its label, and every owner path; no paths for an unnamed buffer.
    start, nbytes
        First address and requested size.
    role
        ``static``, ``pool`` or ``foreign``.
    head_guard, tail_guard
        Guard bytes before and after; 0 without a guard, or where its size is no longer known.
    gap
        Bytes between the buffer's end and the guard after it, which belong to other memory.
    graph
        Name of the graph whose capture allocated it.
    alive
        False for a buffer that was freed after it was damaged.
    """

    name: str
    names: tuple[str, ...]
    start: int
    nbytes: int
    role: str
    head_guard: int = 0
    tail_guard: int = 0
    gap: int = 0
    dtype: str = "uint8"
    shape: tuple[int, ...] = ()
    graph: str | None = None
    alive: bool = True
    aliases: tuple[MapAlias, ...] = ()

    @property
    def stop(self) -> int:
        return self.start + self.nbytes

    @property
    def tail(self) -> tuple[int, int]:
        """First address of the guard after the buffer, and the address after the guard's last byte."""
        return self.stop + self.gap, self.stop + self.gap + self.tail_guard


@dataclass(frozen=True, slots=True)
class MapDamage:
    """The bytes of a finding. Addresses are absolute, last ones inclusive.

    Attributes
    ----------
    finding, code
        The finding's id and code.
    first, last
        Extreme changed bytes; the whole buffer where `located` is false.
    buffer
        Index into `MemoryMap.buffers`.
    culprit, when
        The culprit and its phase, in words; either may be empty.
    touched
        How the culprit used the buffer, where `located` is false: ``read by``.
    ranges
        Changed ranges, up to 16; `partial` where there are more, so that only `first` and `last` bound the rest.
    count
        Changed bytes.
    located
        False for a finding on a whole buffer, without bytes of its own.
    truncated
        The evidence reaches the end of the armed bytes: more bytes may have been written.
    """

    finding: int
    code: str
    first: int
    last: int
    buffer: int
    culprit: str = ""
    when: str = ""
    ranges: tuple[tuple[int, int], ...] = ()
    count: int = 0
    partial: bool = False
    located: bool = True
    truncated: bool = False
    touched: str = "used by"

    @property
    def pieces(self) -> tuple[tuple[int, int], ...]:
        """The changed ranges, inclusive; `(first, last)` where no range is known."""
        return self.ranges or ((self.first, self.last),)

    @property
    def exact(self) -> bool:
        """Whether every byte of `pieces` changed; else only some of them (entries lost between rows, say)."""
        return not self.count or sum(last + 1 - first for first, last in self.pieces) <= self.count


@dataclass(frozen=True, slots=True)
class MemoryMap:
    """Buffers in order of address, and damage.

    Raises
    ------
    UsageError
        When buffers are out of order, or damage refers to a buffer that does not exist.
    """

    buffers: tuple[MapBuffer, ...] = ()
    damages: tuple[MapDamage, ...] = ()

    def __post_init__(self) -> None:
        if any(one.start > other.start for one, other in zip(self.buffers, self.buffers[1:], strict=False)):
            raise UsageError("a memory map takes its buffers in order of address")
        for damage in self.damages:
            if not 0 <= damage.buffer < len(self.buffers):
                raise UsageError(f"finding #{damage.finding} is on buffer {damage.buffer} of {len(self.buffers)}")

    @classmethod
    def of(cls, debugger: LiveDebugger) -> MemoryMap:
        """The present state of a debugger: live buffers, and freed buffers with findings. Runs no check.

        Owned data: nothing of the debugger or its tensors is kept.

        Parameters
        ----------
        debugger
            A debugger, running or stopped.
        """
        debugger.names.refresh()
        findings = (*debugger.findings, *debugger.monitor.book.parts)
        facts = {finding.buffer.serial: finding.buffer for finding in findings}
        graphs = {graph.serial: graph.name for graph in debugger.graphs}
        found = {serial: freed_buffer(known) for serial, known in facts.items()}
        for buffer in debugger.buffers:
            found[buffer.serial] = _live(buffer, debugger.names, graphs, facts.get(buffer.serial))
        serials = sorted(found, key=lambda serial: (found[serial].start, serial))
        index = {serial: position for position, serial in enumerate(serials)}
        return cls(
            tuple(found[serial] for serial in serials),
            tuple(damage_of(finding, index[finding.buffer.serial]) for finding in findings),
        )

    @property
    def damaged(self) -> tuple[int, ...]:
        """Indices of damaged buffers, in order of their first finding."""
        return tuple(dict.fromkeys(damage.buffer for damage in self.damages))

    def damages_of(self) -> dict[int, tuple[MapDamage, ...]]:
        """Damage by buffer index."""
        found: dict[int, tuple[MapDamage, ...]] = {}
        for damage in self.damages:
            found[damage.buffer] = (*found.get(damage.buffer, ()), damage)
        return found


def _live(buffer: Buffer, book: NameBook, graphs: Mapping[int, str], facts: BufferFacts | None) -> MapBuffer:
    name, names = book.name_of(buffer)
    return live_buffer(buffer, name, names, book.owners_of(buffer.range, buffer.serial), graphs, facts)


def live_buffer(
    buffer: Buffer,
    name: str,
    names: tuple[str, ...],
    owners: Sequence[Owner],
    graphs: Mapping[int, str],
    facts: BufferFacts | None,
) -> MapBuffer:
    """A live buffer.

    Parameters
    ----------
    name, names
        Its label, and the paths of all owners, the best first.
    owners
        Paths with their views.
    graphs
        Names by serial.
    facts
        The buffer's facts in a finding on it.
    """
    if not names and facts is not None:  # its owner died since; the finding still has the name
        name, names = facts.name, facts.names
    graph = None if buffer.graph is None else graphs.get(buffer.graph, f"graph#{buffer.graph}")
    return MapBuffer(
        name=name,
        names=names,
        start=buffer.start,
        nbytes=buffer.nbytes,
        role=str(buffer.role),
        head_guard=buffer.head_guard,
        tail_guard=buffer.tail_guard,
        gap=buffer.gap if buffer.tail_guard else 0,
        dtype=buffer.dtype,
        shape=buffer.shape,
        graph=graph,
        alive=buffer.alive,
        aliases=_aliases(buffer, owners, name),
    )


def _aliases(buffer: Buffer, owners: Sequence[Owner], chief: str) -> tuple[MapAlias, ...]:
    """Other owners, including owners disjoint from the chief one: halves of a buffer are owners of it too."""
    if not owners:
        return ()
    whole = _whole(buffer, owners, chief)
    if whole is not None and len(owners) == 1:
        return ()
    reference = whole if whole is not None else buffer_view(buffer)
    return tuple(
        MapAlias(owner.path, describe_slice(owner.view, reference) or "", owner.view.start, owner.view.stop)
        for owner in owners
        if whole is None or owner.path != chief
    )


def _whole(buffer: Buffer, owners: Sequence[Owner], chief: str) -> TensorView | None:
    """The view of the chief owner, if it covers the whole buffer."""
    view = next((owner.view for owner in owners if owner.path == chief), None)
    covers = view is not None and view.start <= buffer.start and view.stop >= buffer.stop
    return view if covers else None


def freed_buffer(facts: BufferFacts) -> MapBuffer:
    """A freed buffer, from the facts in a finding."""
    return MapBuffer(
        name=facts.name,
        names=facts.names,
        start=facts.address,
        nbytes=facts.nbytes,
        role=facts.role,
        dtype=facts.dtype,
        shape=facts.shape,
        alive=False,
    )


def damage_of(finding: Finding, buffer: int) -> MapDamage:
    """The bytes of a finding; `buffer` is the index of its buffer in the map."""
    start, facts = finding.buffer.address, finding.bytes
    damage = MapDamage(
        finding=_number(finding),
        code=finding.code,
        first=start,
        last=start + max(1, finding.buffer.nbytes) - 1,
        buffer=buffer,
        culprit=who(finding),
        when=when(finding),
        located=False,
        touched=kind_of(finding.code).touched(finding),
    )
    if facts is None:
        return damage
    return replace(
        damage,
        first=start + facts.first,
        last=start + facts.last,
        ranges=tuple((start + first, start + last) for first, last in facts.ranges),
        count=facts.count,
        partial=facts.ranges_total > len(facts.ranges),
        located=True,
        truncated=facts.truncated,
    )


def _number(finding: Finding) -> int:
    """The id that reports show: of an overrun's part, that of the overrun."""
    origin = finding.continues
    return origin.finding if origin is not None and origin.finding else finding.id
