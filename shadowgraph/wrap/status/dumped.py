"""What the newest dumps of a run hold of its memory: maps, and the bytes around a finding.

Called in the threads of the status server; one lock. Of each dump only finished parts of pages are kept.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from shadowgraph.common.errors import ShadowgraphError
from shadowgraph.dumps.choosing import Identity, held_buffers, identity, worth_of
from shadowgraph.dumps.naming import BufferNames
from shadowgraph.dumps.reader import Dump, read_dump
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Finding
from shadowgraph.render.html.bytes_around import bytes_of
from shadowgraph.render.html.hexdump import HexTable
from shadowgraph.render.html.map_bars import BarMap, bar_map
from shadowgraph.views.dumped_map import dumped_map
from shadowgraph.views.memory_map import MapDamage
from shadowgraph.wrap.folder.reader import Run
from shadowgraph.wrap.status.tables import Row, Table

_ROWS = 500
_HEADINGS = ("address", "bytes", "guard before", "guard after", "role", "findings", "buffer")
_NEAR = 9  # rows of the map of a finding's own page: its buffer and the neighbours
_KEPT = 128  # findings, maps, and what dumps have
_Known = tuple[int, Identity]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class DumpedMemory:
    """The map of a process in its dump, as bars and as a table."""

    title: str
    about: str
    picture: BarMap
    buffers: Table


@dataclass(frozen=True, slots=True)
class DumpedFinding:
    """A finding in a dump: the bytes around it, and the map of its buffer and the neighbours."""

    about: str
    bytes: HexTable | None
    picture: BarMap


class NewestDumps:
    """Reads the newest dump of a run, or of a process, once, and keeps what pages show of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[tuple[object, ...], object] = {}

    def memory(self, run: Run, findings: tuple[Finding, ...], up: str) -> DumpedMemory | None:
        """The map of the newest dump, or of an older one with more findings' bytes; None without a dump.

        Parameters
        ----------
        findings
            Those of the run's report, whose pages the map leads to.
        up
            The way from the page to the root of the pages.

        Raises
        ------
        ShadowgraphError
            When the dump cannot be read.
        """
        newest = self._fullest(run)
        if newest is None:
            return None
        numbers = {_known(finding): finding.id for finding in findings}
        key = (*newest, up, tuple(numbers.items()))
        return self._once(key, newest[1], lambda dump: _memory(dump, _pages(dump, numbers, up)))

    def finding(self, run: Run, finding: Finding, findings: tuple[Finding, ...], up: str) -> DumpedFinding | None:
        """A finding in the newest dump of its process that has its bytes, else that knows it; None without one.
        Parameters as of `memory`."""
        numbers = {_known(each): each.id for each in findings}
        for date, path in self._holding(_newest(run, finding.pid), finding.buffer.serial):
            try:
                key = (date, path, finding.id, up, tuple(numbers.items()))
                made = self._once(key, path, lambda dump: _finding(dump, finding, _pages(dump, numbers, up)))
            except ShadowgraphError:
                continue
            if made is not None:
                return made
        return None

    def _fullest(self, run: Run) -> tuple[int, Path] | None:
        """Of the process of the newest dump the newest one with the bytes of the most findings: at a program's exit the
        buffers are freed."""
        newest = next(iter(_newest(run)), None)
        if newest is None:
            return None
        pid, most = self._worth(*newest)
        for older in _newest(run, pid)[1:]:
            with suppress(ShadowgraphError):
                whose, worth = self._worth(*older)
                if whose == pid and worth > most:
                    newest, most = older, worth
        return newest

    def _worth(self, date: int, path: Path) -> tuple[int, int]:
        return self._once((date, path), path, lambda dump: (dump.manifest.pid, worth_of(dump)))

    def _holding(self, dumps: list[tuple[int, Path]], serial: int) -> list[tuple[int, Path]]:
        """The dumps that have bytes of a buffer before the others; unreadable ones are left out."""
        holding, others = list[tuple[int, Path]](), list[tuple[int, Path]]()
        for date, path in dumps:
            with suppress(ShadowgraphError):
                held = self._once((date, path, serial), path, lambda dump: serial in held_buffers(dump))
                (holding if held else others).append((date, path))
        return holding + others

    def _once(self, key: tuple[object, ...], path: Path, make: Callable[[Dump], _T]) -> _T:
        with self._lock:
            if key not in self._made:
                with read_dump(path) as dump:
                    made = make(dump)
                while len(self._made) >= _KEPT:
                    del self._made[next(iter(self._made))]
                self._made[key] = made
            return self._made[key]  # type: ignore[return-value]  # made by `make`, under this key


