"""Node list of a graph: each node with its launch site and the buffers its arguments point into, and filters on nodes.
Pure data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from shadowgraph.model.device_nodes import BLIND, DeviceNode, NodeKind
from shadowgraph.model.findings import Argument, Culprit, Finding, Status
from shadowgraph.model.graphs import Graph
from shadowgraph.model.launches import Launch
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import Stack

# The name of the memory at an address, and the address's offset in bytes from its start; None for untracked memory.
Named = Callable[[int], tuple[str, int] | None]
# The same for the memory that a launch of the graph, by its number, was given.
Given = Callable[[int, int], tuple[str, int] | None]


class Part(msgspec.Struct, frozen=True):
    """Bytes that a copy or a memset reads or writes; `buffer` is empty for untracked memory."""

    start: int
    nbytes: int
    buffer: str = ""
    at: int = 0


class Blamed(msgspec.Struct, frozen=True):
    """A finding with a node as its culprit or among its candidates."""

    finding: int
    code: str
    status: Status


class ListedNode(msgspec.Struct, frozen=True):
    """A node, ready to be listed.

    Attributes
    ----------
    place
        Its number; ``"12.3"`` for node 3 inside of the child graph or conditional node 12.
    launch, operator
        Number and name of the launch that made it, where the launch was recorded.
    file, line, stack
        Its launch site, innermost frame first.
    learnt_from
        The graph in whose capture the launch site was seen, where it was not this one's own.
    after
        Numbers of the sibling nodes it depends on.
    """

    place: str
    kind: NodeKind
    name: str
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    launch: int | None
    operator: str | None
    file: str | None
    line: int | None
    stack: Stack
    source: str | None
    arguments: tuple[Argument, ...]
    reads: tuple[Part, ...]
    writes: tuple[Part, ...]
    after: tuple[int, ...]
    note: str = ""
    culprit_of: tuple[Blamed, ...] = ()
    learnt_from: str = ""


class Blind(msgspec.Struct, frozen=True):
    """Number of nodes of a graph whose pointers are unknown, for one reason."""

    nodes: int
    reason: str


class ListedGraph(msgspec.Struct, frozen=True):
    """A graph and its matching nodes, out of `total` nodes with child graphs included.

    Attributes
    ----------
    blind
        All nodes with unreadable arguments, matching or not: no filter by buffer finds them.
    """

    name: str
    serial: int
    replays: int
    total: int
    nodes: tuple[ListedNode, ...]
    unread: str = ""
    pid: int | None = None
    dump: str | None = None
    blind: tuple[Blind, ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter on nodes; a node must match every part that is set.

    Attributes
    ----------
    kernel
        Part of the kernel's or the operator's name, case ignored.
    file, line
        End of the path of a file in the node's stack, and a line of it.
    memory
        Ranges; the node reads, writes or points into at least one of them.
    names
        The names of the buffers in these ranges, where other buffers had the same memory in turn; empty for all.
    """

    kernel: str = ""
    file: str = ""
    line: int | None = None
    kind: NodeKind | None = None
    memory: Sequence[ByteRange] | None = None
    names: frozenset[str] = frozenset()

    def __call__(self, node: ListedNode) -> bool:
        return (
            self.kernel.casefold() in f"{node.name}\n{node.operator or ''}".casefold()
            and (self.kind is None or node.kind is self.kind)
            and (not self.file or self._launched(node))
            and (self.memory is None or self._points(node, self.memory))
        )

    def _launched(self, node: ListedNode) -> bool:
        return any(_is_end(self.file, f.file) and self.line in (None, f.line) for f in node.stack)

    def _points(self, node: ListedNode, memory: Sequence[ByteRange]) -> bool:
        return any(
            (where.contains(argument.address) or (not where.nbytes and argument.address == where.start))
            and self._names(argument.buffer)
            for where in memory
            for argument in node.arguments
        ) or any(
            where.overlaps(ByteRange(part.start, part.start + part.nbytes))
            and (self._names(part.buffer) or not where.contains(part.start))
            for where in memory
            for part in (*node.reads, *node.writes)
        )

    def _names(self, name: str) -> bool:
        return not self.names or not name or name in self.names


