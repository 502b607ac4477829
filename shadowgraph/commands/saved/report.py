"""Saved report, to be shown again: as text, as a page, or as the same JSON document."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.text import Text

from shadowgraph.commands.saved.reader import ReportDocument, RunFields, Saved
from shadowgraph.common.console import tame
from shadowgraph.common.words import plural
from shadowgraph.render.text.dumped import about_lines, missing_lines
from shadowgraph.render.text.run_text import head_lines, relative
from shadowgraph.render.text.text import lines
from shadowgraph.wrap.folder.process_record import Counts, ProcessRecord
from shadowgraph.wrap.folder.reader import Run

if TYPE_CHECKING:
    from shadowgraph.render.html.page import Page


_COUNTS = {"findings", "consequences", "notes"}


@dataclass(slots=True)
class _Counted(ProcessRecord):
    """A process with the number of its findings only."""

    told: Counts = field(default_factory=Counts)

    @property
    def found(self) -> Counts:
        return self.told


class SavedReport:
    """A saved report. Holds data only; with `all_marks`, its text has every high-water mark."""

    def __init__(self, saved: Saved, all_marks: bool = False) -> None:
        self.saved, self._all_marks = saved, all_marks
        self.facts: ReportDocument = saved.report

    @property
    def folder(self) -> str:
        """The run folder of the report; empty where it has none or does not name it."""
        return self.facts.run.folder if self.facts.run is not None else ""

    def to_json(self) -> str:
        """The document as it was printed."""
        known = {"schema", *ReportDocument.__struct_encode_fields__}
        whole = {name: value for name, value in self.saved.document.items() if name in known}
        return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode()

    def lines(self, width: int | None = None) -> Iterator[Text]:
        """The lines of the report, with control characters neutralised: the text comes from a file."""
        for line in self._lines():
            line.plain = tame(line.plain)
            yield line

    def page(self) -> Page:
        """The report's page. It has no nodes, launches and maps: these are only in dumps."""
        from shadowgraph.render.html.cards import said_of
        from shadowgraph.render.html.page import live_page, with_run

        page, run, source = live_page(self.facts), self.run(), self.saved.source
        return replace(
            with_run(page, run) if run is not None else replace(page, head=said_of(self.head_lines())),
            title=f"shadowgraph report: {source}",
            file=shlex.quote(source),
            tail=said_of(self.tail_lines()),
        )

    def run(self) -> Run | None:
        """The run of the report, with its processes; None for another report."""
        said = self.facts.run
        return _run_of(said, self.saved.document["run"]) if said is not None else None

    def head_lines(self) -> Iterator[Text]:
        """Origin of the report's dump; no lines for another report."""
        dump = self.facts.dump
        if dump is not None:
            yield from about_lines(msgspec.structs.replace(dump, versions=self.facts.versions))

    def tail_lines(self) -> Iterator[Text]:
        """Where to find the data that the report lacks."""
        run, dump = self.facts.run, self.facts.dump
        if dump is not None:
            yield from missing_lines(dump.unread, dump.left_out)
            yield Text(
                "dump: its buffers, launches and memory are in the dump itself, and not in its report", style="dim"
            )
        if self.folder and run is not None:
            dumps = f", {plural(len(run.dumps), 'dump')}" if run.dumps else ""
            yield Text(f"run folder: {relative(Path(self.folder))}{dumps}")

    def _lines(self) -> Iterator[Text]:
        run = self.run()
        if run is not None:
            yield from head_lines(run)
            yield Text()
        else:
            yield from self.head_lines()
        yield from lines(self.facts, self._all_marks)
        yield from self.tail_lines()


def _run_of(said: RunFields, manifest: dict[str, Any]) -> Run:
    processes = []
    for each in said.processes:
        fields = {name: getattr(each, name) for name in each.__struct_fields__ if name not in _COUNTS}
        processes.append(_Counted(Path(), **fields, told=Counts(each.findings, each.consequences, each.notes)))
    return Run(Path(said.folder), manifest, tuple(processes), tuple(map(Path, said.dumps)), said.unread)
