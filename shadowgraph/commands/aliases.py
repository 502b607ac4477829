"""List who shares memory with whom: groups of owners with common bytes, and what each is of the widest."""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from shadowgraph.commands.opening import add_source, latest_dumps, made_up, present, settle_source, sought

HELP = "list owners that share bytes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser, "only its group")


def run(args: argparse.Namespace) -> int:
    """Print the groups; no group is no error, an unknown buffer is one."""
    from shadowgraph.dumps.naming import BufferNames
    from shadowgraph.render.text.aliases_text import AliasesReport
    from shadowgraph.views.alias_list import alias_list

    settle_source(args, "aliases")
    with ExitStack() as opened:
        dumps = latest_dumps(args.path, opened, args.pid)
        with made_up(args.path, "list"):
            books = [BufferNames(dump) for dump in dumps]
            wanted = [None for _ in books] if args.buffer is None else sought(args.buffer, books)
            groups = [
                group
                for dump, book, buffers in zip(dumps, books, wanted, strict=True)
                for group in alias_list(dump, book, buffers)
            ]
        present(AliasesReport(groups, args.buffer), args.json, args.path, "list")
    return 0
