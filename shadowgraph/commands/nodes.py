"""List the nodes of captured graphs, from a dump or a run folder: kernel, line, and the buffers that it points into."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from shadowgraph.commands.opening import (
    add_source,
    made_up,
    note,
    opened_dump,
    present,
    require_process,
    run_dumps,
    settle_source,
)
from shadowgraph.common.errors import UsageError
from shadowgraph.common.suggestions import did_you_mean

if TYPE_CHECKING:
    from shadowgraph.dumps.naming import BufferNames
    from shadowgraph.dumps.reader import Dump
    from shadowgraph.model.graphs import Graph
    from shadowgraph.views.node_list import ListedGraph, Wanted

HELP = "list the nodes of captured graphs, by buffer, kernel or line"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser, "nodes that point into it")
    parser.add_argument("--graph", metavar="NAME|N", help="only this graph, by name or number")
    parser.add_argument(
        "--kernel", metavar="TEXT", default="", help="nodes with this in their kernel's or operator's name"
    )
    parser.add_argument("--line", metavar="FILE[:LINE]", default="", help="nodes launched from there, or from below it")
    parser.add_argument("--kind", metavar="KIND", help="kernel, memcpy, memset, host, child, alloc, ...")


def run(args: argparse.Namespace) -> int:
    """Print the nodes; no matching node is no error, an unknown graph or buffer is one."""
    from shadowgraph.render.text.nodes_text import NodesReport

    settle_source(args, "nodes")
    wanted = _wanted(args)
    with ExitStack() as opened:
        dumps = run_dumps(args.path, opened) if os.path.isdir(args.path) else [opened_dump(args.path, opened)]
        require_process((dump.manifest.pid for dump in dumps), args.pid, args.path)
        dumps = [dump for dump in dumps if args.pid in (None, dump.manifest.pid)]
        with made_up(args.path, "list"):
            report = NodesReport(list(_listed(dumps, args.graph, args.buffer, wanted)))
            names = _kernels(dumps) if args.kernel else set()
        present(report, args.json, args.path, "list")
    _suggest(args.kernel, names)
    return 0


def _kernels(dumps: Sequence[Dump]) -> set[str]:
    """The names of all kernels and operators."""
    graphs = [graph for dump in dumps for graph in dump.graphs]
    launched = {node.launch.name for graph in graphs for node in graph.nodes}
    return launched | {node.name for graph in graphs for node in graph.device_nodes}


def _suggest(kernel: str, names: set[str]) -> None:
    """Name, on standard error, the kernel that was likely meant, where none has the text in its name."""
    if kernel and not any(kernel.casefold() in name.casefold() for name in names):
        words = {word for name in names for word in re.split(r"[^\w]+", name) if word}
        near = did_you_mean(kernel, sorted(names | words))
        note(f"no kernel or operator has {kernel!r} in its name{near}")


def _wanted(args: argparse.Namespace) -> Wanted:
    """The filters that need no dump.

    Raises
    ------
    UsageError
        For an unknown kind, and a line without its file.
    """
    from shadowgraph.model.device_nodes import NodeKind
    from shadowgraph.views.node_list import Wanted

    kinds = {**{kind.name.lower(): kind for kind in NodeKind}, **{kind.value: kind for kind in NodeKind}}
    if args.kind is not None and args.kind not in kinds:
        near = did_you_mean(args.kind, kinds)
        known = ", ".join(kind.name.lower() for kind in NodeKind)
        raise UsageError(f"no kind {args.kind!r}{near}; kinds are: {known}")
    file, line = _line(args.line)
    return Wanted(kernel=args.kernel, file=file, line=line, kind=kinds.get(args.kind))


def _line(text: str) -> tuple[str, int | None]:
    """``FILE[:LINE]`` in its parts."""
    file, colon, line = text.rpartition(":")
    if not colon or not line.isdecimal():
        return text, None
    if not file:
        raise UsageError(f"--line needs a file before the number, not {text!r}")
    return file, int(line)


def _listed(dumps: Sequence[Dump], graph: str | None, buffer: str | None, wanted: Wanted) -> Iterator[ListedGraph]:
    """Each graph once, from the latest dump of its process."""
    from shadowgraph.dumps.naming import BufferNames, require_known
    from shadowgraph.dumps.node_memory import NodeMemory
    from shadowgraph.views.node_list import listed

    chosen = list(_graphs(dumps, graph))
    books = [BufferNames(dump) for dump in dumps]
    memory = [book.find(buffer) if buffer is not None else None for book in books]
    names = [_names(buffer, book) for book in books]
    if buffer is not None and not any(memory):
        require_known(buffer, books)
    for place, model in sorted(chosen, key=lambda pair: (dumps[pair[0]].manifest.pid, pair[1].serial)):
        dump = dumps[place]
        facts = dump.manifest.facts
        yield listed(
            model,
            books[place].at,
            (*facts.findings, *facts.notes),
            replace(wanted, memory=memory[place], names=names[place]),
            dump.manifest.pid,
            str(dump.path),
            NodeMemory(books[place], model).at,
        )


def _names(buffer: str | None, book: BufferNames) -> frozenset[str]:
    """The names of the buffers that a name means; none for an address, which every tensor there has."""
    from shadowgraph.dumps.naming import address_of

    if buffer is None or address_of(buffer) is not None:
        return frozenset()
    return frozenset(map(book.name, book.buffers(buffer)))


def _graphs(dumps: Sequence[Dump], wanted: str | None) -> Iterator[tuple[int, Graph]]:
    """Graphs with the index of their dump.

    Raises
    ------
    UsageError
        When no dump has the requested graph.
    """
    from shadowgraph.dumps.naming import nearest_of

    known: dict[tuple[int, int, str], tuple[int, Graph]] = {}
    for place, dump in enumerate(dumps):
        for graph in dump.graphs:
            known.setdefault((dump.manifest.pid, graph.serial, graph.name), (place, graph))
    fits = [pair for pair in known.values() if wanted in (None, pair[1].name, str(pair[1].serial))]
    if wanted is not None and not fits:
        near = nearest_of(wanted, [graph.name for _, graph in known.values()])
        raise UsageError(f"no graph is called {wanted!r}{near}")
    yield from fits
