"""Dataflow through a graph's nodes: whether values come back to some bytes, or are used as indices or offsets.

Computed from the arguments of launches, for the check of in-graph mutation, under the debugger's lock or, at a host
read, without it. A kernel's pointer of unknown access may be read and written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shadowgraph.graphs.dispatch.indexing import takes_indices
from shadowgraph.graphs.dispatch.schemas import PUTS
from shadowgraph.model.graphs import Access, Graph, Launch, LaunchKind, Node, Pointer
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.writes import extent

# Arguments of operators that are indices or offsets; `indexing` lists the operators that check them.
_OFFSETS = re.compile(
    r"(^|_)(ind(ex|ices)|offsets?|cu_?seq\w*|cum_seq\w*|seqused\w*|(block|page)_table|repeats)(_|$|\[)"
)
_INDEX = re.compile(r"(index|indices)(\[|$)")
_LOOKUPS = {"embedding", "embedding_bag", "_embedding_bag"}
# Operators that take an element from one of two operands, by a mask: the operands and the mask.
_SELECTIONS = {
    "where": ({"self", "other"}, "condition"), "masked_fill": ({"self"}, "mask"), "masked_fill_": ({"self"}, "mask"),
}  # fmt: skip
# Operators of which each element of the result is made from the same element of the operands, or looked up with it.
_ELEMENTWISE = {"_to_copy", "clone", "copy_", "add", "sub", "mul", "div", "neg", "floor_divide", "remainder"}
_LOOKED_UP = {"embedding", "index"}
# Operators that write in place and store the values that they are given.
_PUTS = PUTS | {"where"}


@dataclass(frozen=True, slots=True)
class Indexing:
    """A node that uses values as indices or offsets.

    Attributes
    ----------
    table
        The indexed tensor; None where it is not known, as for a kernel.
    lookup
        Whether the node is an embedding lookup: the values are tokens or positions, not places in memory.
    """

    node: Node
    table: TensorView | None
    lookup: bool


def advances(graph: Graph, where: RangeSet) -> bool:
    """Whether a graph's writes into some bytes are computed from their old values: lengths, positions, a token fed
    back."""
    for node, led in _flow(graph, where, lambda view: True):
        for pointer in node.launch.pointers:
            into = pointer.may_write and any(pointer.view.hull.overlaps(part) for part in where)
            if into and any(source is not pointer or reads_itself(node.launch, pointer) for source in led):
                return True
    return False


def reads_back(graph: Graph, where: ByteRange) -> bool:
    """Whether a graph reads bytes in a node that does not write them."""
    writers = {node.index for node in graph.writers(where)}
    return any(node.index not in writers for node in graph.readers(where))


def indexed_by(graph: Graph, where: RangeSet) -> Iterator[Indexing]:
    """Nodes that use the values of some bytes as indices or offsets, directly or after integer arithmetic."""
    for node, led in _flow(graph, where, lambda view: is_integer(view.dtype)):
        for pointer in led:
            if is_integer(pointer.view.dtype) and _is_index(node.launch, pointer):
                lookup = _operator(node.launch) in _LOOKUPS and pointer.argument != "offsets"
                yield Indexing(node, _table(node.launch), lookup)


def may_select(graph: Graph, where: RangeSet) -> bool:
    """Whether a graph may leave out values that are made from some bytes: a mask selects, or a kernel may."""
    return any(
        node.launch.kind is not LaunchKind.ATEN or _operator(node.launch) in _SELECTIONS
        for node, _ in _flow(graph, where, lambda view: True)
    )


def reaches_kernel(graph: Graph, where: RangeSet) -> bool:
    """Whether a kernel is given values that are made from some bytes; it may leave them out itself."""
    return any(node.launch.kind is not LaunchKind.ATEN for node, _ in _flow(graph, where, lambda view: True))


def masked(graph: Graph, where: RangeSet, outlasts: Callable[[ByteRange], bool]) -> bool:
    """Whether all values that are made from some bytes go, row by row, into operators that select by a mask made from
    something else. What the mask lets through is not known.

    Parameters
    ----------
    outlasts
        Whether bytes can be read once the graph has run.
    """
    stemming = where.copy()
    for node in graph.nodes:
        led = [p for p in node.launch.pointers if p.may_read and any(stemming.intersection(p.view.hull))]
        selected = bool(led) and _selects(node.launch, led)
        if led and not (_keeps_rows(node.launch, led) and (selected or _passes_on(node.launch, led))):
            return False
        for pointer in node.launch.pointers:
            if pointer.may_write and pointer.view.nbytes:
                if selected:
                    stemming.discard(pointer.view.hull)
                elif led and outlasts(pointer.view.hull):
                    return False
                else:
                    _carry(stemming, pointer, bool(led))
    return True


def _selects(launch: Launch, led: Sequence[Pointer]) -> bool:
    """Whether an operator selects from values, which are not its mask."""
    operands, mask = _SELECTIONS.get(_operator(launch), (set[str](), ""))
    return mask != "" and all(pointer.argument in operands for pointer in led)


def _passes_on(launch: Launch, led: Sequence[Pointer]) -> bool:
    operator = _operator(launch)
    looked_up = operator in _LOOKED_UP and all(_is_index(launch, pointer) for pointer in led)
    return operator in _ELEMENTWISE or looked_up


def _keeps_rows(launch: Launch, led: Sequence[Pointer]) -> bool:
    """Whether all that an operator writes begins with the dimensions of what it reads."""
    shapes = [pointer.view.shape for pointer in launch.pointers if pointer.may_write]
    return all(shape[: len(each.view.shape)] == each.view.shape for shape in shapes for each in led)


def is_integer(dtype: str) -> bool:
    """Whether a dtype, such as ``"int32"``, can hold indices."""
    return dtype.startswith(("int", "uint"))


def _flow(
    graph: Graph, where: RangeSet, through: Callable[[TensorView], bool]
) -> Iterator[tuple[Node, tuple[Pointer, ...]]]:
    """Nodes that read values derived from some bytes, with the pointers through which they do; `through` selects the
    views that pass values on."""
    stemming = where.copy()
    for node in graph.nodes:
        led = tuple(p for p in node.launch.pointers if p.may_read and stemming.overlaps(p.view.hull))
        if led:
            yield node, led
        for pointer in node.launch.pointers:
            if pointer.may_write and pointer.view.nbytes:
                _carry(stemming, pointer, bool(led) and through(pointer.view))


def _carry(stemming: RangeSet, pointer: Pointer, on: bool) -> None:
    if on:
        stemming.add(pointer.view.hull)
    elif pointer.access is Access.WRITE:
        ranges, gaps = extent(pointer.view)
        for part in ranges if not gaps else ():
            stemming.discard(part)


def reads_itself(launch: Launch, pointer: Pointer) -> bool:
    """Whether new values are known to be made from the old ones; a kernel need not read the memory that it may
    write."""
    return pointer.access is not Access.UNKNOWN and _operator(launch) not in _PUTS


def surely_reads(launch: Launch, pointer: Pointer) -> bool:
    """Whether an operator is known to read an argument. Of one that it writes the schema does not say: a library's
    operator may fill an output that it was given, which torch's own call ``out``."""
    if pointer.access is Access.READ_WRITE:
        return launch.name.startswith("aten.") and reads_itself(launch, pointer)
    return pointer.access is Access.READ


def _is_index(launch: Launch, pointer: Pointer) -> bool:
    if launch.kind is not LaunchKind.ATEN or not launch.name.startswith("aten."):
        return True  # a kernel's integers are taken for indices
    if takes_indices(launch.name):
        return _INDEX.match(pointer.argument) is not None
    return _OFFSETS.search(pointer.argument) is not None


def _table(launch: Launch) -> TensorView | None:
    named = {pointer.argument: pointer.view for pointer in launch.pointers}
    return named.get("self", named.get("weight")) if takes_indices(launch.name) else None


def _operator(launch: Launch) -> str:
    """``copy_`` of ``aten.copy_.default``."""
    parts = launch.name.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "aten" else ""
