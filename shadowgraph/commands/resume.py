"""Switch checking on again in all processes of a run, after `shadowgraph pause`."""

from __future__ import annotations

import argparse

HELP = "switch checking on again in a run that goes on"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run folder of `shadowgraph wrap`")


def run(args: argparse.Namespace) -> int:
    """Set the switch in the run folder."""
    from shadowgraph.wrap.status.pause_file import switch

    if switch(args.run, off=False):
        print("checking is on: each process goes on with it at its first replay a second from now, or sooner")
    else:
        print("checking was on already")
    return 0
