"""Output of verbs: one JSON document for any pipe, or lines for a terminal."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator
from typing import IO, Any

import msgspec
from rich.console import Console
from rich.text import Text

from shadowgraph.common.console import console, tame
from shadowgraph.common.html_repr import HtmlRepr

PROSE = 100  # columns of running text outside of a terminal


class Reporter(HtmlRepr):
    """Data, ready to be shown; a subclass defines its schema, its document and its lines."""

    schema = ""

    def document(self) -> dict[str, Any]:
        """Contents of the JSON document beside its schema: structs, sequences, plain values."""
        raise NotImplementedError

    def lines(self, width: int | None = None) -> Iterator[Text]:
        """Every line; `width` is the terminal's width to wrap to, None to keep names whole."""
        raise NotImplementedError

    def print(self, file: IO[str] | None = None) -> None:
        """Write the lines; wrapped and with colour only where `file` (standard output) is a terminal."""
        out = console(file)
        show(self.lines(width_of(out)), out)

    def to_json(self) -> str:
        """One JSON document."""
        return json_text({"schema": self.schema, **self.document()})

    def __str__(self) -> str:
        return "".join(f"{line.plain}\n" for line in self.lines())


def json_text(document: Any) -> str:
    """An indented document in ASCII, which any terminal and pipe can take."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    return text if text.isascii() else json.dumps(json.loads(text), indent=2)


def width_of(out: Console) -> int | None:
    """The columns of a terminal, None for anything else."""
    return out.width if out.is_terminal else None


def show(lines: Iterable[Text], out: Console) -> None:
    """Print lines; without colour they bypass the console, which is slow for 10,000 of them."""
    if not out.is_terminal:
        for line in lines:
            out.file.write(f"{line.plain}\n")
        return
    with out:  # one write: a notebook makes an output of each
        for line in lines:
            out.print(line)


def said(text: str, style: str = "") -> Text:
    """A line with control characters neutralised, whatever a dump's names contain."""
    return Text(tame(text), style=style)


def prose(text: str, width: int | None, indent: str = "") -> Iterator[Text]:
    """Running text, wrapped."""
    room = max(20, min(width or PROSE, PROSE) - len(indent))
    for line in textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False):
        yield said(f"{indent}{line}")


def cut(lines: Iterable[Text], most: int, what: str) -> Iterator[Text]:
    """The first lines, and the number of the rest."""
    kept = list(lines)
    yield from kept[:most]
    if len(kept) > most:
        yield said(f"  ... and {len(kept) - most:,} more {what}", "dim")
