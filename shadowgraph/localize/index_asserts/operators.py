"""Operators of a kernel's code: Python semantics between constants, device semantics otherwise."""

from __future__ import annotations

import ast
from typing import Any

from shadowgraph.localize.index_asserts.operations import scalar
from shadowgraph.localize.index_asserts.values import BeyondError, Value, binary, lifted, unary

OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%", ast.LShift: "<<", ast.RShift: ">>",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.Eq: "==", ast.NotEq: "!=", ast.USub: "-", ast.Invert: "~",
}  # fmt: skip
_CONSTANT: dict[str, Any] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "//": lambda a, b: a // b,
    "%": lambda a, b: a % b, "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip


def apply(operator: ast.AST, one: Any, other: Any) -> Any:
    """``one operator other``.

    Raises
    ------
    ValueError
        For constants that are not integers, or an operator that is not listed here.
    """
    said = OPERATORS.get(type(operator), "")
    if isinstance(one, Value) or isinstance(other, Value):
        return binary(said, one, other)
    if said in _CONSTANT and isinstance(one, int) and isinstance(other, int) and max(abs(one), abs(other)) < 1 << 64:
        return _CONSTANT[said](one, other)
    raise ValueError("constants of another kind")


def apply_alone(operator: ast.unaryop, operand: Any) -> Any:
    """``operator operand``."""
    if isinstance(operator, ast.USub) and isinstance(operand, int | float):
        return -operand
    if isinstance(operator, ast.Not):
        return not scalar(operand)
    return unary(OPERATORS.get(type(operator), ""), lifted(operand))


def leads(operand: object) -> bool:
    """Whether an operand may be a pointer, or hold one."""
    if isinstance(operand, tuple):
        return any(map(leads, operand))
    return isinstance(operand, Value) and bool(operand.pointer)


def sure(operand: Any) -> int:
    """The value of a condition or loop bound, which must be known.

    Raises
    ------
    BeyondError
        The value is unknown.
    """
    try:
        return scalar(operand)
    except ValueError as error:
        raise BeyondError("control flow that is not known") from error
