"""The nodes of a graph, each with what it points into and who launched it, and filters on them. Pure data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from shadowgraph.model.device_nodes import BLIND, DeviceNode, NodeKind
from shadowgraph.model.findings import Argument, Culprit, Finding, Status
from shadowgraph.model.graphs import Graph
from shadowgraph.model.launches import Launch
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import Stack

# What memory at an address is called, and how many bytes from its start that address is; None where nobody tracks it.
Named = Callable[[int], tuple[str, int] | None]


class Part(msgspec.Struct, frozen=True):
    """Bytes that a copy or a set reads or writes; `buffer` is empty for memory that nobody tracks."""

    start: int
    nbytes: int
    buffer: str = ""
    at: int = 0


class Blamed(msgspec.Struct, frozen=True):
    """A finding that has a node for its culprit, or among its candidates."""

    finding: int
    code: str
    status: Status


class ListedNode(msgspec.Struct, frozen=True):
    """A node, ready to be listed.

    Attributes
    ----------
    place
        Its number; ``"12.3"`` for the node 3 of the child graph, or inside the conditional node, that is node 12.
    launch, operator
        Number and name of the launch that made it, where that was seen.
    file, line, stack
        Where it was launched, innermost first.
    after
        Its siblings that it waits for.
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


class Blind(msgspec.Struct, frozen=True):
    """How many nodes of a graph point nobody knows where, for one reason."""

    nodes: int
    reason: str


class ListedGraph(msgspec.Struct, frozen=True):
    """A graph and those of its nodes that are asked for, of `total` with those of its child graphs.

    Attributes
    ----------
    blind
        Of all its nodes, asked for or not, those whose arguments could not be read: no filter by buffer finds them.
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
    """Which nodes to list; every part that is set must hold.

    Attributes
    ----------
    kernel
        Part of the kernel's or the operator's name, in whatever case.
    file, line
        End of the path of a file in the node's stack, and a line of it.
    memory
        Ranges of which one is read, written or pointed into.
    """

    kernel: str = ""
    file: str = ""
    line: int | None = None
    kind: NodeKind | None = None
    memory: Sequence[ByteRange] | None = None

    def __call__(self, node: ListedNode) -> bool:
        return (
            self.kernel.casefold() in f"{node.name}\n{node.operator or ''}".casefold()
            and (self.kind is None or node.kind is self.kind)
            and (not self.file or self._launched(node))
            and (self.memory is None or self._points(node, self.memory))
        )

    def _launched(self, node: ListedNode) -> bool:
        return any(_is_end(self.file, f.file) and self.line in (None, f.line) for f in node.stack)

    @staticmethod
    def _points(node: ListedNode, memory: Sequence[ByteRange]) -> bool:
        parts = [ByteRange(part.start, part.start + part.nbytes) for part in (*node.reads, *node.writes)]
        return any(
            where.contains(argument.address) or (not where.nbytes and argument.address == where.start)
            for where in memory
            for argument in node.arguments
        ) or any(where.overlaps(part) for where in memory for part in parts)


def listed(
    graph: Graph,
    named: Named | None = None,
    findings: Sequence[Finding] = (),
    wanted: Wanted | None = None,
    pid: int | None = None,
    dump: str | None = None,
) -> ListedGraph:
    """The nodes of a graph, those of child graphs after the node that they are inside of.

    Parameters
    ----------
    named
        Names memory; without it addresses stay numbers.
    findings
        Whose culprits are marked.
    """
    blamed = _culprits(graph, findings)
    every = list(_nodes(graph, graph.device_nodes, named or _nameless, blamed))
    kept = tuple(node for node in every if wanted is None or wanted(node))
    blind = tuple(_blind(every))
    return ListedGraph(graph.name, graph.serial, graph.replays, len(every), kept, graph.unread, pid, dump, blind)


def _blind(nodes: Sequence[ListedNode]) -> Iterator[Blind]:
    """Nodes whose arguments could not be read, by reason; the most frequent first."""
    for reason, count in Counter(node.note for node in nodes if node.note.startswith(BLIND)).most_common():
        yield Blind(count, reason)


def _nameless(address: int) -> None:
    return None


def _nodes(
    graph: Graph,
    nodes: Sequence[DeviceNode],
    named: Named,
    blamed: Mapping[int, tuple[Blamed, ...]],
    outer: ListedNode | None = None,
) -> Iterator[ListedNode]:
    for node in nodes:
        made = _node(node, graph.launch_of(node), named, blamed.get(node.index, ()) if outer is None else (), outer)
        yield made
        yield from _nodes(graph, node.inner, named, {}, made)


def _node(
    node: DeviceNode, launch: Launch | None, named: Named, blamed: tuple[Blamed, ...], outer: ListedNode | None
) -> ListedNode:
    stack = launch.stack if launch is not None else node.stack
    if not stack and outer is not None:
        stack = outer.stack
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
        reads=tuple(Part(each.start, each.nbytes, *(named(each.start) or ("", 0))) for each in node.reads),
        writes=tuple(Part(each.start, each.nbytes, *(named(each.start) or ("", 0))) for each in node.writes),
        after=node.after,
        note=node.note,
        culprit_of=blamed,
    )


def _culprits(graph: Graph, findings: Sequence[Finding]) -> dict[int, tuple[Blamed, ...]]:
    """Findings by the device node that they blame."""
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
    """The device nodes that each launch of a graph became, where they were read."""
    made: dict[int, list[int]] = {}
    for node in graph.read_nodes or ():
        if node.launch is not None:
            made.setdefault(node.launch, []).append(node.index)
    return made


def nodes_of(graph: Graph, culprit: Culprit, made: Mapping[int, Sequence[int]]) -> Sequence[int]:
    """Device nodes that a culprit is. One that was seen in a launch alone is every node that this launch became."""
    if culprit.node is None:
        return ()
    if culprit.seen_in is not None or culprit.arguments or graph.read_nodes is None:
        return (culprit.node,)
    return made.get(culprit.node, ())


def _is_end(end: str, path: str) -> bool:
    """Whether a path ends with some of its whole parts: ``model.py``, ``srt/model.py``."""
    return path == end or path.replace("\\", "/").endswith("/" + end.replace("\\", "/").removeprefix("./").lstrip("/"))
