"""Demangled names of kernels, which may take lines, in the width that there is."""

from __future__ import annotations

from collections.abc import Iterator

_LEAST = 8
_DEEPEST = 4


def brief(name: str, width: int) -> str:
    """A name in at most `width` characters (not below 8): first without parameters and `void`, then with ever less of
    its template arguments, at last cut in the middle."""
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
    """A function's name without the parameter list at its end."""
    if not name.endswith(")"):
        return name
    depth = 0
    for place in range(len(name) - 1, 0, -1):
        depth += (name[place] == ")") - (name[place] == "(")
        if not depth:
            return name[:place] if name[place - 1] not in ": " else name  # `(anonymous namespace)` is none
    return name


def _elided(name: str, deepest: int) -> str:
    """A name with ``<...>`` for template arguments that lie in more than so many others."""
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
