"""Report on what a run left behind: a dump, on any machine, without a GPU and without what the run needed."""

from __future__ import annotations

import argparse
import os
import sys

import msgspec

from shadowgraph.dumps.container import first_words
from shadowgraph.dumps.reader import Dump, read_dump
from shadowgraph.errors import DamagedDumpError, ForeignFileError, UsageError
from shadowgraph.reports.console import console
from shadowgraph.reports.dumped import dumped_lines

HELP = "report on a dump"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="a dump that Debugger.dump wrote")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.add_argument(
        "--error-exitcode", type=int, default=0, metavar="N", help="exit with N when there are findings (default: 0)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the report; the exit code says whether there are findings only when asked to."""
    if not 0 <= args.error_exitcode <= 255:
        raise UsageError(f"--error-exitcode must be from 0 to 255, not {args.error_exitcode}")
    if os.path.isdir(args.path):  # a run folder: `shadowgraph.runs.reader` goes here
        raise ForeignFileError(f"{args.path} is a directory; name a dump in it")
    with read_dump(args.path) as dump:
        _show(dump, args.json)
        return args.error_exitcode if dump.manifest.facts.findings else 0


def _show(dump: Dump, as_json: bool) -> None:
    try:  # before a line is printed: what a made-up file says need not make a report
        if as_json:
            text = msgspec.json.format(msgspec.json.encode(dump.document()), indent=2).decode() + "\n"
        else:
            shown = list(dumped_lines(dump))
    except (ArithmeticError, AssertionError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise DamagedDumpError(f"{dump.path} is damaged: no report can be made of it ({first_words(error)})") from None
    if as_json:
        sys.stdout.write(text)
        return
    out = console()
    for line in shown:
        out.print(line)
