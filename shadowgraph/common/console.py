"""The rich console that reports and commands print to."""

from __future__ import annotations

import os
import sys
from typing import IO

from rich.console import Console

# Control characters, surrogates, and characters that reverse the direction of writing.
_ORDERS = dict.fromkeys(
    (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000)), "\ufffd"
)


def tame(text: str) -> str:
    """Neutralise control characters in a text from an untrusted file: no terminal escapes, no line breaks."""
    return text.translate(_ORDERS)


class PlainConsole(Console):
    """Does not wrap or highlight. A closed reader raises `BrokenPipeError`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console(file: IO[str] | None = None) -> PlainConsole:
    """A console on a stream, standard output by default."""
    # In a notebook rich would emit every line as its own display and ignore `file`.
    return PlainConsole(file=file or sys.stdout, soft_wrap=True, highlight=False, markup=False, force_jupyter=False)


def silence_stdout() -> None:
    """After a broken pipe: redirect standard output to the null device, so that the flush at exit succeeds."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
