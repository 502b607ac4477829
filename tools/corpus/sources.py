"""Where programs come from: each source lists ids and makes a program of one. A source is imported when it is used."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from corpus.env import Program

# Module of each source; slow ones early, so that a run's end is not one worker alone.
_MODULES = {
    "patterns": "patterns",
    "optim": "optimizers",
    "modules": "modules",
    "vision": "vision",
    "hf": "language_models",
    "fuzz": "fuzz",
    "ops": "ops",
}
SOURCES = tuple(_MODULES)
ALWAYS = "patterns"  # of which a sample takes all


class Made(NamedTuple):
    """A program, and whether its replays may be compared with eager work."""

    program: Program
    eager_ok: bool


def source_of(pid: str) -> str:
    """The source of a program's id."""
    return pid.split("/", 1)[0]


def make(pid: str) -> Made:
    """The program with an id."""
    function: Callable[[str], Made] = import_module(f"corpus.{_MODULES[source_of(pid)]}").program
    return function(pid)


def all_ids(sources: Iterable[str], pattern: str = "", sample: int = 1) -> list[str]:
    """The ids of these sources that match a pattern; of a sample one in `sample` of each source, and all patterns."""
    found: list[str] = []
    for name in sources:
        ids = import_module(f"corpus.{_MODULES[name]}").ids()
        found += [pid for pid in ids if name == ALWAYS or zlib.crc32(pid.encode()) % sample == 0]
    return [pid for pid in found if re.search(pattern, pid)]
