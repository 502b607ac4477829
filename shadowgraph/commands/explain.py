"""Explain a kind of finding: its cause, what counts as evidence, and the remedy; without a code, list the kinds."""

from __future__ import annotations

import argparse

from shadowgraph.errors import UsageError

HELP = "explain a kind of finding"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("code", metavar="CODE", nargs="?", help="such as SG101; without it, a list")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")


def run(args: argparse.Namespace) -> int:
    """Print the explanation; an unknown code is an error."""
    from shadowgraph.commands.opening import present
    from shadowgraph.reports.explanation_text import ExplanationReport

    code = None if args.code is None else known_code(args.code)
    present(ExplanationReport(code), args.json, "", "text")
    return 0


def known_code(text: str) -> str:
    """The code that somebody means: ``sg101``, ``101``, or the kind's name.

    Raises
    ------
    UsageError
        When there is none.
    """
    from shadowgraph.findings import Kind

    wanted = text.strip().casefold()
    for kind in Kind:
        if wanted in (kind.name.casefold(), kind.name[2:], kind.value):
            return kind.name
    raise UsageError(f"no kind of finding is called {text!r}; kinds are: {', '.join(kind.name for kind in Kind)}")
