"""Compare two dumps or runs, as before and after a fix: findings, buffers, aliases, graphs."""

from __future__ import annotations

import argparse
import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from shadowgraph.commands.opening import PATH, latest_dumps, made_up, present
from shadowgraph.common.errors import RunFolderError

if TYPE_CHECKING:
    from shadowgraph.views.difference import Side

HELP = "compare two dumps or runs"
_NEW = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="A", help=PATH)
    parser.add_argument("after", metavar="B", help="the same, to compare with it")
    parser.add_argument("--all", action="store_true", help="every line, not only the first of each part")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.add_argument(
        "--exit-code",
        action="store_true",
        help=f"exit with {_NEW} when B has findings that A lacks; notes never count",
    )


def run(args: argparse.Namespace) -> int:
    """Print the differences; the exit code depends on new findings only with the option for it."""
    from shadowgraph.render.text.diff_text import DiffReport
    from shadowgraph.views.differences import differences

    with ExitStack() as opened:
        before, after = _side(args.before, opened), _side(args.after, opened)
        with made_up(f"{args.before} or {args.after}", "comparison"):
            found = differences(before, after)
        present(DiffReport(before, after, found, args.all), args.json, f"{args.before} or {args.after}", "comparison")
    return _NEW if args.exit_code and found.new_errors else 0


def _side(path: str, opened: ExitStack) -> Side:
    """A dump, or a run with its dumps."""
    from shadowgraph.commands.saved.reader import is_saved, read_saved
    from shadowgraph.views.difference import Side

    if is_saved(path):
        saved = read_saved(path)
        return Side(path, f"report {saved.source}, no dump read", saved.report, ())
    if not os.path.isdir(path):
        (dump,) = latest_dumps(path, opened)
        moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(dump.manifest.time))
        label = f"dump of process {dump.manifest.pid}, {moment}, {dump.manifest.reason}"
        return Side(path, label, dump.manifest.facts, (dump,))
    return _run(path, opened)


def _run(path: str, opened: ExitStack) -> Side:
    from shadowgraph.common.words import plural
    from shadowgraph.views.difference import Side
    from shadowgraph.wrap.folder.reader import read_run

    run = read_run(path)
    try:
        dumps = tuple(latest_dumps(path, opened))
    except RunFolderError:
        dumps = ()  # the run made no dumps: its findings are in its journals
    count = f"{len(run.processes):,} {'process' if len(run.processes) == 1 else 'processes'}"
    return Side(path, f"run of {count}, {plural(len(dumps), 'dump')} read", run.merged(), dumps)
