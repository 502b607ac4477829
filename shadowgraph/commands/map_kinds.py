"""Kinds of map of the verb `map`: for each, how it is built, drawn into a file, and shown as text."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shadowgraph.commands.opening import find_finding, sought
from shadowgraph.common.errors import NothingToDrawError, UnknownBufferError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from shadowgraph.commands.opening import Presentable
    from shadowgraph.dumps.naming import BufferNames
    from shadowgraph.dumps.reader import Dump
    from shadowgraph.views.source import Source


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of map.

    Attributes
    ----------
    options
        Its options out of ``graph``, ``buffer`` and ``finding``.
    make
        Builds the map of one process.
    save
        Draws it into a file.
    report
        Builds the text report of several processes' maps.
    title
        Title of a picture, before the process id.
    """

    options: tuple[str, ...]
    make: Callable[[Source, argparse.Namespace], Any]
    save: Callable[..., Path]
    report: Callable[[Sequence[tuple[Dump, Any]], argparse.Namespace], Presentable]
    title: Callable[[Any], str]


def kind_of(name: str) -> Kind:
    """The kind with a name, other than ``memory``."""
    return {"aliases": _aliases, "writes": _writes, "bytes": _bytes, "rows": _rows}[name]()


def require_options(name: str, args: argparse.Namespace) -> None:
    """Refuse an option without effect for a kind.

    Raises
    ------
    UsageError
    """
    taken = ("graph", "buffer", "finding") if name == "memory" else kind_of(name).options
    for option in ("graph", "buffer", "finding"):
        if getattr(args, option) is not None and option not in taken:
            known = ", ".join(f"--{each}" for each in taken)
            raise UsageError(f"--kind {name} goes without --{option}; it takes {known}")


def sources(dumps: Sequence[Dump], args: argparse.Namespace) -> list[Source]:
    """The dumps that hold the requested finding and buffer.

    Raises
    ------
    UsageError, UnknownBufferError
        For a finding or a buffer in no dump.
    """
    from shadowgraph.dumps.naming import BufferNames
    from shadowgraph.views.source import Source

    if args.finding is not None:
        dumps = [find_finding(dumps, args.finding)[0]]
    books: list[BufferNames] = [BufferNames(dump) for dump in dumps]
    having = [True for _ in books] if args.buffer is None else list(map(bool, sought(args.buffer, books)))
    return [Source(dump, book) for dump, book, has in zip(dumps, books, having, strict=True) if has]


def made(kind: Kind, found: Sequence[Source], args: argparse.Namespace) -> list[tuple[Dump, Any]]:
    """The map of each process; a process without one is left out unless all are without.

    Raises
    ------
    UsageError
        The first process's error, when no map can be built.
    """
    maps, refused = [], []
    for source in found:
        try:
            maps.append((source.dump, kind.make(source, args)))
        except (UsageError, UnknownBufferError, NothingToDrawError) as error:
            refused.append(error)
    if not maps and refused:
        raise refused[0]
    return maps


def _aliases() -> Kind:
    from shadowgraph.render.plots.alias_map import save_alias_map
    from shadowgraph.render.text.aliases_text import AliasesReport
    from shadowgraph.views.alias_list import AliasGroup, alias_list
    from shadowgraph.views.alias_map import AliasMap

    def groups(maps: Sequence[tuple[Dump, AliasMap]], args: argparse.Namespace) -> Iterator[AliasGroup]:
        for source in sources([dump for dump, _ in maps], args):
            wanted = source.buffers(args.buffer) if args.buffer is not None else None
            if args.finding is not None and wanted is None:
                wanted = source.buffers(hex(source.finding(args.finding).buffer.address))
            yield from alias_list(source.dump, source.book, wanted)

    return Kind(
        ("buffer", "finding"),
        lambda source, args: AliasMap.of(source, buffer=args.buffer, finding=args.finding),
        save_alias_map,
        lambda maps, args: AliasesReport(list(groups(maps, args)), args.buffer),
        lambda _: "Alias map",
    )


def _writes() -> Kind:
    from shadowgraph.render.plots.write_map import save_write_map
    from shadowgraph.render.text.writes_text import DumpedWrites, WritesReport
    from shadowgraph.views.write_map import WriteMap

    return Kind(
        ("graph", "buffer", "finding"),
        lambda source, args: WriteMap.of(source, args.graph, finding=args.finding, buffer=args.buffer),
        save_write_map,
        lambda maps, args: WritesReport([DumpedWrites(d.manifest.pid, str(d.path), m) for d, m in maps], args.limit),
        lambda map: f"Write map of {map.graph}",
    )


def _rows() -> Kind:
    from shadowgraph.render.plots.row_map import save_row_map
    from shadowgraph.render.text.rows_text import DumpedRows, RowsReport
    from shadowgraph.views.row_map import RowMap

    return Kind(
        ("graph", "buffer", "finding"),
        lambda source, args: RowMap.of(source, args.graph, finding=args.finding, buffer=args.buffer),
        save_row_map,
        lambda maps, args: RowsReport([DumpedRows(d.manifest.pid, str(d.path), m) for d, m in maps], args.limit),
        lambda _: "Rows of static inputs",
    )


def _bytes() -> Kind:
    from shadowgraph.render.plots.byte_map import save_byte_map
    from shadowgraph.render.text.bytes_text import BytesReport
    from shadowgraph.views.byte_map import ByteMap, shown_bytes

    return Kind(
        ("buffer", "finding"),
        lambda source, args: ByteMap.of(source, finding=args.finding, buffer=args.buffer),
        save_byte_map,
        lambda maps, args: BytesReport(
            [shown_bytes(source, args.finding, args.buffer)[0] for source in sources([d for d, _ in maps], args)]
        ),
        lambda map: f"Bytes of {map.name}",
    )
