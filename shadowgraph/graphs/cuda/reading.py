"""Reader of a captured graph: each node's kernel, the words of its arguments that hold addresses, its dependencies.

Calls the driver, in the thread that requests the nodes, under the model's lock `Graph.reading`.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from shadowgraph.graphs.cuda.driver import (
    PROGRAMMATIC,
    Driver,
    DriverError,
    KernelParameters,
    MemcpyParameters,
    MemsetParameters,
    demangled,
)
from shadowgraph.model.device_nodes import BLIND, DeviceNode, NodeKind, Sureness, Word
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.stacks import Stack

_KINDS = {
    0: NodeKind.KERNEL,
    1: NodeKind.MEMCPY,
    2: NodeKind.MEMSET,
    3: NodeKind.HOST,
    4: NodeKind.CHILD,
    5: NodeKind.EMPTY,
    6: NodeKind.EVENT,
    7: NodeKind.EVENT,
    10: NodeKind.ALLOC,
    11: NodeKind.FREE,
    13: NodeKind.CONDITIONAL,
}
_CONDITIONS = {0: "if", 1: "while", 2: "switch"}
_LOWEST, _HIGHEST = 1 << 20, 1 << 57  # bounds of possible addresses
_DEPTH = 4  # most levels of child graphs
_END, _BUFFER, _SIZE = 0, 1, 2  # CU_LAUNCH_PARAM_*


class Allocations:
    """Set of device memory addresses: known ranges, and the driver's answer for the rest."""

    def __init__(self, allocation_of: Callable[[int], tuple[int, int] | None], known: Iterable[ByteRange]) -> None:
        self._allocation_of = allocation_of
        self._known = RangeSet.of(known)
        self._asked: dict[int, bool] = {}  # answers, since nodes share addresses

    def __contains__(self, address: int) -> bool:
        if not _LOWEST <= address < _HIGHEST:
            return False
        known = self._asked.get(address)
        if known is None:
            known = self._asked[address] = self._look_up(address)
        return known

    def _look_up(self, address: int) -> bool:
        if self._known.overlaps(ByteRange(address, address + 1)):
            return True
        found = self._allocation_of(address)
        if found is not None:
            self._known.add(ByteRange(found[0], found[0] + found[1]))
        return found is not None


class _Read(NamedTuple):
    """The contents of a node's own parameters."""

    name: str
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    words: tuple[Word, ...] = ()
    reads: tuple[ByteRange, ...] = ()
    writes: tuple[ByteRange, ...] = ()
    inner: tuple[DeviceNode, ...] = ()
    note: str = ""


class Join(NamedTuple):
    """The maker of a node.

    Attributes
    ----------
    launch
        Index of the launch that made it, or None.
    stack
        Where no launch is known: the Python stack.
    names
        The launch's argument names by tensor address.
    learnt_from
        The graph that the stack was seen in, where it is another.
    """

    launch: int | None
    stack: Stack
    names: Mapping[int, str]
    learnt_from: str = ""


UNATTRIBUTED = Join(None, (), {})


