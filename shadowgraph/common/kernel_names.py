"""Demangled kernel names, which may take several lines, shortened to a given width."""

from __future__ import annotations

from collections.abc import Iterator

_LEAST = 8
_DEEPEST = 4


def brief(name: str, width: int) -> str:
    """A name in at most `width` characters (not below 8): without parameters and `void` first, then with fewer and
    fewer template arguments, at last cut in the middle."""
    width = max(width, _LEAST)
    if len(name) <= width:
        return name
    for shorter in _shorter(name):
        if len(shorter) <= width:
            return shorter
    head = (width - 3) // 2
    return f"{shorter[:head]}...{shorter[len(shorter) - (width - 3 - head) :]}"


def _shorter(name: str) -> Iterator[str]:
    name = _without_parameters(name)
    yield name
    name = name.removeprefix("void ")
    yield name
    for depth in range(_DEEPEST, -1, -1):
        yield _elided(name, depth)


def _without_parameters(name: str) -> str:
    """The function name without its trailing parameter list."""
    if not name.endswith(")"):
        return name
    depth = 0
    for place in range(len(name) - 1, 0, -1):
        depth += (name[place] == ")") - (name[place] == "(")
        if not depth:
            return name[:place] if name[place - 1] not in ": " else name  # no parameters
    return name


def _elided(name: str, deepest: int) -> str:
    """The name with ``<...>`` for template arguments nested deeper than `deepest`."""
    kept: list[str] = []
    depth = 0
    for place, letter in enumerate(name):
        if letter == ">" and depth and name[place - 1] != "-":  # not an arrow's
            depth -= 1
        if depth <= deepest:
            kept.append(letter)
        if letter == "<":
            if depth == deepest:
                kept.append("...")
            depth += 1
    return "".join(kept)
