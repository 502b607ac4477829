"""Builds the culprit of a finding from a device node that was seen to change bytes: line, kernel, and pointer
arguments. Takes no lock; pure data but for the name look-up."""

from __future__ import annotations

from collections.abc import Iterator

from shadowgraph.model.buffers import Ledger
from shadowgraph.model.device_nodes import DeviceNode
from shadowgraph.model.findings import Argument, Culprit, Status
from shadowgraph.model.graphs import Graph
from shadowgraph.model.probes import Search
from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking.aliases import NameBook

NEAR = 1 << 20  # most bytes between an argument and damage that it may have led to


def node_at(graph: Graph, index: int) -> DeviceNode | None:
    """The device node with an index."""
    nodes = graph.device_nodes
    if index < len(nodes) and nodes[index].index == index:
        return nodes[index]
    return next((node for node in nodes if node.index == index), None)


def culprit_of_node(
    graph: Graph,
    index: int,
    replay: int,
    home: ByteRange,
    damage: ByteRange,
    ledger: Ledger,
    names: NameBook,
    search: Search | None = None,
) -> Culprit:
    """A node that a probed replay showed to have changed bytes.

    Parameters
    ----------
    replay
        The replay that was probed.
    home, damage
        The damaged buffer, and the bytes that changed.
    search
        How the node was searched for, where nodes were not compared one by one.
    """
    node = node_at(graph, index)
    if node is None:
        return Culprit(Status.CONFIRMED, name=f"node {index}", node=index, seen_in=replay, search=search)
    launch = graph.launch_of(node)
    known = launch if launch is not None else node
    name, stack = known.name, known.stack
    grid = node.grid if node.grid is not None or launch is None else launch.grid
    arguments = tuple(_arguments(node, ledger, names))
    return Culprit(
        status=Status.CONFIRMED,
        kind=str(known.kind),
        name=name,
        node=index,
        file=stack[0].file if stack else None,
        line=stack[0].line if stack else None,
        stack=stack,
        source=launch.source if launch is not None else None,
        grid=grid,
        block=node.block,
        kernel=node.name if node.name != name else None,
        arguments=arguments,
        led_by=leading(arguments, home, damage),
        seen_in=replay,
        search=search,
        learnt_from=known.learnt_from or None,
    )


def leading(arguments: tuple[Argument, ...], home: ByteRange, damage: ByteRange) -> Argument | None:
    """The argument that leads to damage: one into the damaged buffer, else the nearest one within `NEAR` bytes.

    A word that only looks like a pointer counts where there is no other.
    """

    def far(argument: Argument) -> int:
        return max(damage.start - argument.address, argument.address - (damage.stop - 1), 0)

    def rank(argument: Argument) -> tuple[bool, bool, int]:
        return argument.sureness == "low", not home.contains(argument.address), far(argument)

    close = [one for one in arguments if home.contains(one.address) or far(one) <= NEAR]
    return min(close, key=rank, default=None)


def _arguments(node: DeviceNode, ledger: Ledger, names: NameBook) -> Iterator[Argument]:
    """Targets of a node's arguments; of copies and sets, the ranges read and written."""
    words = [(w.argument, w.offset, w.name, w.address, str(w.sureness)) for w in node.words]
    if not words:
        words += [(place, 0, "to", where.start, "high") for place, where in enumerate(node.writes)]
        words += [(len(words) + place, 0, "from", where.start, "high") for place, where in enumerate(node.reads)]
    for argument, offset, name, address, sureness in words:
        buffer = ledger.owner(address, address + 1)
        known = names.name_of(buffer)[0] if buffer is not None else ""
        at = address - buffer.start if buffer is not None else 0
        yield Argument(argument, offset, name, address, known, at, sureness)
