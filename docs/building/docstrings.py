"""Attributes of classes are listed with the types that the class has for them, so that these stand in one place."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx

_ENTRY = re.compile(r"^(\w+(?:, \w+)*)(?: : .*)?$")


def listed(lines: list[str], annotations: dict[str, str]) -> list[str]:
    """The docstring with its Attributes section, and each annotated field beside them, as one list at its end.

    Parameters
    ----------
    lines
        A docstring without indentation.
    annotations
        Types of the class's fields, in order.
    """
    rest, told = _split(lines)
    fields = [name for name in annotations if not name.startswith("_")]
    groups = {name: names for names in told for name in names}
    rows = list[str]()
    for names in dict.fromkeys([groups.get(name, (name,)) for name in fields] + list(told)):
        types = list(dict.fromkeys(annotations[name] for name in names if name in annotations))
        of = f" (``{', '.join(types)}``)" if types else ""
        said = f": {told[names]}" if told.get(names) else ""
        rows.append(f"* {', '.join(f'**{name}**' for name in names)}{of}{said}")
    return [*rest, "", ".. rubric:: Attributes", "", *rows, ""] if rows else lines


def _split(lines: list[str]) -> tuple[list[str], dict[tuple[str, ...], str]]:
    """Lines without the Attributes section, and the text of each of its entries by the names that share it."""
    rest, told, names, within = list[str](), dict[tuple[str, ...], str](), tuple[str, ...](), False
    for line, starts in _sections(lines):
        within = line.strip() == "Attributes" if starts else within
        if not within:
            rest.append(line)
        elif not starts and (entry := _ENTRY.match(line)):
            names = tuple(entry[1].split(", "))
            told[names] = ""
        elif line.startswith(" "):
            told[names] = f"{told[names]} {line.strip()}".strip()
    return rest, told


def _sections(lines: list[str]) -> Iterator[tuple[str, bool]]:
    """Each line, and whether a section begins with it."""
    for line, after in zip(lines, [*lines[1:], ""], strict=False):
        yield line, bool(line.strip()) and set(after.strip()) == {"-"}


def _process(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    if what in ("class", "exception"):
        known: dict[str, str] = {}
        for base in reversed(thing.__mro__):
            if base.__module__.startswith("shadowgraph"):
                known |= {key: str(text) for key, text in inspect.get_annotations(base).items()}
        lines[:] = listed(lines, {key: text for key, text in known.items() if not text.startswith("ClassVar")})


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", _process, priority=400)  # before napoleon reads the sections
