"""Memory map of a dump: the same data as from a live debugger, without the packages that the run needed."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from shadowgraph.dumps.naming import BufferNames
from shadowgraph.dumps.reader import Dump
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.device_nodes import DeviceNode
from shadowgraph.model.findings import BufferFacts
from shadowgraph.model.graphs import Graph
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.views.memory_map import MapBuffer, MemoryMap, damage_of, freed_buffer, live_buffer

_NEAR = 4  # neighbours by address that are shown on either side of a requested buffer


def dumped_map(
    dump: Dump, book: BufferNames, graph: Graph | None = None, wanted: Sequence[Buffer] | None = None
) -> MemoryMap:
    """The memory map of a dump.

    Parameters
    ----------
    graph
        Keep the buffers that this graph's nodes point into or that its capture allocated.
    wanted
        Keep these buffers and their neighbours by address.
    """
    found = found_buffers(dump, book)
    if wanted is not None:
        for buffer in wanted:
            found.setdefault(buffer.serial, _gone(buffer, book.name(buffer)))
    serials = sorted(found, key=lambda serial: (found[serial].start, serial))
    kept = serials if graph is None else _used_by(graph, dump, found, serials)
    if wanted is not None:
        kept = list(_with_neighbours(kept, wanted))
    index = {serial: position for position, serial in enumerate(kept)}
    damages = (f for f in dump.manifest.facts.damage if f.buffer.serial in index)
    return MemoryMap(
        tuple(found[serial] for serial in kept),
        tuple(damage_of(finding, index[finding.buffer.serial]) for finding in damages),
    )


def _used_by(graph: Graph, dump: Dump, found: Mapping[int, MapBuffer], serials: Iterable[int]) -> list[int]:
    """The buffers that a graph's nodes point into or that its capture allocated."""
    touched = _touched(graph)
    home = {buffer.serial for buffer in dump.buffers if buffer.graph == graph.serial}
    return [serial for serial in serials if serial in home or touched.overlaps(_range(found[serial]))]


def found_buffers(dump: Dump, book: BufferNames, serials: Container[int] | None = None) -> dict[int, MapBuffer]:
    """Live buffers and buffers with findings, by serial; with `serials` these buffers alone, freed ones included."""
    facts = {finding.buffer.serial: finding.buffer for finding in dump.manifest.facts.damage}
    graphs = {row.serial: row.name for row in dump.manifest.graphs}
    found: dict[int, MapBuffer] = {}
    if serials is not None:
        found = {b.serial: _gone(b, book.name(b)) for b in dump.freed if b.serial in serials}
    found |= {serial: freed_buffer(known) for serial, known in facts.items() if _asked(serial, serials)}
    for buffer in dump.buffers:
        if _asked(buffer.serial, serials):
            found[buffer.serial] = _live(buffer, book, graphs, facts.get(buffer.serial))
    return found


def _live(buffer: Buffer, book: BufferNames, graphs: Mapping[int, str], facts: BufferFacts | None) -> MapBuffer:
    owners = book.owners(buffer)
    return live_buffer(buffer, book.name(buffer), tuple(owner.path for owner in owners), owners, graphs, facts)


def _asked(serial: int, serials: Container[int] | None) -> bool:
    return serials is None or serial in serials


def _gone(buffer: Buffer, name: str) -> MapBuffer:
    """A freed buffer without findings."""
    return replace(live_buffer(buffer, name, (), (), {}, None), head_guard=0, tail_guard=0, gap=0)


def _range(buffer: MapBuffer) -> ByteRange:
    return ByteRange(buffer.start, buffer.stop)


def _touched(graph: Graph) -> RangeSet:
    """Every byte of the arguments of a graph's launches, and one byte at each address that its device nodes hold."""
    spans = [pointer.view.hull for _, pointer in graph.pointers()]
    return RangeSet.of([*spans, *_pointed(graph.read_nodes or ())])


def _pointed(nodes: Iterable[DeviceNode]) -> Iterator[ByteRange]:
    for node in nodes:
        yield from (ByteRange(word.address, word.address + 1) for word in node.words)
        yield from (*node.reads, *node.writes)
        yield from _pointed(node.inner)


def _with_neighbours(serials: Sequence[int], wanted: Iterable[Buffer]) -> Iterator[int]:
    own = {buffer.serial for buffer in wanted}
    places = [place for place, serial in enumerate(serials) if serial in own]
    near = {at for place in places for at in range(max(0, place - _NEAR), min(len(serials), place + _NEAR + 1))}
    yield from (serials[place] for place in sorted(near))