def listed(
    graph: Graph,
    named: Named | None = None,
    findings: Sequence[Finding] = (),
    wanted: Wanted | None = None,
    pid: int | None = None,
    dump: str | None = None,
    given: Given | None = None,
) -> ListedGraph:
    """The nodes of a graph, each child graph's nodes after their parent node.

    Parameters
    ----------
    named
        Names memory; without it addresses stay numbers.
    findings
        Findings whose culprits are marked.
    given
        Names the memory of nodes whose launch is known, as it was at their capture; by default `named` does.
    """
    blamed = _culprits(graph, findings)
    every = list(_nodes(graph, graph.device_nodes, named or _nameless, blamed, given))
    kept = tuple(node for node in every if wanted is None or wanted(node))
    blind = tuple(_blind(every))
    return ListedGraph(graph.name, graph.serial, graph.replays, len(every), kept, graph.unread, pid, dump, blind)


def _blind(nodes: Sequence[ListedNode]) -> Iterator[Blind]:
    """Nodes with unreadable arguments, by reason; the most frequent first."""
    for reason, count in Counter(node.note for node in nodes if node.note.startswith(BLIND)).most_common():
        yield Blind(count, reason)


def _nameless(address: int) -> None:
    return None


def _nodes(
    graph: Graph,
    nodes: Sequence[DeviceNode],
    named: Named,
    blamed: Mapping[int, tuple[Blamed, ...]],
    given: Given | None,
    outer: ListedNode | None = None,
) -> Iterator[ListedNode]:
    for node in nodes:
        here = partial(given, node.launch) if given is not None and node.launch is not None else named
        made = _node(node, graph.launch_of(node), here, blamed.get(node.index, ()) if outer is None else (), outer)
        yield made
        yield from _nodes(graph, node.inner, named, {}, given, made)


def _node(
    node: DeviceNode, launch: Launch | None, named: Named, blamed: tuple[Blamed, ...], outer: ListedNode | None
) -> ListedNode:
    stack = _stack(node, launch, outer)
    return ListedNode(
        place=str(node.index) if outer is None else f"{outer.place}.{node.index}",
        kind=node.kind,
        name=node.name,
        grid=node.grid,
        block=node.block,
        launch=node.launch,
        operator=launch.name if launch is not None else None,
        file=stack[0].file if stack else None,
        line=stack[0].line if stack else None,
        stack=stack,
        source=launch.source if launch is not None else None,
        arguments=tuple(
            Argument(w.argument, w.offset, w.name, w.address, *(named(w.address) or ("", 0)), str(w.sureness))
            for w in node.words
        ),
        reads=_parts(node.reads, named),
        writes=_parts(node.writes, named),
        after=node.after,
        note=node.note,
        culprit_of=blamed,
        learnt_from=launch.learnt_from if launch is not None else node.learnt_from,
    )


def _stack(node: DeviceNode, launch: Launch | None, outer: ListedNode | None) -> Stack:
    """The launch's own stack, else the outer node's."""
    stack = launch.stack if launch is not None else node.stack
    return outer.stack if not stack and outer is not None else stack


def _parts(spans: Iterable[ByteRange], named: Named) -> tuple[Part, ...]:
    return tuple(Part(each.start, each.nbytes, *(named(each.start) or ("", 0))) for each in spans)


def _culprits(graph: Graph, findings: Sequence[Finding]) -> dict[int, tuple[Blamed, ...]]:
    """Findings by the device node that is their culprit or candidate."""
    found: dict[int, list[Blamed]] = {}
    made = nodes_by_launch(graph)
    for finding in findings:
        if finding.graph == graph.name:
            for culprit in (finding.culprit, *finding.candidates):
                said = Blamed(finding.id, finding.code, culprit.status)
                for index in nodes_of(graph, culprit, made):
                    found.setdefault(index, []).append(said)
    return {index: tuple(blamed) for index, blamed in found.items()}


def nodes_by_launch(graph: Graph) -> dict[int, list[int]]:
    """The device nodes of each launch of a graph, where the nodes were read."""
    made: dict[int, list[int]] = {}
    for node in graph.read_nodes or ():
        if node.launch is not None:
            made.setdefault(node.launch, []).append(node.index)
    return made


def nodes_of(graph: Graph, culprit: Culprit, made: Mapping[int, Sequence[int]]) -> Sequence[int]:
    """The device nodes of a culprit. A culprit known only as a launch stands for every node of that launch."""
    if culprit.node is None:
        return ()
    if culprit.seen_in is not None or culprit.arguments or graph.read_nodes is None:
        return (culprit.node,)
    return made.get(culprit.node, ())


def _is_end(end: str, path: str) -> bool:
    """Whether a path ends with the given whole components: ``model.py``, ``srt/model.py``."""
    return path == end or path.replace("\\", "/").endswith("/" + end.replace("\\", "/").removeprefix("./").lstrip("/"))
