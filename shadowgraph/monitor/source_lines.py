"""Source lines of a finding: the text at its innermost launch and allocation lines, read when the finding is built.

Called by `FindingPipeline`, in the thread of an event. A file is read at most once a line, and only up to that line; no
failure to read one is an error. Text is left out where the file may be another one than the running code was made from:
where it is younger than the process. Redaction drops the text, since a line may contain a key or a prompt.
"""

from __future__ import annotations

import os
import stat
import time
from functools import lru_cache
from itertools import islice

from msgspec.structs import replace

from shadowgraph.checks.kinds import kind_of
from shadowgraph.model.findings import Culprit, Finding
from shadowgraph.model.stacks import Frame, Stack, cell_source

_LINES = 4096  # lines that are remembered
_LARGEST = 4 << 20  # bytes of a file
_WIDEST = 120  # characters of a line


def _process_start() -> float:
    """When this process began, in seconds since 1970; now, where the system does not tell."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rsplit(b")", 1)[1].split()[19])
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return time.time()


_STARTED = _process_start()  # also in forked children: their code may be older than they are


def with_source_lines(finding: Finding) -> Finding:
    """The finding with the text of the innermost lines that allocated and freed its buffer and launched its culprit."""
    buffer = replace(finding.buffer, allocated_source=_innermost(finding.buffer.allocated))
    detail = finding.detail
    if detail is not None:
        detail = kind_of(finding.code).with_text(detail, source_line)
    return replace(finding, buffer=buffer, culprit=with_source_line(finding.culprit), detail=detail)


def with_source_line(culprit: Culprit) -> Culprit:
    """The culprit with the text of the line that launched it, and of the line that stored."""
    stored = culprit.stored_by
    if stored is not None:
        culprit = replace(culprit, stored_by=replace(stored, text=source_line(stored.line)))
    return replace(culprit, launched_source=_innermost(culprit.stack)) if culprit.stack else culprit


def _innermost(stack: Stack) -> str:
    return source_line(stack[0]) if stack else ""


def source_line(frame: Frame) -> str:
    """The text of a frame's line, stripped and cut; empty where it is not known for sure."""
    cell = cell_source(frame.file)
    if cell is None:
        return _read(frame.file, frame.line)
    lines = cell.splitlines()
    return _shown(lines[frame.line - 1]) if 0 < frame.line <= len(lines) else ""


@lru_cache(_LINES)
def _read(file: str, line: int) -> str:
    try:
        facts = os.stat(file)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _LARGEST or facts.st_mtime > _STARTED or line < 1:
            return ""
        with open(file, encoding="utf-8", errors="replace") as opened:
            return _shown(next(islice(opened, line - 1, line), ""))
    except (OSError, ValueError):
        return ""


def _shown(text: str) -> str:
    plain = "".join(each if each.isprintable() else " " for each in text).strip()
    return plain if len(plain) <= _WIDEST else f"{plain[: _WIDEST - 3]}..."