class GraphReader:
    """Reads the nodes of one graph; each kernel is looked up once.

    Parameters
    ----------
    allocations
        The addresses that count as device memory.
    begins
        Whether a tracked buffer begins at an address.
    join
        The maker of a node of the graph itself, by place.
    """

    def __init__(
        self, driver: Driver, allocations: Allocations, begins: Callable[[int], bool], join: Callable[[int], Join]
    ) -> None:
        self._driver, self._allocations, self._begins, self._join = driver, allocations, begins, join
        self._certain: dict[int, bool] = {}
        self._kernels: dict[int, tuple[str, tuple[tuple[int, int], ...]]] = {}

    def read(self, graph: int, depth: int = 0) -> tuple[DeviceNode, ...]:
        """Every node of a graph, which must not be destroyed meanwhile.

        Raises
        ------
        DriverError
            When not even its nodes can be listed. The reason why a node cannot be read is in its `note`.
        """
        handles = self._driver.nodes(graph)
        places = {handle: place for place, handle in enumerate(handles)}
        after: list[list[int]] = [[] for _ in handles]
        for first, second in self._driver.edges(graph):
            after[places[second]].append(places[first])
        made = [self._node(place, handle, after[place], depth) for place, handle in enumerate(handles)]
        early = self._driver.early_edges(graph) if len(made) > 1 else {}
        return tuple(_with_early(made, [(places[a], places[b], port) for (a, b), port in early.items()]))

    def _node(self, index: int, handle: int, after: list[int], depth: int) -> DeviceNode:
        maker = UNATTRIBUTED if depth else self._join(index)
        kind, note = NodeKind.OTHER, ""
        read = _Read("")
        try:
            kind = _KINDS.get(self._driver.kind(handle), NodeKind.OTHER)
            read = self._contents(kind, handle, depth, maker.names)
        except DriverError as error:
            note = str(error)
        return DeviceNode(
            index, kind, read.name or str(kind), read.grid, read.block, read.words, read.reads, read.writes,
            maker.launch, maker.stack, tuple(sorted(after)), read.inner, read.note or note, maker.learnt_from,
        )  # fmt: skip

    def _contents(self, kind: NodeKind, handle: int, depth: int, names: Mapping[int, str]) -> _Read:
        if kind is NodeKind.KERNEL:
            return self._kernel(handle, names)
        if kind is NodeKind.MEMCPY:
            return self._memcpy(handle)
        if kind is NodeKind.MEMSET:
            return self._memset(handle)
        if kind is NodeKind.CHILD and depth < _DEPTH:
            nodes = self.read(self._driver.child(handle), depth + 1)
            return _Read(f"{len(nodes)} nodes", inner=nodes)
        if kind is NodeKind.CONDITIONAL and depth < _DEPTH:
            return self._conditional(handle, depth)
        unread = kind in (NodeKind.CHILD, NodeKind.CONDITIONAL, NodeKind.OTHER)
        return _Read("", note="its inside is not read" if unread else "")

    def _conditional(self, handle: int, depth: int) -> _Read:
        """The nodes of all its bodies, numbered consecutively."""
        try:
            condition, graphs = self._driver.bodies(handle)
            bodies = [self.read(graph, depth + 1) for graph in graphs]
        except DriverError as error:
            return _Read("", note=f"its inside is not read: {error}")
        inner, said = list[DeviceNode](), list[str]()
        for nodes in bodies:
            first = len(inner)
            inner += [_moved(node, first) for node in nodes]
            said.append(f"{first} to {len(inner) - 1}" if len(nodes) > 1 else str(first) if nodes else "none")
        kind = _CONDITIONS.get(condition, "condition")
        return _Read(f"{kind}: {' or '.join(f'nodes {part}' for part in said)}", inner=tuple(inner))

    def _kernel(self, handle: int, names: Mapping[int, str]) -> _Read:
        held = KernelParameters()
        self._driver.call("cuGraphKernelNodeGetParams_v2", ctypes.c_void_p(handle), ctypes.byref(held))
        grid, block = (held.gx, held.gy, held.gz), (held.bx, held.by, held.bz)
        name, note = "a kernel without a name", ""
        words: tuple[Word, ...] = ()
        try:
            name, layout = self._lookup(int(held.func or 0), int(held.kern or 0))
            words = tuple(self._words(arguments_of(held, layout), names))
        except DriverError as error:
            note = f"{BLIND}: {error}"
        return _Read(name, grid, block, words, note=note)

    def _lookup(self, function: int, kernel: int) -> tuple[str, tuple[tuple[int, int], ...]]:
        handle = function or kernel
        known = self._kernels.get(handle)
        if known is None:
            name = demangled(self._driver.name_of(handle, not function)) or "a kernel without a name"
            known = self._kernels[handle] = name, self._driver.layout_of(handle, not function)
        return known

    def _words(self, arguments: Iterable[tuple[int, int, bytes]], names: Mapping[int, str]) -> Iterable[Word]:
        allocations, certain = self._allocations, self._certain
        for argument, start, data in arguments:
            alone = len(data) == 8
            for place, value in enumerate(struct.unpack_from(f"<{len(data) // 8}Q", data)):
                if value in allocations:
                    sure = alone or value in names or certain.get(value)
                    if sure is None:
                        sure = certain[value] = self._begins(value)
                    sureness = Sureness.HIGH if sure else Sureness.MEDIUM
                    yield Word(argument, start + 8 * place, names.get(value, ""), value, sureness)

    def _memset(self, handle: int) -> _Read:
        held = MemsetParameters()
        self._driver.call("cuGraphMemsetNodeGetParams", ctypes.c_void_p(handle), ctypes.byref(held))
        start, nbytes = int(held.dst or 0), held.width * held.element
        if held.height > 1:
            nbytes += (held.height - 1) * held.pitch
        where = ByteRange(start, start + nbytes)
        return _Read(f"memset to {held.value:#x}", words=(Word(0, 0, "dst", start),), writes=(where,))

    def _memcpy(self, handle: int) -> _Read:
        held = MemcpyParameters()
        self._driver.call("cuGraphMemcpyNodeGetParams", ctypes.c_void_p(handle), ctypes.byref(held))
        source, target = side_of(held, "src"), side_of(held, "dst")
        words, ways = [], []
        for place, (name, (where, on_device)) in enumerate((("dst", target), ("src", source))):
            if where is not None and on_device:
                words.append(Word(place, 0, name, where.start))
            ways.append("device" if on_device else "host" if where is not None else "array")
        return _Read(
            f"memcpy {ways[1]} to {ways[0]}, {held.width * max(1, held.height) * max(1, held.depth):,} bytes",
            words=tuple(words),
            reads=(source[0],) if source[0] is not None else (),
            writes=(target[0],) if target[0] is not None else (),
        )


