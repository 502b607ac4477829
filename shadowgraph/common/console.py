"""The console that reports and commands print to."""

from __future__ import annotations

import os
import sys
from typing import IO

from rich.console import Console

# Characters that a terminal obeys instead of showing, and those that turn the direction of writing.
_ORDERS = dict.fromkeys(
    (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000)), "\ufffd"
)


def tame(text: str) -> str:
    """A text from a file that anybody may have made, so that it gives a terminal no orders and stays on its line."""
    return text.translate(_ORDERS)


class PlainConsole(Console):
    """Wraps nothing and highlights nothing. A reader that goes away is a `BrokenPipeError`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console(file: IO[str] | None = None) -> PlainConsole:
    """A console on a stream, standard output by default."""
    # In a notebook rich would send every line as a display of its own and ignore `file`.
    return PlainConsole(file=file or sys.stdout, soft_wrap=True, highlight=False, markup=False, force_jupyter=False)


def silence_stdout() -> None:
    """After a broken pipe: let the interpreter flush into nothing at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
