"""Shared code of verbs that read dumps: open the dumps of a path, find buffers and graphs in them, print reports.
Damaged or forged dumps end in one error, before any output.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shadowgraph.commands.progress import working
from shadowgraph.common.console import tame
from shadowgraph.common.errors import DamagedDumpError, DumpError, MissingFileError, RunFolderError, UsageError

if TYPE_CHECKING:
    from rich.text import Text

    from shadowgraph.commands.saved.reader import Saved
    from shadowgraph.dumps.naming import BufferNames
    from shadowgraph.dumps.reader import Dump
    from shadowgraph.model.buffers import Buffer
    from shadowgraph.model.findings import Finding
    from shadowgraph.model.graphs import Graph
    from shadowgraph.model.run_facts import RunFacts

PATH = "a dump, the run folder of `shadowgraph wrap` (the latest dump of each process), or a report: see docs/verbs.md"

_HOW = "for its bytes wrap with --dump findings,exit, or suppress the earlier finding"


class Presentable(Protocol):
    """Data with a JSON and a text form."""

    def to_json(self) -> str: ...

    def lines(self, width: int | None = None) -> Iterable[Text]: ...


def add_shared(parser: argparse.ArgumentParser) -> None:
    """Add the dump argument and the options that all verbs on a dump share."""
    parser.add_argument("path", metavar="DUMP", help=PATH)
    parser.add_argument("--pid", type=int, metavar="N", help="only this process of a run")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")


def add_source(parser: argparse.ArgumentParser, about: str) -> None:
    """Add the dump, the buffer after it, as a word or as ``--buffer``, and the options of `add_shared`.

    Parameters
    ----------
    about
        What the verb says of the buffer, for the help.
    """
    add_shared(parser)
    form = f"{about}: an owner path, its last part, or an address"
    parser.add_argument("buffer", metavar="BUFFER", nargs="?", help=form)
    parser.add_argument("--buffer", dest="named", metavar="BUFFER", help="the same, as an option")


def settle_source(args: argparse.Namespace, verb: str, required: bool = False) -> None:
    """Put the dump into ``args.path`` and the buffer into ``args.buffer``. The buffer may come first where only the
    second word is a file.

    Raises
    ------
    UsageError
        For two buffers, and for none where one is required.
    """
    if args.buffer is not None and not is_source(args.path) and is_source(args.buffer):
        args.path, args.buffer = args.buffer, args.path
    if args.named is not None and args.buffer is not None:
        raise UsageError(f"two buffers, {args.buffer!r} and {args.named!r}; use: shadowgraph {verb} DUMP BUFFER")
    args.buffer = args.buffer if args.buffer is not None else args.named
    if args.buffer is None and required:
        raise UsageError(f"{verb} takes a dump and a buffer of it; use: shadowgraph {verb} DUMP BUFFER")
    if args.buffer is not None and not is_source(args.path):
        places = args.path if args.named is not None else f"{args.path}, nor {args.buffer}"
        raise MissingFileError(f"cannot read {places}: No such file; use: shadowgraph {verb} DUMP BUFFER")


def is_source(text: str) -> bool:
    """Whether a word names something to read: a file or a folder that exists, or a server."""
    from shadowgraph.commands.saved.fetching import is_url

    return os.path.exists(text) or is_url(text)


def opened_dump(path: str | Path, opened: ExitStack) -> Dump:
    """A dump that `opened` closes.

    Raises
    ------
    UsageError
        For a report as JSON, which is no dump.
    """
    from shadowgraph.commands.saved.reader import is_saved
    from shadowgraph.dumps.reader import read_dump

    if is_saved(str(path)):
        from shadowgraph.commands.saved.contents import refused
        from shadowgraph.commands.saved.reader import read_saved

        raise refused(read_saved(str(path)), "this verb")

    with working(f"reading {os.path.basename(path)}"):
        return opened.enter_context(read_dump(path))


def facts_at(path: str, opened: ExitStack) -> RunFacts:
    """The facts of a report on a dump, a run folder or a report as JSON, with the numbers that the report shows.

    Raises
    ------
    RunFolderError, DumpError, MissingFileError
        When it cannot be read.
    """
    from shadowgraph.commands.saved.reader import is_saved, read_saved
    from shadowgraph.wrap.folder.reader import read_run

    if is_saved(path):
        return read_saved(path).report
    return read_run(path).merged() if os.path.isdir(path) else opened_dump(path, opened).facts()


def latest_run() -> str:
    """The run folder that `shadowgraph wrap` made last below the working directory.

    Raises
    ------
    UsageError
        When there is none.
    """
    from shadowgraph.wrap.folder.run_folder import DEFAULT_PARENT, MANIFEST

    files = (file for name in (MANIFEST, "findings-*.jsonl") for file in Path(DEFAULT_PARENT).glob(f"*/{name}"))
    made = [(file.stat().st_mtime, file.parent) for file in files]
    if not made:
        raise UsageError(f"there is no run below {DEFAULT_PARENT}: name a dump or a run folder")
    return str(max(made)[1])


def run_dumps(path: str, opened: ExitStack) -> list[Dump]:
    """The readable dumps of a run, the latest first; unreadable ones are named in a warning.

    Raises
    ------
    RunFolderError
        When the run left no dump.
    DumpError, MissingFileError
        When none can be read.
    """
    from shadowgraph.wrap.folder.reader import read_run

    paths = read_run(path).dumps
    if not paths:
        raise RunFolderError(f"{path} holds no dump, and this is kept in dumps: wrap with --dump findings,exit")
    dumps: list[Dump] = []
    failed: list[DumpError | MissingFileError] = []
    with working(f"reading the dumps of {os.path.basename(path)}", len(paths)) as done:
        for each in paths:
            try:
                dumps.append(opened_dump(each, opened))
            except (DumpError, MissingFileError) as error:
                failed.append(error)
            done()
    if not dumps:
        raise failed[0]
    for why in failed:
        print(f"shadowgraph: warning: left out: {why}", file=sys.stderr)
    return sorted(dumps, key=lambda dump: dump.manifest.time, reverse=True)


def latest_dumps(path: str, opened: ExitStack, pid: int | None = None) -> list[Dump]:
    """A dump, or the latest dump of each process of a run, in order of process id.

    Raises
    ------
    UsageError
        When the requested process has no dump.
    """
    dumps = run_dumps(path, opened) if os.path.isdir(path) else [opened_dump(path, opened)]
    latest: dict[int, Dump] = {}
    for dump in dumps:
        if dump is not latest.setdefault(dump.manifest.pid, dump):
            dump.close()
    require_process(latest, pid, path)
    return [latest[each] for each in sorted(latest) if pid in (None, each)]


def fitting_dumps(
    path: str, opened: ExitStack, pid: int | None = None, finding: int | None = None, buffer: str | None = None
) -> list[Dump]:
    """A dump, or of each process of a run the newest dump that has the bytes of a finding or a buffer, else of the most
    findings; in order of process id. Notes on standard error say where that is not the newest one, and which findings
    came after it.

    Raises
    ------
    UsageError
        When the requested process has no dump, or the finding came after every dump.
    """
    from shadowgraph.dumps.choosing import fullest, knows_finding
    from shadowgraph.wrap.folder.reader import read_run

    if not os.path.isdir(path):
        return latest_dumps(path, opened, pid)
    by_process: dict[int, list[Dump]] = {}
    for dump in run_dumps(path, opened):
        by_process.setdefault(dump.manifest.pid, []).append(dump)
    require_process(by_process, pid, path)
    wanted = [by_process[each] for each in sorted(by_process) if pid in (None, each)]
    chosen = [fullest(dumps, finding, buffer) for dumps in wanted]
    if finding is None or not any(knows_finding(dump, finding) for dump in chosen):
        _tell_later(chosen, wanted, read_run(path).merged().findings, finding)
    for dump, dumps in zip(chosen, wanted, strict=True):
        if dump is not dumps[0]:
            note(f"read from {dump.path.name}: {dumps[0].path.name}, the newest, has less of these bytes")
    _close_all(dump for dumps in by_process.values() for dump in dumps if dump not in chosen)
    return chosen


def _tell_later(
    chosen: Sequence[Dump], dumps: Sequence[Sequence[Dump]], findings: Sequence[Finding], wanted: int | None
) -> None:
    """Note the findings of a run that came after the chosen dumps, and where their bytes are.

    Raises
    ------
    UsageError
        With that note, where the wanted finding is one of them.
    """
    from shadowgraph.dumps.choosing import later_findings, later_said

    for dump, others in zip(chosen, dumps, strict=True):
        later = later_findings(dump, findings)
        if not later:
            continue
        having = next((other.path.name for other in others if not later_findings(other, later)), None)
        how = f"{having} has {'it' if len(later) == 1 else 'them'}" if having is not None else _HOW
        said = f"{later_said(dump, later)}: {how}"
        if any(each.id == wanted for each in later):
            raise UsageError(said)
        note(said)


def _close_all(dumps: Iterable[Dump]) -> None:
    for dump in dumps:
        dump.close()


def note(text: str) -> None:
    """A line on standard error about what a report shows; names in it may come from a dump."""
    print(f"shadowgraph: note: {tame(text)}", file=sys.stderr)


def require_process(pids: Iterable[int], wanted: int | None, path: str) -> None:
    """Refuse a process without a dump.

    Raises
    ------
    UsageError
    """
    known = sorted(set(pids))
    if wanted is not None and wanted not in known:
        raise UsageError(f"no dump of process {wanted} in {path}; there are dumps of: {', '.join(map(str, known))}")


@contextmanager
def made_up(path: str, what: str) -> Iterator[None]:
    """Build a report inside the block, before a line is printed: a forged file may contain data that makes no report.

    Raises
    ------
    DamagedDumpError
        For any such error inside the block.
    """
    from shadowgraph.dumps.container import first_words

    try:
        with working(f"making the {what}"):
            yield
    except (ArithmeticError, AssertionError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise DamagedDumpError(f"{path} is damaged: no {what} can be made of it ({first_words(error)})") from None


def sought(text: str, books: Sequence[BufferNames]) -> list[list[Buffer]]:
    """The buffers of each dump that match a name or an address.

    Raises
    ------
    UnknownBufferError
        When no dump has one.
    UsageError
        When a name is the end of several names.
    """
    from shadowgraph.dumps.naming import require_known

    found = [book.buffers(text) for book in books]
    if not any(found):
        require_known(text, books)
    return found


def only_findings(saved: Saved) -> None:
    """Print on standard error that a report knows only buffers with findings."""
    from shadowgraph.commands.saved.contents import instead

    said = f"{saved.source} knows only what findings say of their buffers; for the rest {instead(saved)}"
    print(f"shadowgraph: note: {said}", file=sys.stderr)


def graph_of(dump: Dump, wanted: str) -> Graph:
    """The graph of a dump with a name or a number.

    Raises
    ------
    UsageError
        When it has none.
    """
    from shadowgraph.dumps.naming import nearest_of

    for graph in dump.graphs:
        if wanted in (graph.name, str(graph.serial)):
            return graph
    raise UsageError(f"no graph is called {wanted!r}{nearest_of(wanted, [graph.name for graph in dump.graphs])}")


def find_finding(dumps: Sequence[Dump], wanted: int) -> tuple[Dump, Finding]:
    """The finding, or note, with an id, and its dump.

    Raises
    ------
    UsageError
        When there is none, or when several processes have one.
    """
    findings = [(dump, f) for dump in dumps for f in (*dump.manifest.facts.findings, *dump.manifest.facts.notes)]
    fits = [(dump, finding) for dump, finding in findings if finding.id == wanted]
    if not fits:
        raise _no_finding(wanted, (finding for _, finding in findings))
    if len(fits) > 1:
        pids = ", ".join(str(dump.manifest.pid) for dump, _ in fits)
        raise UsageError(f"processes {pids} have a finding #{wanted}; name one with --pid")
    return fits[0]


def _no_finding(wanted: int, findings: Iterable[Finding]) -> UsageError:
    known = ", ".join(f"#{number}" for number in sorted({finding.id for finding in findings})[:20])
    return UsageError(f"no finding #{wanted}{f'; there are: {known}' if known else ': there are none'}")


def present(report: Presentable, as_json: bool, path: str, what: str) -> None:
    """Print a report, as JSON or as text; prints nothing if it cannot be built completely."""
    from shadowgraph.common.console import console
    from shadowgraph.render.text.shown import show, width_of

    out = console()
    with made_up(path, what):
        text = report.to_json() if as_json else ""
        lines = [] if as_json else list(report.lines(width_of(out)))
    if as_json:
        sys.stdout.write(text + "\n")
    else:
        show(lines, out)
