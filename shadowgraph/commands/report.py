"""Show what a run left behind."""

from __future__ import annotations

import argparse
import sys

HELP = "show the report of a run folder"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", help="a run folder of `shadowgraph wrap`")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")


def run(args: argparse.Namespace) -> int:
    """Print the report; 0 whatever was found."""
    from shadowgraph.reports.run_text import RunReport
    from shadowgraph.runs.reader import read_run

    report = RunReport(read_run(args.path))
    if args.json:
        sys.stdout.write(report.to_json() + "\n")
    else:
        report.print()
    return 0
