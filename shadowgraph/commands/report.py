"""Report on what a run left behind: a dump, a run folder or a report as JSON, on any machine, without what the run
needed; or on a run that goes on, by its status server."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec

from shadowgraph.commands.opening import facts_at, fitting_dumps, made_up, opened_dump
from shadowgraph.common.errors import DamagedDumpError, DumpError, MissingFileError, RunFolderError, UsageError

if TYPE_CHECKING:
    from shadowgraph.render.html.page import Page

HELP = "report on a dump or a run folder"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        metavar="PATH",
        help="a dump, the run folder of `shadowgraph wrap`, what --json printed, or http://127.0.0.1:PORT of --status",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.add_argument("--html", metavar="FILE", help="write one self-contained page instead, and say where it is")
    parser.add_argument(
        "--sarif", metavar="FILE", help="write the findings as SARIF 2.1.0 instead, for code hosts, and say where it is"
    )
    parser.add_argument(
        "--github",
        action="store_true",
        help="print the findings as workflow commands instead, from which GitHub makes annotations",
    )
    parser.add_argument(
        "--root",
        metavar="DIR",
        help="the folder that --sarif and --github name source files relative to (default: the repository of the "
        "working directory)",
    )
    parser.add_argument(
        "--marks", action="store_true", help="list the high-water mark of every static buffer, not the fullest few"
    )
    parser.add_argument(
        "--error-exitcode", type=int, default=0, metavar="N", help="exit with N when there are findings (default: 0)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the report; the exit code depends on findings only with the option for it."""
    if not 0 <= args.error_exitcode <= 255:
        raise UsageError(f"--error-exitcode must be from 0 to 255, not {args.error_exitcode}")
    from shadowgraph.commands.saved.reader import is_saved

    if args.html is not None or args.sarif is not None or args.github:
        found = _elsewhere(args)
    elif is_saved(args.path):
        found = _saved(args.path, args.json, args.marks)
    else:
        made = _folder if os.path.isdir(args.path) else _dump
        found = made(args.path, args.json, args.marks)
    return args.error_exitcode if found else 0


def _saved(path: str, as_json: bool, marks: bool) -> bool:
    from shadowgraph.commands.opening import present
    from shadowgraph.commands.saved.reader import read_saved
    from shadowgraph.commands.saved.report import SavedReport

    report = SavedReport(read_saved(path), marks)
    present(report, as_json, path, "report")
    return bool(report.facts.findings)


def _elsewhere(args: argparse.Namespace) -> bool:
    """Write the requested files, and print annotations, in place of the report."""
    from shadowgraph.render.html.writing import require_target

    if args.json:
        raise UsageError("--json prints a document; --html, --sarif and --github write others: take one of them")
    for option, path in (("--html", args.html), ("--sarif", args.sarif)):
        if path is not None:
            require_target(path, option)
    found = _page(args) if args.html is not None else False
    return _for_code_hosts(args) if args.sarif is not None or args.github else found


def _for_code_hosts(args: argparse.Namespace) -> bool:
    """Write SARIF and print annotations; neither if one of them cannot be built completely."""
    from shadowgraph.common.atomic_files import atomic_write
    from shadowgraph.render.annotations import workflow_commands
    from shadowgraph.render.sarif import to_sarif
    from shadowgraph.render.source_root import source_root
    from shadowgraph.render.text.shown import said

    root = source_root(args.root)
    with ExitStack() as opened, made_up(args.path, "list of findings"):
        facts = facts_at(args.path, opened)
        lines = list(workflow_commands(facts, root)) if args.github else []
        text = to_sarif(facts, root) if args.sarif is not None else ""
    if args.sarif is not None:
        print(said(f"wrote {atomic_write(args.sarif, text.encode())}").plain)
    for line in lines:
        print(line)
    return bool(facts.findings)


def _page(args: argparse.Namespace) -> bool:
    """Write the page; writes nothing if it cannot be built completely."""
    from shadowgraph.commands.saved.reader import is_saved
    from shadowgraph.render.html.writing import page_html, write_page
    from shadowgraph.render.text.shown import said

    with ExitStack() as opened, made_up(args.path, "page"):
        if is_saved(args.path):
            page = _saved_page(args.path)
        else:
            page = _run_page(args.path, opened) if os.path.isdir(args.path) else _dump_page(args.path, opened)
        text = page_html(page)
    print(said(f"wrote {write_page(text, args.html)}").plain)
    return bool(page.findings)


def _saved_page(path: str) -> Page:
    from shadowgraph.commands.saved.reader import read_saved
    from shadowgraph.commands.saved.report import SavedReport

    return SavedReport(read_saved(path)).page()


def _dump_page(path: str, opened: ExitStack) -> Page:
    from shadowgraph.render.html.page import dump_page

    return dump_page(opened_dump(path, opened))


def _run_page(path: str, opened: ExitStack) -> Page:
    """The page of a run, with the fullest dump of each process where one can be read."""
    from shadowgraph.render.html.page import run_page
    from shadowgraph.render.text.run_text import RunReport
    from shadowgraph.wrap.folder.reader import read_run

    report = RunReport(read_run(path))
    try:
        dumps = fitting_dumps(path, opened)
    except (DumpError, MissingFileError, RunFolderError) as error:
        dumps = []
        if report.run.dumps:
            print(f"shadowgraph: warning: left out: {error}", file=sys.stderr)
    return run_page(report, dumps)


def _folder(path: str, as_json: bool, marks: bool) -> bool:
    from shadowgraph.render.text.run_text import RunReport
    from shadowgraph.wrap.folder.reader import read_run

    report = RunReport(read_run(path), marks)
    if as_json:
        sys.stdout.write(report.to_json() + "\n")
    else:
        report.print()
    return bool(report.facts.findings)


def _dump(path: str, as_json: bool, marks: bool) -> bool:
    from shadowgraph.common.console import console
    from shadowgraph.dumps.container import first_words
    from shadowgraph.dumps.reader import read_dump
    from shadowgraph.render.text.dumped import dumped_lines

    with read_dump(path) as dump:
        try:  # before a line is printed: a forged file may contain data that makes no report
            if as_json:
                text = msgspec.json.format(msgspec.json.encode(dump.document()), indent=2).decode() + "\n"
            else:
                shown = list(dumped_lines(dump, marks))
        except (ArithmeticError, AssertionError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise DamagedDumpError(f"{path} is damaged: no report can be made of it ({first_words(error)})") from None
        if as_json:
            sys.stdout.write(text)
        else:
            with console() as out:
                for line in shown:
                    out.print(line)
        return bool(dump.manifest.facts.findings)
