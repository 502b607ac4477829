"""Interpreter for the source of a Triton kernel: runs its programs on the host, as far as values follow from the
copies.

No kernel code is executed as Python. The result of an operation that is not listed here is unknown; control flow that
depends on an unknown value ends the run. Called after the device was lost, in the thread that reports; takes no lock.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shadowgraph.localize.index_asserts.kernel import definition_of, dotted, names_of
from shadowgraph.localize.index_asserts.memory import Memory
from shadowgraph.localize.index_asserts.operations import FUNCTIONS, METHODS, folded, reshaped, scalar
from shadowgraph.localize.index_asserts.operators import apply, apply_alone, leads, sure
from shadowgraph.localize.index_asserts.values import (
    DTYPES,
    OTHER,
    BeyondError,
    Dtype,
    Value,
    lifted,
    unknown,
    value_of,
)

WORK = 1 << 26  # lanes computed
SECONDS = 2.0  # CPU time of this thread: a busy machine must not change the answer
_DEEP = 8  # helpers inside helpers
_NOT_UNDERSTOOD = (
    ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError, ArithmeticError,
)  # fmt: skip
_HARMLESS = {"tl.debug_barrier", "tl.assume", "tl.static_assert", "tl.static_print"}
_RANGES = {"range", "tl.range", "tl.static_range"}


class _Returned(Exception):
    def __init__(self, value: object) -> None:
        self.value = value


class Evaluator:
    """Evaluator of one launch of a kernel.

    Attributes
    ----------
    program
        Program id along each axis.
    """

    def __init__(self, memory: Memory, names: Mapping[str, Any], grid: tuple[int, int, int]) -> None:
        self.memory, self._globals, self._grid = memory, names, grid
        self.program = (0, 0, 0)
        self._spent, self._until = 0, time.thread_time() + SECONDS
        self._depth = 0

    def asserted(self, node: ast.Call, names: dict[str, object]) -> None:
        """The run meets an assertion; `names` holds the values of the names there."""

    def run(self, body: list[ast.stmt], names: dict[str, object]) -> None:
        """Run statements.

        Raises
        ------
        BeyondError
            The following values are no longer known, or the work limit is reached.
        """
        for statement in body:
            self._spend(1)
            self._execute(statement, names)

    def _execute(self, statement: ast.stmt, names: dict[str, object]) -> None:
        assignment = _assignment(statement)
        if assignment is not None:
            target, value = assignment
            self._assign(target, self.value(value, names), names)
            return
        match statement:
            case ast.Expr():
                self.value(statement.value, names)
            case ast.For(orelse=[]):
                self._loop(statement, names)
            case ast.If():
                taken = sure(self.value(statement.test, names))
                self.run(statement.body if taken else statement.orelse, names)
            case ast.Return() if self._depth:
                raise _Returned(None if statement.value is None else self.value(statement.value, names))
            case ast.Pass():
                pass
            case _:
                raise BeyondError("a statement of another kind")

    def value(self, node: ast.expr, names: dict[str, object]) -> Any:
        """The value of an expression; unknown, and possibly a pointer, where the expression is not supported."""
        try:
            with np.errstate(all="ignore"):
                found = self._value(node, names)
        except _NOT_UNDERSTOOD:
            if isinstance(node, ast.Call) and dotted(node.func) == "tl.store":
                self.memory.forget()
            return unknown(pointer=OTHER)
        if isinstance(found, Value):
            self._spend(found.data.size)
        return found

    def _spend(self, work: int) -> None:
        self._spent += work
        if self._spent > WORK or time.thread_time() > self._until:
            raise BeyondError("too much work")

    def _assign(self, target: ast.expr, value: object, names: dict[str, object]) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            fits = isinstance(value, tuple) and len(value) == len(target.elts)
            for place, each in enumerate(target.elts):
                self._assign(each, value[place] if fits and isinstance(value, tuple) else unknown(pointer=OTHER), names)
        else:
            raise BeyondError("a target of another kind")

    def _loop(self, loop: ast.For, names: dict[str, object]) -> None:
        if not isinstance(loop.iter, ast.Call) or dotted(loop.iter.func) not in _RANGES:
            raise BeyondError("a loop of another kind")
        for number in range(*(sure(self.value(node, names)) for node in loop.iter.args)):
            self._assign(loop.target, value_of(number, "int32"), names)
            self.run(loop.body, names)

    def _value(self, node: ast.expr, names: dict[str, object]) -> Any:  # noqa: C901  a branch a kind of expression
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return names[node.id] if node.id in names else self._helper(node.id)
            case ast.Tuple() | ast.List():
                return tuple(self.value(each, names) for each in node.elts)
            case ast.Attribute():
                return self._attribute(node, names)
            case ast.Subscript():
                return self._form(self.value(node.value, names), node.slice)
            case ast.UnaryOp():
                return apply_alone(node.op, self.value(node.operand, names))
            case ast.BinOp():
                return apply(node.op, self.value(node.left, names), self.value(node.right, names))
            case ast.Compare() if len(node.ops) == 1:
                one, other = self.value(node.left, names), self.value(node.comparators[0], names)
                return apply(node.ops[0], one, other)
            case ast.IfExp():
                return self.value(node.body if scalar(self.value(node.test, names)) else node.orelse, names)
            case ast.Call():
                return self._call(node, names)
        raise ValueError("an expression of another kind")

    def _helper(self, name: str) -> Any:
        function = self._globals[name]
        if not hasattr(function, "src") and not hasattr(function, "fn"):
            raise ValueError("no jitted function")
        return lambda *args: self._helped(function, args)

    def _helped(self, function: Any, args: tuple[object, ...]) -> Any:
        """Run a jitted function called by the kernel."""
        definition = definition_of(function)
        parameters = [arg.arg for arg in definition.args.args]
        if len(parameters) != len(args) or self._depth == _DEEP:
            raise BeyondError("a helper of another kind")
        outer, self._depth = self._globals, self._depth + 1
        self._globals = names_of(function)
        try:
            self.run(definition.body, dict(zip(parameters, args, strict=True)))
        except _Returned as returned:
            return returned.value
        finally:
            self._globals, self._depth = outer, self._depth - 1
        return None

    def _attribute(self, node: ast.Attribute, names: dict[str, object]) -> Any:
        module, _, name = dotted(node).rpartition(".")
        if module == "tl" and name in DTYPES:
            return Dtype(name)
        if module == "tl":
            return Dtype(OTHER)
        if name in FUNCTIONS.get(module, {}):
            return FUNCTIONS[module][name]
        owner = self.value(node.value, names)
        if node.attr == "shape":
            return owner.data.shape
        if node.attr == "dtype":
            return Dtype(owner.dtype)
        raise ValueError("another attribute")

    def _form(self, value: Value, index: ast.expr) -> Value:
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        places: list[Any] = []
        for part in parts:
            if isinstance(part, ast.Constant) and part.value is None:
                places.append(None)
            elif isinstance(part, ast.Slice) and (part.lower, part.upper, part.step) == (None, None, None):
                places.append(slice(None))
            else:
                raise ValueError("another index")
        return reshaped(value, lambda array: array[tuple(places)])

    # -- calls -------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call, names: dict[str, object]) -> Any:
        said = dotted(node.func)
        if said == "tl.device_assert":
            self.asserted(node, names)
            return None
        args = [self.value(arg, names) for arg in node.args]
        more = {word.arg: self.value(word.value, names) for word in node.keywords if word.arg is not None}
        function = self._function(said)
        if function is not None:
            return function(*args, **more)
        if not more and self._is_helper(node.func, names):
            return self._helper(said)(*args)
        owner, method = self._method(node.func, names)
        if isinstance(owner, Value) and method in METHODS:
            return METHODS[method](owner, *args, **more)
        return self._unlisted(said, (owner, *args, *more.values()))

    def _function(self, said: str) -> Callable[..., Any] | None:
        """A function of Triton, or of inductor's helpers, that is supported."""
        module, _, name = said.rpartition(".")
        own: Callable[..., Any] | None = getattr(self, f"_tl_{name}", None) if module == "tl" else None
        return own if own is not None else FUNCTIONS.get(module, {}).get(name)

    def _is_helper(self, function: ast.expr, names: dict[str, object]) -> bool:
        return isinstance(function, ast.Name) and function.id not in names and function.id in self._globals

    def _method(self, function: ast.expr, names: dict[str, object]) -> tuple[object, str]:
        """The object whose method is called, and the method's name; None and empty for a plain function."""
        module = dotted(function).rpartition(".")[0]
        if isinstance(function, ast.Attribute) and (not module or module.split(".")[0] in names):
            return self.value(function.value, names), function.attr
        return None, ""

    def _unlisted(self, said: str, operands: tuple[object, ...]) -> Value:
        """The result of a function that is not supported: unknown, and possibly a pointer where it was given one."""
        given_pointer = any(map(leads, operands))
        if given_pointer and said not in _HARMLESS:
            self.memory.forget()  # it may have written through the pointer
        return unknown(pointer=OTHER if given_pointer else "")

    def _tl_load(self, pointer: Value, mask: object = None, other: object = None, **_: object) -> Value:
        active = value_of(1, "int1") if mask is None else lifted(mask)
        rest = int(other) if isinstance(other, float) and other.is_integer() else other
        return self.memory.load(pointer, active, None if rest is None else lifted(rest, pointer.pointer))

    def _tl_store(self, pointer: Value, _: object, mask: object = None, **__: object) -> None:
        self.memory.store(pointer, value_of(1, "int1") if mask is None else lifted(mask))

    def _tl_program_id(self, axis: object) -> Value:
        return value_of(self.program[scalar(axis)], "int32")

    def _tl_num_programs(self, axis: object) -> Value:
        return value_of(self._grid[scalar(axis)], "int32")

    def _tl_associative_scan(self, values: Any, axis: object, combine: Any) -> Any:
        return self._fold(values, axis, combine, running=True)

    def _tl_reduce(self, values: Any, axis: object, combine: Any, keep_dims: bool = False) -> Any:
        return self._fold(values, axis, combine, running=False, keep_dims=keep_dims)

    def _fold(self, values: Any, axis: object, combine: Any, running: bool, keep_dims: bool = False) -> Any:
        def step(*args: Value) -> tuple[Value, ...]:
            self._spend(sum(arg.data.size for arg in args))
            found = combine(*args)
            return found if isinstance(found, tuple) else (found,)

        several = values if isinstance(values, tuple) else (values,)
        found = folded(several, scalar(axis), step, running, keep_dims)
        return found if isinstance(values, tuple) else found[0]


def _assignment(statement: ast.stmt) -> tuple[ast.expr, ast.expr] | None:
    """Target and value of an assignment of any form; None for another statement."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        return statement.targets[0], statement.value
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        return statement.target, statement.value
    if isinstance(statement, ast.AugAssign):
        return statement.target, ast.BinOp(_loaded(statement.target), statement.op, statement.value)
    return None


def _loaded(target: ast.expr) -> ast.expr:
    if not isinstance(target, ast.Name):
        raise BeyondError("a target of another kind")
    return ast.Name(target.id, ast.Load())
