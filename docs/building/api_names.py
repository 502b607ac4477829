"""The names that a page of the API documents, each with the first sentence of its docstring: what the page says where
Sphinx has not built it."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

from building.markdown import markdown_of, table
from building.repository import ROOT

_LINE = re.compile(r"^\.\. (currentmodule|auto\w+):: ([\w.]+)$", re.MULTILINE)


def api_names(page: str) -> str:
    """A table of the names on a page in ``docs/api``; each leads to the file that defines it."""
    text = (ROOT / "docs" / "api" / f"{page}.md").read_text("utf-8")
    return table(("name", "what it is"), [_row(name) for name in documented(text)])


def documented(text: str) -> Iterator[str]:
    """Full dotted names of the objects that the directives of a page name; modules themselves are left out."""
    module = ""
    for kind, name in _LINE.findall(text):
        if kind == "currentmodule":
            module = name
        elif kind != "automodule":
            yield name if name.startswith("shadowgraph.") else f"{module}.{name}"


def _row(name: str) -> tuple[str, str]:
    home, _, own = name.rpartition(".")
    value: Any = getattr(importlib.import_module(home), own)
    is_object = not (inspect.isclass(value) or inspect.isroutine(value))
    source = type(value) if is_object else inspect.unwrap(value)
    text = f"A `{type(value).__name__}`." if is_object else inspect.getdoc(value) or ""
    summary = markdown_of(" ".join(text.split("\n\n")[0].split()))
    shown = name.removeprefix("shadowgraph.") if home == "shadowgraph" else name
    return f"[`{shown}`](../../{_below_root(inspect.getsourcefile(source))})", re.sub(
        r"(?<!`)`~?([\w.]+)`(?!`)", r"`\1`", summary
    )


def _below_root(file: str | None) -> str:
    return str(file).removeprefix(f"{ROOT}/")
