"""Parsers for the arguments of ``%%shadowgraph`` and ``%shadowgraph``."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shadowgraph.common.command_lines import Parser
from shadowgraph.common.errors import UsageError
from shadowgraph.common.option_kinds import Switch
from shadowgraph.common.options import OPTIONS, Option, from_variables, require
from shadowgraph.common.suggestions import did_you_mean

VERBS = ("report", "map", "pause", "resume", "explain")
NAME = "dbg"


@dataclass(frozen=True, slots=True)
class CellOptions:
    """Arguments of a cell magic: a debugger's options, and the variable that receives it."""

    settings: dict[str, Any]
    name: str


@dataclass(frozen=True, slots=True)
class LineOptions:
    """Arguments of a line magic: a verb, the code to explain or the file to write, and the map's scripts."""

    verb: str
    what: str | None
    scripts: str


def cell_parser(rows: Sequence[Option] = OPTIONS) -> argparse.ArgumentParser:
    """The parser of a cell magic: a flag for each option, and the variable's name."""
    parser = Parser(prog="%%shadowgraph", add_help=False)
    parser.add_argument("--name", default=NAME, help="the variable that receives the debugger")
    for row in rows:
        action: dict[str, Any] = {"action": argparse.BooleanOptionalAction} if isinstance(row.kind, Switch) else {}
        parser.add_argument(row.dashed, help=row.told().replace("%", "%%"), **action)
    return parser


def cell_options(line: str, rows: Sequence[Option] = OPTIONS) -> CellOptions:
    """Parse options of `Settings`, with dashes: ``--backend host --sync --no-infer --far-guard 64K --name dbg``.

    Raises
    ------
    UsageError
        For an unknown option or an invalid value; raised before anything is run.
    """
    given = vars(cell_parser(rows).parse_args(_words(line)))
    name = given.pop("name")
    if not name.isidentifier():
        raise UsageError(f"--name must be the name of a variable, not {name!r}")
    options = {}
    for row in rows:
        value = given[row.name]
        if value is not None:
            options[row.name] = value if isinstance(value, bool) else row.kind.parse(value, row.dashed)
    require({**from_variables(os.environ, rows), **options}, rows)  # before any code is run
    return CellOptions(options, name)


def line_options(line: str) -> LineOptions:
    """Parse a verb and its arguments.

    Raises
    ------
    UsageError
        For an unknown verb, or surplus arguments.
    """
    parser = Parser(prog="%shadowgraph", add_help=False)
    parser.add_argument("verb", nargs="?")
    parser.add_argument("what", nargs="?")
    parser.add_argument("--scripts", choices=("inline", "cdn"), default="inline")
    given = parser.parse_args(_words(line))
    if given.verb not in VERBS:
        named = f"no {given.verb!r}{did_you_mean(given.verb, VERBS)}; " if given.verb else ""
        raise UsageError(f"{named}%shadowgraph takes one of: {', '.join(VERBS)}; %%shadowgraph watches a cell")
    if given.what is not None and given.verb not in ("explain", "map"):
        raise UsageError(f"%shadowgraph {given.verb} takes nothing more, and was given {given.what!r}")
    return LineOptions(given.verb, given.what, given.scripts)


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise UsageError(f"cannot read the options: {error}") from None
