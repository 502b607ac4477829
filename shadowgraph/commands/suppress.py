"""Write a rule that hides a finding from later runs: by its fingerprint, or by patterns of what the finding names."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from contextlib import ExitStack
from typing import TYPE_CHECKING

from shadowgraph.commands.opening import PATH, facts_at, latest_run, made_up
from shadowgraph.common.errors import UsageError
from shadowgraph.common.options import option
from shadowgraph.model.suppressions import SELECTORS

if TYPE_CHECKING:
    from shadowgraph.model.findings import Finding
    from shadowgraph.model.suppressions import Rule

HELP = "write a rule that hides a finding"
DEFAULT_FILE = "shadowgraph-suppressions.txt"
_VARIABLE = option("suppressions").variable
_BY = ("fingerprint", *SELECTORS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("finding", metavar="FINDING", help="its number in the report, or its fingerprint")
    parser.add_argument("path", metavar="DUMP", nargs="?", help=f"{PATH} (default: the latest run in shadowgraph-runs)")
    parser.add_argument(
        "--file",
        metavar="FILE",
        help=f"the file to append to (default: what {_VARIABLE} names, else {DEFAULT_FILE})",
    )
    parser.add_argument("--expires", metavar="DATE", help="last day on which the rule hides, such as 2027-01-31")
    parser.add_argument("--reason", metavar="TEXT", help="why; reports quote it")
    parser.add_argument(
        "--by",
        metavar="WHAT",
        default="fingerprint",
        help=f"what the rule names of the finding: some of {', '.join(_BY)}, with commas (default: fingerprint)",
    )


def run(args: argparse.Namespace) -> int:
    """Append the rule and print it; nothing is written where a rule of the file fits already."""
    from shadowgraph.common.console import tame
    from shadowgraph.model.suppression_file import append_rule, line_of, read_suppressions, required_date

    by = _by(args.by)
    expires = required_date(args.expires) if args.expires is not None else ""
    finding = _finding(args)
    rule = _rule(by, finding, args.finding, expires, tame(" ".join((args.reason or "").split())))
    target = args.file or os.environ.get(_VARIABLE) or DEFAULT_FILE
    if finding is not None and os.path.exists(target):
        known = read_suppressions(target).hiding(finding)
        if known is not None:
            print(f"{known.place} hides it already: {tame(known.words())}")
            return 0
    place = append_rule(target, rule, tame(finding.message) if finding is not None else "")
    print(f"wrote {place}: {tame(line_of(rule))}")
    name = shlex.quote(target)
    print(f"to use it: shadowgraph wrap --suppressions {name} -- ..., or {_VARIABLE}={name}")
    return 0


def _by(text: str) -> list[str]:
    by = [word for word in text.split(",") if word]
    if not by or not set(by) <= set(_BY):
        raise UsageError(f"--by must be some of {', '.join(_BY)}, not {text!r}")
    return by


def _finding(args: argparse.Namespace) -> Finding | None:
    """The finding of a number or fingerprint; None for a fingerprint alone, which needs no run.

    Raises
    ------
    UsageError
        When there is none.
    """
    word = args.finding.removeprefix("#")
    is_print = re.fullmatch("[0-9a-f]{12}", word) is not None
    if not is_print and not word.isdecimal():
        raise UsageError(f"a finding is named by its number or its fingerprint, not by {args.finding!r}")
    if is_print and args.path is None and args.by == "fingerprint":
        return None
    path = args.path if args.path is not None else latest_run()
    with ExitStack() as opened, made_up(path, "rule"):
        facts = facts_at(path, opened)
        found = (*facts.findings, *facts.notes, *facts.hidden)
        for finding in found:
            if word == (finding.fingerprint if is_print else str(finding.id)):
                return finding
    known = ", ".join(f"#{number}" for number in sorted({finding.id for finding in found if finding.id})[:20])
    raise UsageError(f"{path} has no finding {args.finding}{f'; there are: {known}' if known else '; there are none'}")


def _rule(by: list[str], finding: Finding | None, word: str, expires: str, reason: str) -> Rule:
    from shadowgraph.model.suppressions import Rule

    if finding is None:
        return Rule(fingerprint=word, expires=expires, reason=reason)
    named = {key: _named(key, finding) for key in by}
    if by != ["fingerprint"]:
        named["code"] = finding.code
    rule = Rule(expires=expires, reason=reason, **named)
    if not rule.fits(finding):
        raise UsageError(
            f"a rule by {', '.join(by)} would not hide #{finding.id}: other launches may have done it as well; "
            "take --by fingerprint or --by buffer"
        )
    return rule


def _named(key: str, finding: Finding) -> str:
    """What a finding has of a key.

    Raises
    ------
    UsageError
        When it has nothing.
    """
    from shadowgraph.common.source_paths import short

    culprit, buffer = finding.culprit, finding.buffer
    known = {
        "fingerprint": finding.fingerprint,
        "code": finding.code,
        "buffer": buffer.name if buffer.names else "",
        "kernel": culprit.name or culprit.kernel or "",
        "file": short(culprit.file) if culprit.file else "",
        "function": culprit.stack[0].function if culprit.stack else "",
    }
    if not known[key]:
        raise UsageError(f"finding #{finding.id} names no {key}; take --by fingerprint")
    return known[key]
