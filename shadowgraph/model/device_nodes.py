"""The nodes of the executable graph, as pure data: what runs, with which arguments, in which order, from which line.

`Graph.nodes` are launches as the program made them. One launch may have become several nodes (an operator with two
kernels), or none, and a node may come from code that no dispatch mode sees; `DeviceNode.launch` joins the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from shadowgraph.model.launches import Access, LaunchKind, Pointer
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import Stack

BLIND = "arguments cannot be read"  # how the note begins of a kernel node of which nobody knows what it points into


class NodeKind(StrEnum):
    """What a node does, in CUDA's words."""

    KERNEL = "kernel"
    MEMCPY = "memcpy"
    MEMSET = "memset"
    HOST = "host"
    CHILD = "child graph"
    CONDITIONAL = "conditional"
    ALLOC = "mem_alloc"
    FREE = "mem_free"
    EVENT = "event"
    EMPTY = "empty"
    OTHER = "other"


class Sureness(StrEnum):
    """How sure it is that a word is a pointer."""

    HIGH = "high"  # a parameter of its own, or where a tensor begins that the launch was given
    MEDIUM = "medium"  # inside a larger structure
    LOW = "low"  # it only looks like one: it is where nothing begins, beside numbers


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a node's arguments that holds an address.

    Attributes
    ----------
    argument, offset
        Position of the parameter, and bytes from its start.
    name
        The parameter's name where it is known, else empty.
    address
        Its value.
    """

    argument: int
    offset: int
    name: str
    address: int
    sureness: Sureness = Sureness.HIGH


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """One node.

    Attributes
    ----------
    index
        Place in order of creation, which is a topological order of a capture.
    name
        A kernel's demangled name; for other kinds what is copied or set.
    grid, block
        Of a kernel.
    words
        Arguments that point into memory.
    reads, writes
        Exact ranges of copies and sets; empty for kernels.
    launch
        Index in `Graph.nodes` of the launch that made it, or None.
    stack
        Where no launch is known: the Python stack that made it, innermost first.
    after
        Nodes that it waits for directly, by index.
    inner
        Nodes of a child graph, or of all bodies of a conditional node, counted through.
    note
        What could not be read of it; empty when all was.
    """

    index: int
    kind: NodeKind
    name: str
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    words: tuple[Word, ...] = ()
    reads: tuple[ByteRange, ...] = ()
    writes: tuple[ByteRange, ...] = ()
    launch: int | None = None
    stack: Stack = ()
    after: tuple[int, ...] = ()
    inner: tuple[DeviceNode, ...] = ()
    note: str = ""


def node_of_launch(
    index: int, kind: LaunchKind, name: str, pointers: Sequence[Pointer], grid: tuple[int, ...] | None
) -> DeviceNode:
    """The node that a launch is by itself, after the one before it: how a host graph runs."""
    host = kind is LaunchKind.CALLABLE
    words = tuple(Word(place, 0, p.argument, p.view.start) for place, p in enumerate(pointers))
    return DeviceNode(
        index=index,
        kind=NodeKind.HOST if host else NodeKind.KERNEL,
        name=name,
        grid=grid,
        words=words,
        writes=tuple(p.view.hull for p in pointers if p.access is Access.WRITE) if host else (),
        launch=index,
        after=(index - 1,) if index else (),
    )
