"""Report on a run of several processes as text and JSON: a table of the processes, then one merged report.
Made by `shadowgraph report`, by the supervising process of `shadowgraph wrap` at the end, and by its status server.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec
from rich.text import Text

from shadowgraph.common.console import console, tame
from shadowgraph.common.html_repr import HtmlRepr
from shadowgraph.common.words import plural
from shadowgraph.model.fences import LAID
from shadowgraph.model.run_facts import document, without_memory
from shadowgraph.render.text.last_check_text import last_check_of
from shadowgraph.render.text.text import lines as report_lines
from shadowgraph.wrap.folder.idle_report import UNSEEN, cut
from shadowgraph.wrap.folder.merging import met_fence
from shadowgraph.wrap.folder.process_record import ProcessRecord
from shadowgraph.wrap.folder.reader import Run

_SHOWN = 40
_IDLE = 4  # processes without tensor work that are listed one by one


class RunReport(HtmlRepr):
    """A run, ready to be shown. Holds data only; with `all_marks`, its text has every high-water mark."""

    def __init__(self, run: Run, all_marks: bool = False) -> None:
        self.run, self._all_marks = run, all_marks
        self.facts = run.merged()

    def print(self, file: IO[str] | None = None) -> None:
        """Write the report; colour only where `file` (standard output) is a terminal."""
        with console(file) as out:  # one write: a notebook makes an output of each
            for line in self._lines():
                out.print(line)

    def to_json(self, memory: bool = True) -> str:
        """One JSON document: a report with the run's processes under ``run``; without `memory`, without bytes of the
        program's memory.
        """
        return msgspec.json.format(msgspec.json.encode(self._document(memory)), indent=2).decode()

    def __str__(self) -> str:
        return "".join(f"{line.plain}\n" for line in self._lines())

    def _document(self, memory: bool) -> dict[str, Any]:
        # Documents are passed on to other users; the address of the status pages contains their token.
        said = {name: value for name, value in self.run.manifest.items() if name != "status"}
        return {
            **document(self.facts if memory else without_memory(self.facts)),
            "run": {
                **said,
                **({"unread": self.run.unread} if self.run.unread else {}),
                "folder": os.path.abspath(self.run.folder),
                "dumps": [path.name for path in self.run.dumps],
                "processes": list(map(_plain, self.run.processes)),
            },
        }

    def _lines(self) -> Iterator[Text]:
        yield from head_lines(self.run)
        yield Text()
        yield from report_lines(self.facts, self._all_marks)
        for hit in filter(None, map(met_fence, self.run.processes)):
            yield Text(f"SUMMARY: shadowgraph: {tame(hit)}", style="bold")
        yield Text(where(self.run))


def title(run: Run) -> str:
    """The wrapped command and its exit status."""
    command = run.manifest.get("command")
    words = [word for word in command if isinstance(word, str)] if isinstance(command, list) else []
    return f"shadowgraph wrap: {cut(shlex.join(words), 100) or 'unknown command'}: {_ended(run)}"


def missing(run: Run) -> str:
    """A note on an unreadable manifest."""
    return f"command, settings and end of the run are not known: {run.unread}"


def where(run: Run) -> str:
    """The run folder and its number of dumps."""
    dumps = f", {plural(len(run.dumps), 'dump')}" if run.dumps else ""
    return f"run folder: {relative(run.folder)}{dumps}"


def head_lines(run: Run) -> Iterator[Text]:
    """The command, its exit status, and its processes."""
    yield Text(title(run), style="bold")
    if run.unread:
        yield Text(missing(run), style="yellow")
    for core in _cores(run):
        yield Text(core, style="yellow")
    if not run.processes:
        yield Text(UNSEEN, style="yellow")
    for process in shown(run.processes)[:_SHOWN]:
        yield from _process(process)
    idle = len(run.processes) - len(shown(run.processes))
    if idle:
        noun = "process" if idle == 1 else "processes"
        yield Text(f"  ... and {idle:,} more {noun} without tensor work", style="dim")
    if len(shown(run.processes)) > _SHOWN:
        yield Text(f"  ... and {len(shown(run.processes)) - _SHOWN} more processes")


def _cores(run: Run) -> list[str]:
    """What core dumps of the GPU say, as the supervising process noted it."""
    noted = run.manifest.get("gpu_cores")
    return [tame(line) for line in noted if isinstance(line, str)] if isinstance(noted, list) else []


def shown(processes: Sequence[ProcessRecord]) -> list[ProcessRecord]:
    """The processes to list: all, but only a few of many without tensor work, such as a compiler's workers."""
    idle = [p for p in processes if p.backend is None and not (p.found or p.events or p.damaged or p.cut)]
    return list(processes) if len(idle) <= _IDLE else [p for p in processes if p not in idle[_IDLE:]]


def _ended(run: Run) -> str:
    if run.unread:
        return "end unknown"
    if run.manifest.get("signal"):
        return f"ended by {run.manifest['signal']}"
    if "exit_code" in run.manifest:
        return f"exit code {run.manifest['exit_code']}"
    return "has not ended, or its supervisor was killed"


def _process(process: ProcessRecord) -> Iterator[Text]:
    line = Text(f"  process {process.pid}", style="bold")
    line.append(f"  {fate(process)}", style="not bold")
    yield line.append(f"  {command(process)}", style="not bold dim")
    for event in _told(process):
        yield Text(f"    {event}", style="yellow")
    for said in last_check_of(process):
        yield Text(f"    {tame(said)}", style="yellow")


def _told(process: ProcessRecord) -> list[str]:
    """The events of a process, without those of fences that the report lists."""
    listed = any(facts.fences for facts in process.summaries)
    return [event for event in process.events if not (listed and event.startswith(LAID))]


def fate(process: ProcessRecord) -> str:
    """Origin, backend, end and what was found of a process."""
    rank = f", rank {process.rank}" if process.rank is not None else ""
    found = f", {process.found.said()}" if process.found else ""
    return f"{process.born} of {process.ppid}{rank}, {process.backend or 'no tensor work'}, {process.ended}{found}"


def command(process: ProcessRecord) -> str:
    """Command line or title of a process, in one line."""
    return cut(process.title or shlex.join(process.argv))


def _plain(process: ProcessRecord) -> dict[str, Any]:
    return {
        **{
            name: getattr(process, name)
            for name in ("pid", "ppid", "argv", "born", "rank", "started", "backend", "title")
        },
        **{name: getattr(process, name) for name in ("ended", "events", "lost", "damaged", "cut")},
        "findings": process.found.findings,
        "consequences": process.found.consequences,
        "notes": process.found.notes,
        "pulse": process.pulse,
        "last_check": process.last_check,
    }


def relative(path: Path) -> str:
    """A path relative to the working directory where it lies below it."""
    return str(path).removeprefix(os.getcwd() + os.sep)
