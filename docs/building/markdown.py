"""Small pieces of Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]], figures: bool = False) -> str:
    """A table; bars within cells are escaped. `figures`: all but the first column hold numbers."""
    lines = [head, ["---", *(["---:" if figures else "---"] * (len(head) - 1))], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines)


def code(text: str) -> str:
    return f"`{text}`"


def markdown_of(docstring: str) -> str:
    """A docstring's text, whose literals have two backticks and whose names one, as Markdown."""
    return re.sub(r"``([^`]+)``", r"`\1`", docstring)
