"""Draw a dump: its memory, who shares bytes, what nodes write, bytes, rows of inputs; as lines, into a
picture, or into a page to zoom into."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING

from shadowgraph.commands.opening import (
    add_source,
    find_finding,
    fitting_dumps,
    graph_of,
    latest_dumps,
    made_up,
    present,
    settle_source,
    sought,
)
from shadowgraph.common.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shadowgraph.dumps.reader import Dump
    from shadowgraph.model.graphs import Graph
    from shadowgraph.render.text.map_text import DumpedMap

HELP = "draw the memory of a dump"
KINDS = ("memory", "aliases", "writes", "bytes", "rows")
_LIMIT = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser, "only this one, and in a map of memory its neighbours by address")
    parser.add_argument(
        "--kind",
        choices=KINDS,
        default="memory",
        help="what lies where, who shares bytes, what each node of a graph writes, the bytes about a finding, or which "
        "rows of static inputs were refreshed (default: memory)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="a picture: the suffix png, svg or pdf says which kind")
    parser.add_argument(
        "--interactive",
        metavar="FILE",
        help="a page of memory to zoom, pan and hover over: one .html file that needs nothing else",
    )
    parser.add_argument("--finding", type=int, metavar="ID", help="only what this finding is about")
    parser.add_argument("--graph", metavar="NAME|N", help="only what this graph was given, allocated, writes or reads")
    parser.add_argument(
        "--limit", type=int, default=_LIMIT, metavar="N", help=f"rows of the picture at most (default: {_LIMIT})"
    )
    parser.add_argument(
        "--memory-viz",
        metavar="FILE",
        help="write a snapshot for pytorch.org/memory_viz instead",
    )


def run(args: argparse.Namespace) -> int:
    """Print the map, or write the picture and print its path."""
    from shadowgraph.commands.map_kinds import require_options
    from shadowgraph.commands.saved.reader import is_saved
    from shadowgraph.views.map_rows import MOST_ROWS

    settle_source(args, "map")
    if not 1 <= args.limit <= MOST_ROWS:
        raise UsageError(f"--limit must be from 1 to {MOST_ROWS}, not {args.limit}")
    if args.memory_viz is not None:
        return _snapshot(args)
    require_options(args.kind, args)
    drawing = args.output is not None or args.interactive is not None
    if drawing:
        _require_picture(args)
    if is_saved(args.path):
        return _present_memory(_saved_maps(args), args)
    with ExitStack() as opened:
        dumps = fitting_dumps(args.path, opened, args.pid, args.finding, args.buffer)
        if args.finding is not None:
            dumps = [find_finding(dumps, args.finding)[0]]
        if drawing:
            _require_one(dumps)
        return _memory(dumps, args) if args.kind == "memory" else _other(dumps, args)


def _memory(dumps: Sequence[Dump], args: argparse.Namespace) -> int:
    with made_up(args.path, "map"):
        maps = _maps(dumps, args.graph, _wanted(dumps, args))
    return _present_memory(maps, args)


def _present_memory(maps: list[DumpedMap], args: argparse.Namespace) -> int:
    from shadowgraph.render.text.map_text import MapReport

    if args.output is None and args.interactive is None:
        present(MapReport(maps, args.limit), args.json, args.path, "map")
        return 0
    with made_up(args.path, "map"):
        _save(maps[0], args)
    return 0


def _wanted(dumps: Sequence[Dump], args: argparse.Namespace) -> str | None:
    """The requested buffer; for a finding, its buffer's address."""
    if args.finding is None or args.buffer is not None:
        return args.buffer  # type: ignore[no-any-return]
    return hex(find_finding(dumps, args.finding)[1].buffer.address)


def _other(dumps: Sequence[Dump], args: argparse.Namespace) -> int:
    from shadowgraph.commands.map_kinds import kind_of, made, sources
    from shadowgraph.render.text.shown import said

    with made_up(args.path, "map"):
        kind = kind_of(args.kind)
        maps = made(kind, sources(dumps, args), args)
        report = kind.report(maps, args) if args.output is None else None
        if args.output is not None:
            dump, drawn = maps[0]
            title = f"{kind.title(drawn)} of process {dump.manifest.pid}"
            path = kind.save(drawn, args.output, limit=args.limit, title=title)
            print(said(f"wrote {path}").plain)
    if report is not None:
        present(report, args.json, args.path, "map")
    return 0


