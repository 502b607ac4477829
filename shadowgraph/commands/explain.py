"""Explain a kind of finding: its cause, the remedy, and what counts as evidence; without a code, list the kinds."""

from __future__ import annotations

import argparse

HELP = "explain a kind of finding"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("code", metavar="CODE", nargs="?", help="such as SG101; without it, a list")
    parser.add_argument("--long", action="store_true", help="all that counts as evidence, and what does not")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")


def run(args: argparse.Namespace) -> int:
    """Print the explanation; an unknown code is an error."""
    from shadowgraph.checks.kinds import known_code
    from shadowgraph.commands.opening import present
    from shadowgraph.render.text.explanation_text import ExplanationReport

    code = None if args.code is None else known_code(args.code)
    present(ExplanationReport(code, args.long), args.json, "", "text")
    return 0
