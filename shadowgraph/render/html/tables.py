"""Nodes, launches and processes as rows of HTML tables, cut to the size of a page with a count of the omitted rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from shadowgraph.common.kernel_names import brief
from shadowgraph.common.source_paths import short
from shadowgraph.common.words import plural
from shadowgraph.dumps.naming import BufferNames
from shadowgraph.dumps.node_memory import NodeMemory
from shadowgraph.dumps.reader import Dump
from shadowgraph.model.findings import Finding
from shadowgraph.model.graphs import Graph
from shadowgraph.render.text.last_check_text import last_check_of
from shadowgraph.render.text.nodes_text import after, blind, details, extent, marks, place, told_once
from shadowgraph.render.text.run_text import command
from shadowgraph.views.node_list import Given, ListedGraph, ListedNode, Named, listed
from shadowgraph.wrap.folder.process_record import ProcessRecord

_NAME = 140  # columns of a kernel's name
_DETAILS = 8  # lines on a node's arguments
_GRAPHS = 6  # graphs of a dump whose nodes are listed
_FIRST = 60  # first nodes of a graph, besides culprits and candidates
_NEAR = 6  # nodes on either side of a culprit or candidate
_BLAMED = 20  # most culprits and candidates
_LAUNCHES = 40
_LIVE = "print(shadowgraph.render.text.nodes_text.nodes_text(graph))"
_GIVEN = 4  # arguments of a launch


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node; or, with `skipped`, the number of nodes omitted here."""

    place: str = ""
    kind: str = ""
    name: str = ""
    extent: str = ""
    where: str = ""
    details: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class GraphTable:
    """A graph and its shown nodes; `all` is the command that shows all nodes."""

    title: str
    rows: tuple[NodeRow, ...]
    all: str
    unread: str = ""
    blind: tuple[str, ...] = ()
    blamed: bool = False


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """A recent launch."""

    time: str
    phase: str
    what: str
    node: str
    where: str
    given: str


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A process of a run."""

    pid: int
    born: str
    rank: str
    backend: str
    ended: str
    findings: str
    replays: str
    checked: str
    command: str
    events: tuple[str, ...]


def graph_tables(dump: Dump, book: BufferNames, file: str) -> tuple[tuple[GraphTable, ...], int]:
    """The graphs with findings and the most replayed ones; the number of other graphs."""
    found = (*dump.manifest.facts.findings, *dump.manifest.facts.notes)
    named = {finding.graph for finding in found}
    graphs = sorted(dump.graphs, key=lambda graph: (graph.name not in named, -graph.replays, graph.serial))
    chosen = graphs[:_GRAPHS]
    all = f"shadowgraph nodes {file}"
    tables = (graph_table(graph, book.at, found, all, NodeMemory(book, graph).at) for graph in chosen)
    return tuple(tables), len(graphs) - len(chosen)


def graph_table(
    graph: Graph, named: Named, findings: Sequence[Finding] = (), all: str = "", given: Given | None = None
) -> GraphTable:
    """A graph's first nodes, and the nodes named in findings with their neighbours."""
    return listed_table(listed(graph, named, findings, given=given), all)


def listed_table(made: ListedGraph, all: str = "") -> GraphTable:
    """The table of a node list."""
    return GraphTable(
        title=f"{made.name}: {plural(made.total, 'node')}, {plural(made.replays, 'replay')}",
        rows=tuple(_rows(made)),
        all=all or _LIVE,
        unread=made.unread,
        blind=tuple(blind(made)),
        blamed=any(node.culprit_of for node in made.nodes),
    )


def _rows(graph: ListedGraph) -> Iterator[NodeRow]:
    nodes = list(told_once(graph))
    count = len(nodes)
    blamed = [at for at, node in enumerate(nodes) if node.culprit_of][:_BLAMED]
    wanted = set(range(min(_FIRST, count)))
    wanted |= {at for each in blamed for at in range(each - _NEAR, each + _NEAR + 1) if 0 <= at < count}
    before = -1
    for at in sorted(wanted):
        if at > before + 1:
            yield NodeRow(skipped=at - before - 1)
        yield _row(nodes[at])
        before = at
    if graph.total > before + 1:
        yield NodeRow(skipped=graph.total - before - 1)


def _row(node: ListedNode) -> NodeRow:
    said = details(node)
    more = [f"... and {len(said) - _DETAILS:,} more"] if len(said) > _DETAILS else []
    return NodeRow(
        place=node.place,
        kind=str(node.kind),
        name=brief(node.name, _NAME),
        extent=extent(node),
        where="  ".join(filter(None, (place(node), after(node)))),
        details=(*said[:_DETAILS], *more),
        marks=tuple(mark.strip().removeprefix("<- ") for mark in marks(node)),
    )


def launch_rows(dump: Dump, book: BufferNames) -> tuple[tuple[LaunchRow, ...], int]:
    """The last launches, the latest first; the number of other launches in the journal."""
    manifest = dump.manifest
    names = {row.serial: row.name for row in manifest.graphs}
    memory = {graph.serial: NodeMemory(book, graph) for graph in dump.graphs}
    rows = []
    for row, launch in zip(manifest.launches[: -_LAUNCHES - 1 : -1], dump.launches[: -_LAUNCHES - 1 : -1], strict=True):
        node = f"{names.get(row.graph, f'graph#{row.graph}')} node {row.node}" if row.graph is not None else ""
        frame = launch.stack[0] if launch.stack else None
        known = memory.get(row.graph) if row.graph is not None else None
        at = partial(known.at, row.node) if known is not None and row.node is not None else book.at
        given = [f"{pointer.argument}: {_named(at, pointer.view.address)}" for pointer in launch.pointers[:_GIVEN]]
        more = [f"... and {len(launch.pointers) - _GIVEN:,} more"] if len(launch.pointers) > _GIVEN else []
        where = f"{short(frame.file)}:{frame.line}" if frame is not None else ""
        said = (brief(launch.name, _NAME), node, where, ", ".join((*given, *more)))
        rows.append(LaunchRow(clock(row.time), str(row.phase or ""), *said))
    return tuple(rows), len(manifest.launches) - len(rows)


def _named(named: Named, address: int) -> str:
    known = named(address)
    if known is None:
        return f"{address:#x}"
    return known[0] if not known[1] else f"{known[0]} + {known[1]:,}"


def clock(seconds: float) -> str:
    """A time of day, UTC."""
    return f"{time.strftime('%H:%M:%S', time.gmtime(seconds))}.{int(seconds * 1000) % 1000:03d}"


def process_row(process: ProcessRecord) -> ProcessRow:
    """A process as in the run's report, with the counters of its last heartbeat."""
    pulse = process.pulse
    return ProcessRow(
        pid=process.pid,
        born=f"{process.born} of {process.ppid}",
        rank="" if process.rank is None else str(process.rank),
        backend=process.backend or "no tensor work",
        ended=process.ended,
        findings=process.found.said(),
        replays=f"{pulse.replays:,}" if pulse is not None else "",
        checked=f"{pulse.checked:,}" if pulse is not None else "",
        command=command(process),
        events=(*process.events, *last_check_of(process)),
    )