def _newest(run: Run, pid: int | None = None) -> list[tuple[int, Path]]:
    """Dates and paths of the dumps, of one process where `pid` is given and in the name, the newest first."""
    return sorted(_dated(run.dumps, pid), reverse=True)


def _dated(dumps: tuple[Path, ...], pid: int | None) -> Iterator[tuple[int, Path]]:
    for path in dumps:
        parts = path.stem.split("-")
        if pid is not None and len(parts) > 2 and parts[1].isdecimal() and int(parts[1]) != pid:
            continue
        try:
            yield path.stat().st_mtime_ns, path
        except OSError:
            continue  # deleted meanwhile


def _known(finding: Finding) -> _Known:
    return finding.pid, identity(finding)


def _pages(dump: Dump, numbers: dict[_Known, int], up: str) -> Callable[[MapDamage], str]:
    """The page of a finding of a dump; empty for one that the run's report does not have."""
    pages = {
        finding.id: f"{up}finding/{numbers[known]}"
        for finding in dump.manifest.facts.damage
        if (known := _known(finding)) in numbers
    }
    return lambda damage: pages.get(damage.finding, "")


def _about(dump: Dump) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(dump.manifest.time))
    return f"{dump.path.name}, written at {when} (reason: {dump.manifest.reason})"


def _finding(dump: Dump, finding: Finding, page_of: Callable[[MapDamage], str]) -> DumpedFinding | None:
    facts = dump.manifest.facts
    wanted = _known(finding)
    kept = next((each for each in (*facts.damage, *facts.notes) if _known(each) == wanted), None)
    if kept is None:
        return None
    serial = kept.buffer.serial
    home = [buffer for buffer in (*dump.buffers, *dump.freed) if buffer.serial == serial][:1]
    drawn = bar_map(dumped_map(dump, BufferNames(dump), None, home), page_of, _NEAR)
    return DumpedFinding(_about(dump), bytes_of([dump])(finding), drawn)


def _memory(dump: Dump, page_of: Callable[[MapDamage], str]) -> DumpedMemory:
    about, names = dump.manifest, BufferNames(dump)
    found: dict[int, list[str]] = {}
    for finding in about.facts.damage:
        found.setdefault(finding.buffer.serial, []).append(f"{finding.code} (#{finding.id} of this process)")
    graphs = {graph.serial: graph.name for graph in about.graphs}
    order = sorted(dump.buffers, key=lambda buffer: (buffer.serial not in found, -buffer.nbytes))
    shown = sorted(order[:_ROWS], key=lambda buffer: buffer.start)
    rows = (_row(buffer, names, graphs, found) for buffer in shown)
    return DumpedMemory(
        f"Memory of process {about.pid}",
        f"from the dump {_about(dump)}",
        bar_map(dumped_map(dump, names), page_of),
        Table.of("map", _HEADINGS, rows, len(order) - len(shown)),
    )


def _row(buffer: Buffer, names: BufferNames, graphs: dict[int, str], found: dict[int, list[str]]) -> Row:
    role = (
        f"{buffer.role} of {graphs.get(buffer.graph, buffer.graph)}" if buffer.graph is not None else f"{buffer.role}"
    )
    form = f"{names.name(buffer)}  {buffer.dtype}{list(buffer.shape)}"
    bad = ", ".join(found.get(buffer.serial, ()))
    return f"{buffer.start:#x}", buffer.nbytes, buffer.head_guard, buffer.tail_guard, role, bad, form
