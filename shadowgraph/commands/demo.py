"""Run the acceptance cases, and with sglang the founding cases: each bug must be found, each fix silent."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from shadowgraph.common.console import PlainConsole, console
from shadowgraph.common.errors import MissingFileError, MissingPackageError, UsageError
from shadowgraph.common.internal_errors import unlogged
from shadowgraph.demos.case import Case
from shadowgraph.model.run_facts import versions
from shadowgraph.render.text.text import Report

HELP = "run the acceptance cases and, with sglang, the founding cases"
SCHEMA = "shadowgraph.demo/2"
FAILED = 12  # a case failed or was invalid


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--case", action="append", default=[], metavar="ID", help="run only this case (repeatable)")
    parser.add_argument(
        "--set",
        choices=("all", "acceptance", "founding"),
        default="all",
        help="which cases; all leaves out the founding ones where sglang is missing (default: all)",
    )
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    parser.add_argument("--reports", action="store_true", help="print the full report of every buggy program")
    parser.add_argument("--picture", metavar="FILE", help="write a memory map of the last damaged case (png, svg, pdf)")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")


def run(args: argparse.Namespace) -> int:
    """Run the chosen cases; 0 when every bug was found and every fix was silent."""
    from shadowgraph.demos.device import HostDevice

    device = HostDevice()
    cases, hint = chosen(args.set, args.case)
    if args.list:
        _list(cases)
        return 0
    outcomes = []
    quiet = args.json
    out = console()
    from shadowgraph.demos.runner import run_cases

    with unlogged():
        for outcome in run_cases(cases, device):
            outcomes.append(outcome)
            if not quiet:
                _show(out, outcome, args.reports)
    if args.picture:
        _draw(outcomes, args.picture, quiet)
    if quiet:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(document(outcomes)), indent=2).decode() + "\n")
    else:
        _conclude(out, outcomes, hint)
    return 0 if all(outcome.verdict == "passed" for outcome in outcomes) else FAILED


def chosen(which: str, only: Iterable[str]) -> tuple[list[Case], str | None]:
    """The cases to run, and a hint when the founding cases are left out.

    Raises
    ------
    MissingPackageError
        When the founding cases are requested and sglang is missing.
    UsageError
        For an unknown case.
    """
    from shadowgraph.demos.founding import CASES as FOUNDING
    from shadowgraph.demos.runner import ACCEPTANCE, select
    from shadowgraph.demos.sglang.host import require_sglang

    names = list(only)
    hint = None
    known: list[Case] = []
    if which != "founding":
        known += ACCEPTANCE
    if which != "acceptance":
        try:
            require_sglang()
            known += FOUNDING
        except MissingPackageError as error:
            if which == "founding" or any(name.startswith("S-") for name in names):
                raise
            hint = f"the founding cases in real sglang code were left out: {error}"
    return select(known, names), None if names else hint


def document(outcomes: Iterable[Any]) -> dict[str, Any]:
    """The run as plain JSON types (schema ``shadowgraph.demo/2``): cases, and all findings with the case of each."""
    cases, findings = [], []
    for outcome in outcomes:
        cases.append(
            {
                "id": outcome.case.id,
                "title": outcome.case.title,
                "report": outcome.case.report,
                "verdict": outcome.verdict,
                "complaints": outcome.complaints,
                "seconds": round(outcome.seconds, 3),
                "findings": len(outcome.findings),
                "fixed_findings": len(outcome.fixed.findings) if outcome.fixed else None,
            }
        )
        findings += [{**finding.to_dict(), "case": outcome.case.id} for finding in outcome.findings]
    return {"schema": SCHEMA, "versions": versions(), "cases": cases, "findings": findings}


def _list(cases: Iterable[Case]) -> None:
    table = Table("case", "report", "what", box=None)
    for case in cases:
        table.add_row(case.id, case.report, case.title)
    console().print(table)


def _show(out: PlainConsole, outcome: Any, reports: bool) -> None:
    colour = {"passed": "green", "failed": "bold red", "invalid": "bold yellow"}[outcome.verdict]
    kind = "silent" if outcome.case.control else f"{len(outcome.findings)} found, none in the fixed program"
    said = kind if outcome.verdict == "passed" else "; ".join(outcome.complaints)
    line = Text(f"{outcome.verdict:8}", style=colour)
    out.print(line.append(f" {outcome.case.id:16} {outcome.case.title}: {said}", style="not bold default"))
    if reports and outcome.buggy is not None:
        out.print()
        Report(outcome.buggy).print()
        out.print()


def _conclude(out: PlainConsole, outcomes: list[Any], hint: str | None) -> None:
    counts = {name: sum(o.verdict == name for o in outcomes) for name in ("passed", "failed", "invalid")}
    seconds = sum(outcome.seconds for outcome in outcomes)
    out.print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['invalid']} invalid in {seconds:.1f} s")
    if hint:
        out.print(hint)


def _draw(outcomes: list[Any], path: str, quiet: bool) -> None:
    from shadowgraph.render.plots.memory_map import save_memory_map

    drawn = next((o for o in reversed(outcomes) if o.findings and o.memory is not None), None)
    if drawn is None:
        raise UsageError("--picture needs a case with a finding; none of the chosen ones has any")
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MissingFileError(f"cannot make the folder for {path}: {error.strerror}") from None
    save_memory_map(drawn.memory, path)
    if not quiet:
        console().print(f"memory map of {drawn.case.id} written to {path}")
