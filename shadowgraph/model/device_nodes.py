"""Nodes of an executable CUDA graph, as pure data: kind, arguments, dependencies, source line.

`Graph.nodes` are the program's launches. One launch may become several nodes (an operator with two kernels) or none,
and a node may come from code that no dispatch mode sees; `DeviceNode.launch` joins the two. No torch, no lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from shadowgraph.model.launches import Access, LaunchKind, Pointer
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.saved_fields import Absent, Place, Sparse, Text
from shadowgraph.model.stacks import Stack

BLIND = "arguments cannot be read"  # prefix of the note on a kernel node whose pointers are unknown


class NodeKind(StrEnum):
    """The type of a node, in CUDA's terms."""

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
    """The confidence that a word is a pointer."""

    HIGH = "high"  # a parameter by itself, or the start of a tensor argument of the launch
    MEDIUM = "medium"  # inside a larger structure
    LOW = "low"  # only the value fits: no tensor begins there, and its neighbours are numbers


class Word(msgspec.Struct, frozen=True, gc=False):
    """A word in a node's arguments that holds an address.

    Attributes
    ----------
    argument, offset
        Position of the parameter, and bytes from its start.
    name
        The parameter's name where known, else empty.
    address
        Its value.
    """

    argument: int
    offset: int
    name: Text
    address: int
    sureness: Sureness = Sureness.HIGH


class DeviceNode(msgspec.Struct, frozen=True, gc=False):
    """One node of an executable graph.

    Attributes
    ----------
    index
        Position in order of creation, which is a topological order of a capture.
    name
        A kernel's demangled name; for other kinds a description of the copy or set.
    grid, block
        Dimensions of a kernel's grid and block.
    words
        Pointer arguments.
    reads, writes
        Exact ranges of memcpy and memset nodes; empty for kernels.
    launch
        Index in `Graph.nodes` of the launch that made it, or None.
    stack
        Where no launch is known: the Python stack that created it, innermost first.
    learnt_from
        The graph whose capture `stack` was seen in; empty where that was this graph's own.
    after
        Direct dependencies, by index.
    triggered_by, begun_after
        Those of `after` whose end it does not wait for by itself (programmatic dependent launch): kernels that let it
        begin by a trigger in their code, and kernels whose blocks must all have begun.
    inner
        Nodes of a child graph, or of all bodies of a conditional node, numbered consecutively.
    note
        The unreadable parts of the node; empty when all was read.
    """

    index: Place
    kind: NodeKind
    name: Text
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    words: tuple[Word, ...] = ()
    reads: tuple[ByteRange, ...] = ()
    writes: tuple[ByteRange, ...] = ()
    launch: int | None = None
    stack: Sparse[Stack] = ()
    after: tuple[int, ...] = ()
    inner: tuple[DeviceNode, ...] = ()
    note: Sparse[Text] = ""
    learnt_from: Sparse[Text] = ""
    triggered_by: Absent[tuple[int, ...]] = ()
    begun_after: Absent[tuple[int, ...]] = ()


def node_of_launch(
    index: int, kind: LaunchKind, name: str, pointers: Sequence[Pointer], grid: tuple[int, ...] | None
) -> DeviceNode:
    """The node of a launch, dependent on the previous launch: the way a host graph runs."""
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
