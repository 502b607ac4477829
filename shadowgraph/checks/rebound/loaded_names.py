"""The names by which functions take values, by their source: whether code that was captured takes an input by a name.

A name is a chain: ``("self", ".metadata", ".page_table")`` for ``self.metadata.page_table``, ``("x",)`` for a variable,
``["ids"]`` for a constant key, ``[]`` for any other, ``?`` for a start that has no name, such as a call. Sources come
from `linecache`, those of notebook cells from the shell; no code runs. Caches go by a source's text, since the label of
a cell may stand for another one later. Any thread; a race computes an entry twice.
"""

from __future__ import annotations

import ast
import io
import linecache
import re
import textwrap
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from shadowgraph.model.stacks import Stack, cell_source

_LARGEST = 20_000  # lines of a file that is parsed
_Function = ast.FunctionDef | ast.AsyncFunctionDef
Chain = tuple[str, ...]


class Load(NamedTuple):
    """A place where a function takes a value: its name, and the lines of its statement."""

    chain: Chain
    first: int
    last: int


def loads_of(name: Chain, stacks: Iterable[Stack]) -> set[Chain]:
    """The names in functions of these stacks that may be this one: the same, or shorter ones from another start.

    Parameters
    ----------
    name
        A name that starts at an object or variable.
    """
    found: set[Chain] = set()
    for frame in {frame for stack in stacks for frame in stack if _mentions(frame.file, name)}:
        for load in loads_in(frame.file, frame.line, frame.function):
            if len(name) == 1:
                here = load.first <= frame.line <= load.last
                found.update({load.chain} if here and load.chain == name else ())
            elif _may_be(load.chain, name):
                found.add(load.chain)
    return found


def _mentions(file: str, name: Chain) -> bool:
    """Whether a file may have the name, or that of its container."""
    words = [re.sub(r'^\.|^\["?|"?\]$', "", link) for link in name[-2:]]
    text = _text(file)
    return any(word in text for word in words)


def _text(file: str) -> str:
    cell = cell_source(file)
    return _text_of_file(file) if cell is None else cell


@lru_cache(maxsize=32)
def _text_of_file(file: str) -> str:
    return "".join(linecache.getlines(file))


def _may_be(load: Chain, name: Chain) -> bool:
    """Whether a loaded name may be another one, or the container of the item that the other one ends with."""
    return _ends_alike(load, name) or (name[-1].startswith("[") and _holds(load, name[:-1]))


def _ends_alike(load: Chain, name: Chain) -> bool:
    steps = load[1:]
    if not steps or len(steps) >= len(name) or not all(map(_same, steps, name[-len(steps) :])):
        return False
    if load[0] == name[0]:
        return len(load) == len(name)  # a shorter name from the same start is another
    return any(step != "[]" for step in map(_common, steps, name[-len(steps) :]))


def _same(one: str, other: str) -> bool:
    return one == other or (one[0] == other[0] == "[" and "[]" in (one, other))


def _common(one: str, other: str) -> str:
    return one if one == other else "[]"


def _holds(load: Chain, container: Chain) -> bool:
    """Whether a container is taken whole, by a key that is not known, or by one of its methods."""
    if len(container) == 1:
        return load == container or (len(load) == 2 and load[0] == container[0] and not load[1].startswith('["'))
    shorter = load[:-1] if load[-1] == "[]" or load[-1].startswith(".") else load
    return _ends_alike(load, container) or _ends_alike(shorter, container)


def loads_in(file: str, line: int, function: str) -> tuple[Load, ...]:
    """The names that the function around a line loads; empty where its source is not found."""
    return _loads_around(_text(file), line, function)


@lru_cache(maxsize=256)
def _loads_around(text: str, line: int, function: str) -> tuple[Load, ...]:
    place = _block(text, line, function) or _within(text, line, function)
    if place is None:
        return ()
    body, shift = place
    parts = getattr(body, "body", [body])  # without annotations and defaults
    found = (load for part in parts for load in _loads(ast.Module([part], []), 0, 0))
    return tuple(Load(each.chain, each.first + shift, each.last + shift) for each in found)


