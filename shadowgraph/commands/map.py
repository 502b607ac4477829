"""Draw the memory of a dump: buffers by address, guards, other owners, broken bytes; as lines, into a picture, or into
a page to zoom into."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING

from shadowgraph.commands.opening import add_shared, graph_of, latest_dumps, made_up, present, sought
from shadowgraph.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shadowgraph.dumps.reader import Dump
    from shadowgraph.graphs.model import Graph
    from shadowgraph.reports.map_text import DumpedMap

HELP = "draw the memory of a dump"
_LIMIT = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="a picture: the suffix png, svg or pdf says which kind")
    parser.add_argument(
        "--interactive",
        metavar="FILE",
        help="a page to zoom, pan and hover over: one .html file that needs nothing else",
    )
    parser.add_argument("--graph", metavar="NAME|N", help="only what this graph was given or allocated")
    parser.add_argument("--buffer", metavar="NAME|ADDRESS", help="only this buffer and its neighbours by address")
    parser.add_argument(
        "--limit", type=int, default=_LIMIT, metavar="N", help=f"buffers with a row of their own (default: {_LIMIT})"
    )


def run(args: argparse.Namespace) -> int:
    """Print the map, or write the picture and say where it is."""
    from shadowgraph.plots.rows import MOST_ROWS
    from shadowgraph.reports.map_text import MapReport
    from shadowgraph.saved.reader import is_saved

    if not 1 <= args.limit <= MOST_ROWS:
        raise UsageError(f"--limit must be from 1 to {MOST_ROWS}, not {args.limit}")
    drawing = args.output is not None or args.interactive is not None
    if drawing:
        _require_picture(args)
    with ExitStack() as opened:
        maps = _saved_maps(args) if is_saved(args.path) else _dumped_maps(args, opened, drawing)
        if drawing:
            with made_up(args.path, "map"):
                _save(maps[0], args)
        else:
            present(MapReport(maps, args.limit), args.json, args.path, "map")
    return 0


def _dumped_maps(args: argparse.Namespace, opened: ExitStack, drawing: bool) -> list[DumpedMap]:
    dumps = latest_dumps(args.path, opened, args.pid)
    if drawing and len(dumps) > 1:
        known = ", ".join(str(dump.manifest.pid) for dump in dumps)
        raise UsageError(f"a picture is of one process, and there are dumps of {known}; name one with --pid")
    with made_up(args.path, "map"):
        return _maps(dumps, args.graph, args.buffer)


def _saved_maps(args: argparse.Namespace) -> list[DumpedMap]:
    """The maps of a document; which part of them is meant only --pid can say."""
    from shadowgraph.commands.opening import only_findings
    from shadowgraph.saved.contents import maps_of
    from shadowgraph.saved.reader import read_saved

    if args.graph is not None or args.buffer is not None:
        raise UsageError("--graph and --buffer need a dump or a run folder, not JSON")
    saved = read_saved(args.path)
    with made_up(args.path, "map"):
        maps = [each for each in maps_of(saved) if args.pid in (None, each.pid)]
    if not maps or (len(maps) > 1 and (args.output or args.interactive)):
        raise UsageError(f"{saved.source} has {len(maps)} maps of processes; name one that it has with --pid")
    only_findings(saved)
    return maps


def _require_picture(args: argparse.Namespace) -> None:
    """Refuse what cannot be drawn before a large dump is read."""
    from shadowgraph.plots.interactive import require_html
    from shadowgraph.plots.saving import format_of

    if args.output is not None:
        format_of(args.output)
    if args.interactive is not None:
        require_html(args.interactive)
    if args.json:
        option = "-o" if args.output is not None else "--interactive"
        raise UsageError(f"--json prints a document and {option} draws a picture: take one of them")


def _maps(dumps: Sequence[Dump], graph: str | None, buffer: str | None) -> list[DumpedMap]:
    from shadowgraph.dumps.naming import BufferNames
    from shadowgraph.plots.dumped_map import dumped_map
    from shadowgraph.reports.map_text import DumpedMap

    books = [BufferNames(dump) for dump in dumps]
    wanted = [None for _ in books] if buffer is None else sought(buffer, books)
    graphs = _graphs(dumps, graph)
    return [
        DumpedMap(dump.manifest.pid, str(dump.path), dumped_map(dump, book, model, buffers))
        for dump, book, model, buffers in zip(dumps, books, graphs, wanted, strict=True)
        if (graph is None or model is not None) and (buffer is None or buffers)
    ]


def _graphs(dumps: Sequence[Dump], wanted: str | None) -> list[Graph | None]:
    """The graph of each dump with a name, None where it has none of it.

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
    from shadowgraph.reports.shown import said

    title = f"Memory map of process {drawn.pid}"
    if args.interactive is not None:
        from shadowgraph.plots.interactive import interactive_map

        print(said(f"wrote {interactive_map(drawn.map, title=title).save(args.interactive)}").plain)
    if args.output is not None:
        from shadowgraph.plots.memory_map import save_memory_map

        print(said(f"wrote {save_memory_map(drawn.map, args.output, limit=args.limit, title=title)}").plain)
