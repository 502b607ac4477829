"""Static model of an inductor-generated Triton kernel, parsed from its source: parameters, blocks, assertions, copies.

Pure functions of the source text; the kernel is not run.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shadowgraph.localize.index_asserts.values import BeyondError

SAID = "index out of bounds: "
_BLOCK = re.compile(r"([XYZ]|R\d?_?)BLOCK")
_AXES = {"x": 0, "y": 1, "z": 2}
# The only allowed uses of program ids; any other means that the grid is not the plain one.
_PLAIN = {
    "tl.program_id(0) * XBLOCK",
    "tl.program_id(1) * YBLOCK",
    "(tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)) * YBLOCK",
    "tl.program_id(2) * ZBLOCK",
}
_WIDEST, _ACROSS = 1 << 16, 1 << 10  # most lanes of a block, and along a reduction axis


def source_of(function: Any) -> str:
    """The source of a jitted function, from the object where it holds it."""
    held = getattr(function, "src", None)
    return held if isinstance(held, str) else textwrap.dedent(inspect.getsource(getattr(function, "fn", function)))


def definition_of(function: Any) -> ast.FunctionDef:
    """A jitted function's definition.

    Raises
    ------
    BeyondError
        The source is missing, or defines no function.
    """
    try:
        tree = ast.parse(source_of(function))
    except (OSError, TypeError, SyntaxError) as error:
        raise BeyondError("no source") from error
    found = next((node for node in tree.body if isinstance(node, ast.FunctionDef)), None)
    if found is None:
        raise BeyondError("no definition")
    return found


@dataclass(frozen=True, slots=True)
class _Written:
    """A jitted function that is known by its source only, and the other functions of the same file."""

    src: str
    beside: Mapping[str, Any]


def names_of(function: Any, file: str = "") -> Mapping[str, Any]:
    """The functions that a jitted function may call. A function that inductor compiled in another process, or took from
    its cache, has lost its globals; they are then read from the generated file."""
    if isinstance(function, _Written):
        return function.beside
    known = getattr(getattr(function, "fn", function), "__globals__", None)
    return known if known is not None else _defined_in(file)


def _defined_in(file: str) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8")) if file else ast.Module([], [])
    except (OSError, ValueError, SyntaxError):
        return found
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = _Written(ast.unparse(node), found)
    return found


def dotted(node: ast.expr) -> str:
    """``tl.load`` for an expression of that form; empty for any other."""
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return node.id if isinstance(node, ast.Name) else ""


def calls(tree: ast.AST, *names: str) -> Iterator[ast.Call]:
    """Calls of Triton functions with the given names, in order of line."""
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and dotted(node.func) in names)
    yield from sorted(found, key=lambda node: (node.lineno, node.col_offset))


class Kernel:
    """The definition of a compiled kernel.

    Attributes
    ----------
    names
        The parameters that are not constexpr.
    """

    def __init__(self, function: Any, file: str = "") -> None:
        self.body = definition_of(function)
        self.text = ast.unparse(self.body)
        self.globals = names_of(function, file)
        parameters = [*self.body.args.posonlyargs, *self.body.args.args]
        constant = [arg.annotation is not None and "constexpr" in ast.unparse(arg.annotation) for arg in parameters]
        self.names = [arg.arg for arg, fixed in zip(parameters, constant, strict=True) if not fixed]
        self._constants = [arg.arg for arg, fixed in zip(parameters, constant, strict=True) if fixed]

    def blocks(self, numbers: Mapping[str, int]) -> dict[str, int]:
        """Fitting sizes for the blocks that the caller chooses; the kernel's result does not depend on them."""
        chosen: dict[str, int] = {}
        left = _WIDEST
        for name in sorted(self._constants, key=lambda name: not name.startswith("R")):
            found = _BLOCK.fullmatch(name)
            if found is None:
                raise BeyondError(f"no value for {name}")
            chosen[name] = self._fitting(found[1].lower(), numbers, min(left, _ACROSS) if name[0] == "R" else left)
            left = max(1, left // chosen[name])
        return chosen

    def grid(self, numbers: Mapping[str, int], blocks: Mapping[str, int]) -> tuple[int, int, int]:
        """Programs along each axis."""
        self._require_plain_grid()
        counts = [1, 1, 1]
        for letter, axis in _AXES.items():
            if f"tl.program_id({axis})" in self.text and f"{letter.upper()}BLOCK" in self.text:
                block = blocks.get(f"{letter.upper()}BLOCK") or self._fixed(f"{letter.upper()}BLOCK")
                counts[axis] = -(-self._number(f"{letter}numel", numbers) // block)
        return counts[0], counts[1], counts[2]

    def elements(self, numbers: Mapping[str, int]) -> int:
        """Number of elements of all axes together."""
        named = {name for name in (*self.names, *numbers) if re.fullmatch(r"[xyz]numel|r\d?_?numel", name)}
        total = 1
        for name in named:
            total *= self._number(name, numbers)
        return total

    def indexed_by(self, name: str) -> str:
        """The argument that is first read or written at a place that depends on a name; empty where there is none."""
        for call in calls(self.body, "tl.load", "tl.store"):
            place = call.args[0] if call.args else None
            if not (isinstance(place, ast.BinOp) and isinstance(place.left, ast.Name)):
                continue
            if place.left.id in self.names and name in _names(place.right):
                return place.left.id
        return ""

    def copied_into(self, argument: str) -> str:
        """The argument whose elements are copied unchanged to the same places of `argument`; empty where there is
        none."""
        if "tl.atomic" in self.text or self._has_control_flow():
            return ""
        copy = self._only_copy(argument)
        if copy is None:
            return ""
        load, store = copy
        read, written = load.args[0], store.args[0]
        if not (isinstance(read, ast.BinOp) and isinstance(written, ast.BinOp) and isinstance(read.left, ast.Name)):
            return ""
        whole = _names(*load.args[1:], *store.args[2:]) <= {"xmask", "ymask", "zmask"}
        return read.left.id if whole and ast.unparse(read.right) == ast.unparse(written.right) else ""

    def _has_control_flow(self) -> bool:
        return any(isinstance(node, ast.For | ast.If | ast.While) for node in ast.walk(self.body))

    def _only_copy(self, argument: str) -> tuple[ast.Call, ast.Call] | None:
        """The only store to an argument, after the load of what it stores; None where either is anything else."""
        stores = [call for call in calls(self.body, "tl.store") if argument in _names(call.args[0])]
        if len(stores) != 1 or len(stores[0].args) < 2 or not isinstance(stores[0].args[1], ast.Name):
            return None
        load = self._only_load(stores[0].args[1].id)
        return None if load is None else (load, stores[0])

    def _only_load(self, name: str) -> ast.Call | None:
        """The load that gives a name its value; None where the name has any other origin."""
        assigned = (node for node in ast.walk(self.body) if isinstance(node, ast.Assign))
        origins = [node.value for node in assigned if name in _names(*node.targets)]
        only = origins[0] if len(origins) == 1 else None
        return only if isinstance(only, ast.Call) and dotted(only.func) == "tl.load" else None

    def _require_plain_grid(self) -> None:
        seen = 0
        for node in ast.walk(self.body):
            if isinstance(node, ast.Assign) and ast.unparse(node.value).replace(".to(tl.int64)", "") in _PLAIN:
                seen += ast.unparse(node.value).count("tl.program_id")
        if seen != self.text.count("program_id"):
            raise BeyondError("another grid")

    def _fitting(self, axis: str, numbers: Mapping[str, int], most: int) -> int:
        """The smallest power of two that covers an axis, or a smaller one; without a mask it must divide the axis."""
        numel = self._number(f"{axis}numel", numbers)
        size = 1
        while size < numel and size < most:
            size *= 2
        masked = f"{axis}index < {axis}numel" in self.text
        while not masked and numel % size:
            size //= 2
        return size

    def _number(self, name: str, numbers: Mapping[str, int]) -> int:
        return numbers[name] if name in numbers else self._fixed(name)

    def _fixed(self, name: str) -> int:
        """The value that the kernel itself assigns to a name."""
        for node in self.body.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            value = getattr(node, "value", None)
            if not any(isinstance(target, ast.Name) and target.id == name for target in targets):
                continue
            if isinstance(value, ast.Constant) and isinstance(value.value, int) and value.value > 0:
                return value.value
        raise BeyondError(f"no value for {name}")


def _names(*trees: ast.AST) -> set[str]:
    return {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
