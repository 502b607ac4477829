"""Tell what happened to a buffer, in order: its allocation, captures, launches, replays, findings, its free."""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from shadowgraph.commands.opening import add_source, latest_dumps, made_up, present, settle_source, sought
from shadowgraph.common.errors import UsageError

HELP = "tell what happened to a buffer"
_LAST = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser, "whose events")
    parser.add_argument(
        "--last", type=int, default=_LAST, metavar="N", help=f"the last N events, 0 for all (default: {_LAST})"
    )


def run(args: argparse.Namespace) -> int:
    """Print the events; an unknown buffer is an error."""
    from shadowgraph.commands.saved.reader import is_saved
    from shadowgraph.dumps.naming import BufferNames
    from shadowgraph.render.text.timeline_text import TimelineReport
    from shadowgraph.views.event_list import timeline

    settle_source(args, "timeline", required=True)
    if args.last < 0:
        raise UsageError(f"--last must not be below 0, and is {args.last}")
    if is_saved(args.path):
        return _saved(args)
    with ExitStack() as opened:
        dumps = latest_dumps(args.path, opened, args.pid)
        with made_up(args.path, "timeline"):
            books = [BufferNames(dump) for dump in dumps]
            told = [
                timeline(dump, buffer, book.name(buffer), args.last or None)
                for dump, book, buffers in zip(dumps, books, sought(args.buffer, books), strict=True)
                for buffer in reversed(buffers)
            ]
        present(TimelineReport(told), args.json, args.path, "timeline")
    return 0


def _saved(args: argparse.Namespace) -> int:
    """Print the findings of a buffer in a report."""
    from shadowgraph.commands.opening import only_findings
    from shadowgraph.commands.saved.contents import timelines_of
    from shadowgraph.commands.saved.reader import read_saved
    from shadowgraph.render.text.timeline_text import TimelineReport

    saved = read_saved(args.path)
    with made_up(args.path, "timeline"):
        told = [each for each in timelines_of(saved, args.buffer) if args.pid in (None, each.pid)]
    present(TimelineReport(told), args.json, args.path, "timeline")
    only_findings(saved)
    return 0
