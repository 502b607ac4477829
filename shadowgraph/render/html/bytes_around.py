"""Byte tables of findings on HTML pages: the bytes that dumps hold around each finding."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from shadowgraph.dumps.reader import Dump
from shadowgraph.model.findings import Finding
from shadowgraph.render.html.hexdump import HexTable, table
from shadowgraph.render.text.bytes_text import byte_notes
from shadowgraph.views.byte_dump import dumped_buffer
from shadowgraph.views.byte_rows import ByteRow
from shadowgraph.views.dumped_rows import ByteLine, dumped_rows

_ROWS = 2_400  # for a whole page: later findings show only the bytes that they kept themselves
_Key = tuple[int, int, str, str]


def bytes_of(dumps: Sequence[Dump]) -> Callable[[Finding], HexTable | None]:
    """A function from a finding of these dumps, or of the run that left them, to the bytes around it.

    It returns None for a finding without bytes or with a buffer in no dump, and when the page has enough rows.
    """
    known: dict[_Key, tuple[Dump, Finding]] = {}
    for dump in dumps:
        for finding in (*dump.manifest.facts.findings, *dump.manifest.facts.notes):
            known[_key(finding, dump.manifest.pid)] = dump, finding
    room = _ROWS

    def around(finding: Finding) -> HexTable | None:
        nonlocal room
        found = known.get(_key(finding, finding.pid))
        if found is None or finding.bytes is None or room <= 0:
            return None
        made = _table(*found, finding.id)
        room -= len(made.lines) if made is not None else 0
        return made

    return around


def _key(finding: Finding, pid: int) -> _Key:
    return pid, finding.buffer.serial, finding.fingerprint, str(finding.bytes.side if finding.bytes else "")


def _table(dump: Dump, finding: Finding, shown_as: int) -> HexTable | None:
    serial, start = finding.buffer.serial, finding.buffer.address
    buffer = next((b for b in (*dump.buffers, *dump.freed) if b.serial == serial), None)
    if buffer is None or buffer.start != start:  # offsets of a finding on a part count from the start of that part
        return None
    held = dumped_buffer(dump, buffer, dump.names.name(buffer), finding, None, None)
    own = tuple(mark for mark in held.marks if mark.finding == finding.id)[:1]  # not the changes of other findings
    rows = [_renumbered(row, shown_as) for row in dumped_rows(msgspec.structs.replace(held, marks=own), held.dtype)]
    if not rows:
        return None
    command = f"shadowgraph hexdump {shlex.quote(str(dump.path))} {start:#x} --around {finding.id}"
    return table(f"{held.name} as the dump has it", rows, byte_notes(held), command)


def _renumbered(row: ByteLine, shown_as: int) -> ByteLine:
    """The row with the finding's id in the run's report, which numbers findings anew over all processes."""
    return replace(row, finding=shown_as) if isinstance(row, ByteRow) and row.finding is not None else row