def _block(text: str, line: int, function: str) -> tuple[ast.AST, int] | None:
    """A function, parsed without the rest of its file, which may be long, and the lines before it. None where its first
    or last line is not easily found."""
    lines, head = io.StringIO(text).readlines(), re.compile(rf"(\s*)(async\s+)?def\s+{re.escape(function)}\b")
    for first in range(min(line, len(lines)) - 1, -1, -1):
        found = head.match(lines[first])
        if found is not None:
            tree = _parsed_text(textwrap.dedent("".join(_indented(lines[first:], len(found[1])))))
            body = tree.body[0] if tree is not None and tree.body else None
            ours = isinstance(body, _Function) and first + (body.end_lineno or 0) >= line
            return (body, first) if body is not None and ours else None
    return None


def _indented(lines: list[str], indent: int) -> Iterator[str]:
    """A block's first line, and the lines below that belong to it by their indentation."""
    for number, line in enumerate(lines):
        bare = line.strip()
        if number and bare and bare[0] not in ")]}#" and len(line) - len(line.lstrip()) <= indent:
            return
        yield line


def _within(text: str, line: int, function: str) -> tuple[ast.AST, int] | None:
    """The same, from the whole file."""
    tree = _parsed(text)
    around = [each for each in ast.walk(tree) if isinstance(each, _Function) and _is_at(each, line)] if tree else []
    named = [each for each in around if each.name == function]
    body: ast.AST | None = max(named, key=lambda each: each.lineno, default=None)
    if body is None and function.startswith("<"):  # a module, or a lambda or comprehension in a function
        body = max(around, key=lambda each: each.lineno, default=tree)
    return (body, 0) if body is not None else None


@lru_cache(maxsize=32)
def _parsed(text: str) -> ast.Module | None:
    return _parsed_text(text) if 0 < text.count("\n") + 1 <= _LARGEST else None


def _parsed_text(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _is_at(function: _Function, line: int) -> bool:
    return function.lineno <= line <= (function.end_lineno or 0)


def _loads(node: ast.AST, first: int, last: int) -> Iterator[Load]:
    """Loads below a node, without those of functions and classes inside, which have frames of their own."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Function | ast.ClassDef):
            continue
        whole = isinstance(child, ast.stmt) and not hasattr(child, "body")
        in_head = isinstance(child, ast.expr) and not first  # of a block
        lines = _lines(child) if whole or in_head else (first, last)
        if isinstance(child, ast.Name | ast.Attribute | ast.Subscript):
            if isinstance(child.ctx, ast.Load):
                yield Load(_chain(child), *lines)
            yield from _loads_inside(child, *lines)
        else:
            yield from _loads(child, *lines)


def _lines(place: Any) -> tuple[int, int]:
    return place.lineno, place.end_lineno or place.lineno


def _loads_inside(place: ast.expr, first: int, last: int) -> Iterator[Load]:
    """Loads in the keys and the start of a name; its links are no loads of their own."""
    while isinstance(place, ast.Attribute | ast.Subscript):
        if isinstance(place, ast.Subscript):
            yield from _loads(ast.Expr(place.slice), first, last)
        place = place.value
    if not isinstance(place, ast.Name):
        yield from _loads(ast.Expr(place), first, last)


def _chain(place: ast.expr) -> Chain:
    if isinstance(place, ast.Name):
        return (place.id,)
    if isinstance(place, ast.Attribute):
        return (*_chain(place.value), f".{place.attr}")
    if isinstance(place, ast.Subscript):
        key = place.slice
        known = isinstance(key, ast.Constant) and isinstance(key.value, str)
        return (*_chain(place.value), f'["{key.value}"]' if known else "[]")  # type: ignore[attr-defined]
    return ("?",)
