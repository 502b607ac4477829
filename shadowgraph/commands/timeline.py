"""Tell what happened to a buffer, in order: its allocation, captures, launches, replays, findings, its free; without a
buffer, what happened in a run over time."""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from shadowgraph.commands.opening import add_source, latest_dumps, made_up, present, settle_source, sought
from shadowgraph.common.errors import UsageError

if TYPE_CHECKING:
    from shadowgraph.views.run_timeline import RunTimeline

STEPS_OF_TEXT, STEPS_OF_PICTURE = 40, 240
HELP = "tell what happened to a buffer, or in a run"
_LAST = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser, "whose events; without one, replays, batches, findings and high-water marks over time")
    parser.add_argument(
        "--last", type=int, default=_LAST, metavar="N", help=f"the last N events, 0 for all (default: {_LAST})"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="without a buffer: draw it into a picture (png, svg, pdf) or a page (html)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the events; an unknown buffer is an error."""
    from shadowgraph.commands.saved.reader import is_saved
    from shadowgraph.dumps.naming import BufferNames
    from shadowgraph.render.text.timeline_text import TimelineReport
    from shadowgraph.views.event_list import timeline

    settle_source(args, "timeline")
    if args.buffer is None:
        return _whole(args)
    if args.output is not None:
        raise UsageError("-o draws the timeline of a run: take it without a buffer")
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


def _whole(args: argparse.Namespace) -> int:
    """Print or draw the timeline of a run folder or a dump."""
    from shadowgraph.commands.saved.contents import refused
    from shadowgraph.commands.saved.reader import is_saved, read_saved

    if args.output is not None and args.json:
        raise UsageError("--json prints a document and -o draws a picture: take one of them")
    if is_saved(args.path):
        raise refused(read_saved(args.path), "a timeline without a buffer")
    with made_up(args.path, "timeline"):
        if args.output is not None:
            _draw(args)
            return 0
        from shadowgraph.render.text.run_timeline_text import RunTimelineReport

        report = RunTimelineReport(_timelines(args, STEPS_OF_TEXT))
    present(report, args.json, args.path, "timeline")
    return 0


def _timelines(args: argparse.Namespace, steps: int) -> tuple[RunTimeline, ...]:
    from shadowgraph.views.run_timeline import dump_timeline, run_timelines
    from shadowgraph.wrap.folder.reader import read_run

    if os.path.isdir(args.path):
        made = run_timelines(read_run(args.path), args.pid, steps)
        if args.pid is not None and not made:
            raise UsageError(f"no process {args.pid} of {args.path} has replayed a graph or has a finding")
        return made
    with ExitStack() as opened:
        return tuple(dump_timeline(dump, steps) for dump in latest_dumps(args.path, opened, args.pid))


def _draw(args: argparse.Namespace) -> None:
    from shadowgraph.render.text.shown import said

    if args.output.lower().endswith((".html", ".htm")):
        from shadowgraph.render.html.timeline import timeline_page
        from shadowgraph.render.html.writing import require_target, write_page

        require_target(args.output)
        path = write_page(timeline_page(_timelines(args, STEPS_OF_TEXT)), args.output)
    else:
        from shadowgraph.render.plots.run_timeline import save_run_timeline
        from shadowgraph.render.plots.saving import FORMATS

        if not args.output.lower().endswith(FORMATS):
            raise UsageError(f"cannot draw into {args.output!r}: the name must end in .png, .svg, .pdf or .html")
        path = save_run_timeline(_timelines(args, STEPS_OF_PICTURE), args.output)
    print(said(f"wrote {path}").plain)


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
