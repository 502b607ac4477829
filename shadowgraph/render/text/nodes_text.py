"""Node lists of graphs as text and JSON: one line for a node in a pipe, wrapped to the width of a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from rich.text import Text

from shadowgraph.common.console import tame
from shadowgraph.common.kernel_names import brief
from shadowgraph.common.source_paths import short
from shadowgraph.common.words import plural
from shadowgraph.model.device_nodes import NodeKind
from shadowgraph.model.findings import Argument, Status
from shadowgraph.model.graphs import Graph
from shadowgraph.render.text.culprit_text import pointed_at
from shadowgraph.render.text.shown import Reporter
from shadowgraph.views.node_list import ListedGraph, ListedNode, Named, Part, Wanted, listed

SCHEMA = "shadowgraph.nodes/1"
_DETAILS = 8  # lines under a node on a terminal
_EDGES = 8  # listed dependencies of a node
_NAME = 24  # least columns for a kernel's name
_INDENT = " " * 17
_CULPRIT = {
    Status.CONFIRMED: "culprit of",
    Status.CANDIDATE: "candidate for",
    Status.NOT_REPRODUCED: "not seen again, candidate for",
    Status.UNKNOWN: "named in",
}


class NodesReport(Reporter):
    """Nodes of some graphs, ready to be shown. Holds data only."""

    schema = SCHEMA

    def __init__(self, graphs: Sequence[ListedGraph]) -> None:
        self.graphs = tuple(graphs)

    def document(self) -> dict[str, Any]:
        return {"graphs": self.graphs}

    def lines(self, width: int | None = None) -> Iterator[Text]:
        """Every line; `width` as in `nodes_text`."""
        for graph in self.graphs:
            yield from graph_lines(graph, width)
        shown, total = sum(len(graph.nodes) for graph in self.graphs), sum(graph.total for graph in self.graphs)
        yield Text(f"{shown:,} of {plural(total, 'node')} in {plural(len(self.graphs), 'graph')}")


def nodes_text(graph: Graph, named: Named | None = None, wanted: Wanted | None = None, width: int | None = None) -> str:
    """The nodes of a live graph, for a REPL or a notebook.

    Parameters
    ----------
    graph
        The model, from `Debugger.graph` or a dump.
    named
        Maps an address to the name of its buffer and the offset in bytes from the buffer's start, or to None.
    wanted
        Which nodes; all unless given.
    width
        Columns to wrap to. None: a node a line, names whole.
    """
    return "".join(f"{line.plain}\n" for line in graph_lines(listed(graph, named, wanted=wanted), width))


def graph_lines(graph: ListedGraph, width: int | None = None) -> Iterator[Text]:
    """A graph's header, then its nodes; control characters are neutralised."""
    of = f" of process {graph.pid}" if graph.pid is not None else ""
    fewer = f", {len(graph.nodes):,} shown" if len(graph.nodes) != graph.total else ""
    yield Text(
        tame(f"{graph.name}{of}: {plural(graph.total, 'node')}{fewer}, {plural(graph.replays, 'replay')}"), style="bold"
    )
    if graph.unread:
        yield Text(tame(f"  its device nodes are not known: {graph.unread}"), style="yellow")
    for line in blind(graph):
        yield Text(tame(f"  {line}"), style="yellow")
    for node in told_once(graph):
        yield from _whole(node) if width is None else _folded(node, width)


def blind(graph: ListedGraph) -> list[str]:
    """Notes on nodes with unreadable arguments, which no filter by buffer finds."""
    return [f"{plural(each.nodes, 'node')} that no buffer leads to: {each.reason}" for each in graph.blind]


def told_once(graph: ListedGraph) -> Iterator[ListedNode]:
    """The nodes, without notes that `blind` gives once for all of them."""
    told = {each.reason for each in graph.blind}
    for node in graph.nodes:
        yield msgspec.structs.replace(node, note="") if node.note in told else node