def _with_early(nodes: list[DeviceNode], early: Iterable[tuple[int, int, int]]) -> list[DeviceNode]:
    """Nodes with the dependencies whose end they do not wait for; each a node, one that depends on it, and the port."""
    for first, second, port in sorted(early):
        node = nodes[second]
        if port == PROGRAMMATIC:
            nodes[second] = replace(node, triggered_by=(*node.triggered_by, first))
        else:
            nodes[second] = replace(node, begun_after=(*node.begun_after, first))
    return nodes


def _moved(node: DeviceNode, by: int) -> DeviceNode:
    after, triggered, begun = (
        tuple(index + by for index in indices) for indices in (node.after, node.triggered_by, node.begun_after)
    )
    return replace(node, index=node.index + by, after=after, triggered_by=triggered, begun_after=begun)


def arguments_of(held: KernelParameters, layout: tuple[tuple[int, int], ...]) -> Iterable[tuple[int, int, bytes]]:
    """Position, offset and bytes of each argument of at least 8 bytes, from either form of launch parameters.

    Raises
    ------
    DriverError
        When the node has parameters in neither form though its kernel takes some.
    """
    if held.parameters:
        values = ctypes.cast(held.parameters, ctypes.POINTER(ctypes.c_void_p))
        for place, (_, size) in enumerate(layout):
            if size >= 8 and values[place]:
                yield place, 0, ctypes.string_at(values[place], size)
    elif held.extra:
        packed = packed_arguments(held.extra)
        for place, (offset, size) in enumerate(layout):
            if size >= 8 and offset + size <= len(packed):
                yield place, 0, packed[offset : offset + size]
    elif layout:
        raise DriverError("it holds no parameters")


def packed_arguments(extra: int) -> bytes:
    """The buffer given by ``CU_LAUNCH_PARAM_BUFFER_POINTER``."""
    entries = ctypes.cast(extra, ctypes.POINTER(ctypes.c_void_p))
    start = size = place = 0
    while place < 16 and (entries[place] or _END) != _END:
        key, value = int(entries[place] or 0), int(entries[place + 1] or 0)
        if key == _BUFFER:
            start = value
        elif key == _SIZE and value:
            size = ctypes.cast(value, ctypes.POINTER(ctypes.c_size_t))[0]
        place += 2
    return ctypes.string_at(start, size) if start and size else b""


def side_of(held: MemcpyParameters, side: str) -> tuple[ByteRange | None, bool]:
    """One side of a copy: its range from first to last byte, and whether that is on a device; no range for an array."""
    kind = getattr(held, f"{side}_type")
    if kind == 3:
        return None, False
    start = int(getattr(held, f"{side}_host" if kind == 1 else f"{side}_device") or 0)
    pitch, height = getattr(held, f"{side}_pitch"), getattr(held, f"{side}_height")
    rows, layers = max(1, held.height), max(1, held.depth)
    start += getattr(held, f"{side}_x") + pitch * (getattr(held, f"{side}_y") + height * getattr(held, f"{side}_z"))
    nbytes = held.width + pitch * (rows - 1) + pitch * height * (layers - 1)
    return ByteRange(start, start + nbytes), kind != 1
