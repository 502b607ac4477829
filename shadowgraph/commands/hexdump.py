"""Show the bytes that a dump holds of a buffer, with their values, guards, and what findings saw change."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING

from shadowgraph.commands.opening import (
    add_source,
    find_finding,
    fitting_dumps,
    made_up,
    present,
    settle_source,
    sought,
)
from shadowgraph.common.errors import UsageError
from shadowgraph.common.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shadowgraph.dumps.reader import Dump
    from shadowgraph.model.findings import Finding

HELP = "show the bytes of a buffer, around a finding or from a place on"
_MOST = 1 << 20  # bytes at once: each takes about a hundred in memory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser, "whose bytes")
    parser.add_argument("--around", type=int, metavar="ID", help="the bytes around those of a finding")
    parser.add_argument("--start", type=_number, metavar="BYTE", help="from here on; below 0 in the guard before it")
    parser.add_argument("--count", type=_number, metavar="BYTES", help="so many bytes")
    parser.add_argument("--dtype", metavar="DTYPE", help="decode values as this (default: the buffer's own)")


def _number(text: str) -> int:
    return int(text, 0)


def run(args: argparse.Namespace) -> int:
    """Print the bytes; an unknown buffer is an error, a buffer without dumped bytes is none."""
    from shadowgraph.dumps.naming import BufferNames
    from shadowgraph.render.text.bytes_text import BytesReport
    from shadowgraph.views.byte_dump import dumped_buffer

    settle_source(args, "hexdump", required=True)
    _require(args)
    with ExitStack() as opened:
        dumps = fitting_dumps(args.path, opened, args.pid, args.around, args.buffer)
        with made_up(args.path, "list"):
            books = [BufferNames(dump) for dump in dumps]
            found = sought(args.buffer, books)
            around = None if args.around is None else _finding(dumps, args.around)
            shown = [
                dumped_buffer(dump, buffer, book.name(buffer), around, args.start, args.count)
                for dump, book, buffers in zip(dumps, books, found, strict=True)
                for buffer in reversed(buffers)
                if around is None or _is_of(around, buffer.serial, dump, dumps)
            ]
        if not shown and around is not None:
            raise UsageError(f"finding #{args.around} is about {around.buffer.name}, not about {args.buffer!r}")
        present(BytesReport(shown, args.dtype, _whole(around)), args.json, args.path, "list")
    return 0


def _require(args: argparse.Namespace) -> None:
    from shadowgraph.views.byte_values import DTYPES

    if args.dtype is not None and args.dtype not in DTYPES:
        near = did_you_mean(args.dtype, DTYPES)
        raise UsageError(f"no dtype {args.dtype!r}{near}; dtypes are: {', '.join(DTYPES)}")
    if args.count is not None and not 0 <= args.count <= _MOST:
        raise UsageError(f"--count must be from 0 to {_MOST:,}, not {args.count:,}")
    if args.around is not None and (args.start is not None or args.count is not None):
        raise UsageError("--around says where to look: it goes without --start and --count")


def _finding(dumps: Sequence[Dump], wanted: int) -> Finding:
    """The finding with an id.

    Raises
    ------
    UsageError
        When there is none, or when several processes have one.
    """
    _, finding = find_finding(dumps, wanted)
    return finding


def _whole(around: Finding | None) -> str:
    """What is shown of a finding that is about no bytes of its own; empty for any other."""
    if around is None or around.bytes is not None:
        return ""
    return f"finding #{around.id} ({around.code}) is about the whole buffer: its bytes from the start"


def _is_of(finding: Finding, serial: int, dump: Dump, dumps: Sequence[Dump]) -> bool:
    """Whether a finding is about a buffer of this process."""
    facts = dump.manifest.facts
    return finding.buffer.serial == serial and (
        len(dumps) == 1 or any(each is finding for each in (*facts.findings, *facts.notes))
    )