def _whole(node: ListedNode) -> Iterator[Text]:
    """A node in one line."""
    where = extent(node), place(node), after(node)
    parts = [f"{node.place:>6}", f"{node.kind:<11}", node.name, *where, "; ".join(details(node))]
    line = Text(tame("  ".join(filter(None, parts))))
    yield _marked(line, node)


def _folded(node: ListedNode, width: int) -> Iterator[Text]:
    """A node in lines that fit: the name shortened, its arguments below."""
    head = f"{node.place:>4} {node.kind:<12}"
    tail = "  ".join(filter(None, (extent(node), place(node), after(node))))
    room = width - len(head) - sum(map(len, marks(node)))
    beside = room - len(tail) - 2 if tail else room
    if beside >= min(len(node.name), _NAME):
        yield _marked(Text(tame(f"{head}{brief(node.name, beside)}  {tail}".rstrip())), node)
    else:
        yield _marked(Text(tame(f"{head}{brief(node.name, max(room, _NAME))}")), node)
        yield Text(tame(f"{_INDENT}{tail}"))
    said = details(node)
    for detail in said[:_DETAILS]:
        yield Text(tame(f"{_INDENT}{detail}"), style="dim")
    if len(said) > _DETAILS:
        yield Text(f"{_INDENT}... and {len(said) - _DETAILS:,} more", style="dim")


def marks(node: ListedNode) -> list[str]:
    """Findings with the node as their culprit or among their candidates."""
    return [f"  <- {_CULPRIT[each.status]} {each.code} #{each.finding}" for each in node.culprit_of]


def _marked(line: Text, node: ListedNode) -> Text:
    for mark in marks(node):
        line.append(tame(mark), style="bold red")
    return line


def extent(node: ListedNode) -> str:
    """Grid and block, where known."""
    named = (("grid", node.grid), ("block", node.block))
    return " ".join(f"{name} {'x'.join(map(str, extent))}" for name, extent in named if extent)


def place(node: ListedNode) -> str:
    """Launch site and operator of a node."""
    where = f"{short(node.file)}:{node.line}" if node.file is not None else ""
    by = node.operator if node.operator is not None and node.operator != node.name else ""
    return f"{where} ({by})" if where and by else where or by


def after(node: ListedNode) -> str:
    """``after 3, 5``; empty where a node depends only on the sibling listed before it."""
    outer, _, number = node.place.rpartition(".")
    own = int(number)
    if node.after == ((own - 1,) if own else ()):
        return ""
    prefix = f"{outer}." if outer else ""
    names = [f"{prefix}{index}" for index in node.after[:_EDGES]]
    more = f" and {len(node.after) - _EDGES:,} more" if len(node.after) > _EDGES else ""
    return f"after {', '.join(names)}{more}" if names else "after no other"


def details(node: ListedNode) -> list[str]:
    """Pointer arguments, reads and writes of a node; words that point to untracked memory are counted."""
    known = [argument for argument in node.arguments if argument.buffer]
    exact = node.kind in (NodeKind.MEMCPY, NodeKind.MEMSET)  # the addresses of a copy or memset are in its ranges
    said = [] if exact else [f"{_argument(each)} -> {pointed_at(each)}" for each in known]
    said += [f"reads {_bytes(part)}" for part in node.reads]
    said += [f"writes {_bytes(part)}" for part in node.writes]
    others = 0 if exact else len(node.arguments) - len(known)
    if others:
        said.append(f"{plural(others, 'word')} to memory that is not tracked")
    if node.learnt_from:
        said.append(f"line as in {node.learnt_from}")
    if node.note:
        said.append(node.note)
    return said


def _argument(argument: Argument) -> str:
    """``out``; ``argument 2``; ``argument 2 + 16`` for a word inside a structure."""
    place = argument.name or f"argument {argument.argument}"
    return f"{place} + {argument.offset}" if argument.offset else place


def _bytes(part: Part) -> str:
    where = f"{part.buffer} + {part.at:,}" if part.buffer else f"{part.start:#x}, not tracked"
    return f"{plural(part.nbytes, 'byte')} at {where}"
