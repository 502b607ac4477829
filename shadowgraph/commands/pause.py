"""Switch checking off in all processes of a run that goes on, until `shadowgraph resume`."""

from __future__ import annotations

import argparse

HELP = "switch checking off in a run that goes on"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run folder of `shadowgraph wrap`")


def run(args: argparse.Namespace) -> int:
    """Set the switch in the run folder."""
    from shadowgraph.wrap.status.pause_file import switch

    if switch(args.run, off=True):
        print("checking is off: each process stops at its first replay a second from now, or sooner")
    else:
        print("checking was off already")
    return 0
