"""Owner paths by their parts: whether what a user typed is the end of a path. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache

# ``["key"]``, ``['key']``, ``[0]`` and ``[key]``, ``{0}``, ``.attribute``.
_PART = re.compile(r"""\[("(?:[^"\\]|\\.)*"|'[^']*'|[^\]]*)\]|(\{\d+\})|\.?([^.\[{]+)|[\[{.]""")


@lru_cache(maxsize=1 << 16)  # a verb compares each name of a dump, with each word that it was given
def parts_of(path: str) -> tuple[str, ...]:
    """The steps of a path: ``a.b["c"][0]`` in ``a``, ``b``, ``c``, ``[0]``.

    A key has the same form as an attribute, with quotes or without: a shell removes them.
    """
    return tuple(part for found in _PART.finditer(path) if (part := _part(found)))


def _part(found: re.Match[str]) -> str:
    item, element, attribute = found.groups()
    if item is None:
        return element or attribute or ""
    if item[:1] == '"':
        try:
            return str(json.loads(item))
        except ValueError:
            return item
    if item[:1] == "'":
        return item[1:-1]
    return f"[{item}]" if item.lstrip("-").isdecimal() else item


def rank(path: str) -> tuple[bool, int, str]:
    """Orders paths to the same memory, the best name first: a bare variable, then the shortest path."""
    return len(parts_of(path)) > 1, len(path), path


def is_end(text: str, path: str) -> bool:
    """Whether a text is the last part of a path, or several of them."""
    wanted, parts = parts_of(text), parts_of(path)
    return bool(wanted) and parts[-len(wanted) :] == wanted


def ends_of(paths: Iterable[str]) -> dict[str, str]:
    """By last part the first path that has it."""
    ends: dict[str, str] = {}
    for path in paths:
        parts = parts_of(path)
        if parts:
            ends.setdefault(parts[-1], path)
    return ends