def _require_one(dumps: Sequence[Dump]) -> None:
    if len(dumps) > 1:
        known = ", ".join(str(dump.manifest.pid) for dump in dumps)
        raise UsageError(f"a picture is of one process, and there are dumps of {known}; name one with --pid")


def _snapshot(args: argparse.Namespace) -> int:
    """Write a memory snapshot."""
    from shadowgraph.render.plots.memory_viz import save_memory_viz
    from shadowgraph.render.text.shown import said

    others = ("output", "graph", "buffer", "finding")
    if args.json or args.kind != "memory" or any(getattr(args, name) is not None for name in others):
        raise UsageError("--memory-viz writes all of one process's memory: it goes without the options of a map")
    with ExitStack() as opened:
        dumps = latest_dumps(args.path, opened, args.pid)
        _require_one(dumps)
        with made_up(args.path, "snapshot"):
            path = save_memory_viz(dumps[0], args.memory_viz)
    print(said(f"wrote {path}").plain)
    return 0


def _saved_maps(args: argparse.Namespace) -> list[DumpedMap]:
    """The maps of a report; only --pid can select among them."""
    from shadowgraph.commands.opening import only_findings
    from shadowgraph.commands.saved.contents import maps_of
    from shadowgraph.commands.saved.reader import read_saved

    wanted = (args.graph, args.buffer, args.finding)
    if args.kind != "memory" or any(each is not None for each in wanted):
        raise UsageError("--kind, --graph, --buffer and --finding need a dump or a run folder, not JSON")
    saved = read_saved(args.path)
    with made_up(args.path, "map"):
        maps = [each for each in maps_of(saved) if args.pid in (None, each.pid)]
    if not maps or (len(maps) > 1 and (args.output or args.interactive)):
        raise UsageError(f"{saved.source} has {len(maps)} maps of processes; name one that it has with --pid")
    only_findings(saved)
    return maps


def _require_picture(args: argparse.Namespace) -> None:
    """Refuse requests that cannot be drawn, before a large dump is read."""
    from shadowgraph.render.plots.interactive import require_html
    from shadowgraph.render.plots.saving import format_of

    if args.output is not None:
        format_of(args.output)
    if args.interactive is not None:
        require_html(args.interactive)
        if args.kind != "memory":
            raise UsageError(f"--interactive draws memory, not {args.kind}: use -o for a picture of these")
    if args.json:
        option = "-o" if args.output is not None else "--interactive"
        raise UsageError(f"--json prints a document and {option} draws a picture: take one of them")


def _maps(dumps: Sequence[Dump], graph: str | None, buffer: str | None) -> list[DumpedMap]:
    from shadowgraph.dumps.naming import BufferNames
    from shadowgraph.render.text.map_text import DumpedMap
    from shadowgraph.views.dumped_map import dumped_map

    books = [BufferNames(dump) for dump in dumps]
    wanted = [None for _ in books] if buffer is None else sought(buffer, books)
    graphs = _graphs(dumps, graph)
    return [
        DumpedMap(dump.manifest.pid, str(dump.path), dumped_map(dump, book, model, buffers))
        for dump, book, model, buffers in zip(dumps, books, graphs, wanted, strict=True)
        if (graph is None or model is not None) and (buffer is None or buffers)
    ]


def _graphs(dumps: Sequence[Dump], wanted: str | None) -> list[Graph | None]:
    """The graph of each dump with a name, None for a dump without it.

    Raises
    ------
    UsageError
        When no dump has it.
    """
    if wanted is None:
        return [None for _ in dumps]
    found: list[Graph | None] = []
    refused: list[UsageError] = []
    for dump in dumps:
        try:
            found.append(graph_of(dump, wanted))
        except UsageError as error:
            found.append(None)
            refused.append(error)
    if len(refused) == len(dumps):
        raise refused[0]
    return found


def _save(drawn: DumpedMap, args: argparse.Namespace) -> None:
    from shadowgraph.render.text.shown import said

    title = f"Memory map of process {drawn.pid}"
    if args.interactive is not None:
        from shadowgraph.render.plots.interactive import interactive_map

        print(said(f"wrote {interactive_map(drawn.map, title=title).save(args.interactive)}").plain)
    if args.output is not None:
        from shadowgraph.render.plots.memory_map import save_memory_map

        print(said(f"wrote {save_memory_map(drawn.map, args.output, limit=args.limit, title=title)}").plain)
