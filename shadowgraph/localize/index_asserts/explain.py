"""The out-of-range index behind a failed device assertion of a compiled kernel, from copies of the launch's arguments.

Called by `CrashRecorder` once the device is lost, in the thread that reports; takes no lock and needs no device.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from shadowgraph.localize.index_asserts.evaluator import Evaluator
from shadowgraph.localize.index_asserts.kernel import SAID, Kernel, source_of
from shadowgraph.localize.index_asserts.memory import Memory
from shadowgraph.localize.index_asserts.values import (
    BeyondError,
    Known,
    Value,
    joint_shape,
    lifted,
    unknown,
    value_of,
)
from shadowgraph.model.launch_arguments import AssertedIndex
from shadowgraph.model.launches import CompiledCall, Launch, Pointer
from shadowgraph.model.views import TensorView

PROGRAMS = 1 << 16  # with more programs the run takes too long
_PLACES = 8  # reported places along x


def asserted_index(launch: Launch, copies: Iterable[tuple[int, bytes]]) -> AssertedIndex | None:
    """The first index assertion of a compiled launch that does not hold.

    Parameters
    ----------
    copies
        Address and bytes of its arguments, as they were just before the launch.

    Returns
    -------
    AssertedIndex or None
        The first assertion, in order of line, that does not hold; None where all hold, and where the values do not
        follow from the copies alone.
    """
    call = launch.compiled
    if call is None or not _asserts(call):
        return None
    try:
        kernel = Kernel(call.function, call.file)
        numbers = dict(call.numbers)
        blocks = kernel.blocks(numbers)
        grid = kernel.grid(numbers, blocks)
        watch = _Watch(Memory(copies), kernel.globals, grid, numbers)
        if math.prod(grid) > PROGRAMS:
            return None
        for x, y, z in product(*map(range, grid)):
            watch.program = (x, y, z)
            watch.run(kernel.body.body, {**_given(kernel, numbers, launch.pointers), **blocks})
    except (BeyondError, RecursionError):
        return None
    found = next((seen for _, seen in sorted(watch.seen.items()) if seen.fails and seen.understood), None)
    return None if found is None else found.told(kernel)


def source_copied(launch: Launch, argument: str) -> str:
    """The argument whose elements a compiled launch copies to all of another argument, row by row; empty if there is
    none."""
    call = launch.compiled
    if call is None:
        return ""
    views = {pointer.argument: pointer.view for pointer in launch.pointers}
    try:
        kernel = Kernel(call.function, call.file)
        source = kernel.copied_into(argument)
        if source not in views or argument not in views:
            return ""
        one, other = views[source], views[argument]
        whole = _has_rows_for(one, other) and kernel.elements(dict(call.numbers)) * one.itemsize == other.nbytes
        return source if whole else ""
    except (BeyondError, RecursionError):
        return ""


def _has_rows_for(one: TensorView, other: TensorView) -> bool:
    """Whether one view has rows of the same form as another, and at least as many."""
    rows_alike = (one.shape[1:], one.dtype) == (other.shape[1:], other.dtype) and one.nbytes >= other.nbytes
    return rows_alike and one.contiguous and other.contiguous


def _asserts(call: CompiledCall) -> bool:
    try:
        return SAID in source_of(call.function)
    except (OSError, TypeError):
        return False


def _given(kernel: Kernel, numbers: Mapping[str, int], pointers: Iterable[Pointer]) -> dict[str, object]:
    """Parameters by name; one that is neither a known number nor a known pointer counts as a pointer to anywhere."""
    views = {pointer.argument: pointer.view for pointer in pointers}
    given: dict[str, object] = {}
    for name in kernel.names:
        if name in views:
            given[name] = value_of(views[name].address, "int64", views[name].dtype)
        else:
            given[name] = lifted(numbers[name]) if name in numbers else unknown(pointer="other")
    return given


@dataclass(slots=True)
class _Seen:
    """One assertion, over all programs so far."""

    rule: str
    index: str
    low: int | None = None
    high: int | None = None
    fails: bool = False
    understood: bool = True
    extremes: tuple[int, int] | None = None
    places: set[int] = field(default_factory=set)

    def told(self, kernel: Kernel) -> AssertedIndex | None:
        if self.extremes is None:
            return None
        places = tuple(sorted(self.places))
        return AssertedIndex(
            self.rule,
            self.low,
            self.high,
            *self.extremes,
            places=places[:_PLACES],
            more_places=max(0, len(places) - _PLACES),
            into=kernel.indexed_by(self.index),
        )


class _Watch(Evaluator):
    """Evaluator that records the assertions of the kernel, by line."""

    def __init__(
        self, memory: Memory, names: Mapping[str, object], grid: tuple[int, int, int], numbers: Mapping[str, int]
    ) -> None:
        super().__init__(memory, names, grid)
        self.seen: dict[tuple[int, int], _Seen] = {}
        self._xnumel = numbers.get("xnumel")

    def asserted(self, node: ast.Call, names: dict[str, object]) -> None:
        rule = _rule_of(node)
        if rule is None:
            return
        low, index, high = _parts(rule)
        seen = self.seen.setdefault((node.lineno, node.col_offset), _Seen(rule, ast.unparse(index)))
        condition, active = self.value(node.args[0], names), self._active(node.args[0], names)
        value = lifted(self.value(index, names))
        bounds = [None if bound is None else lifted(self.value(bound, names)).scalar for bound in (low, high)]
        if (low is not None and bounds[0] is None) or (high is not None and bounds[1] is None):
            seen.understood = False
        if not isinstance(condition, Value) or not seen.understood:
            seen.understood = False
            return
        seen.low, seen.high = bounds
        self._note(seen, condition, active, value, names)

    def _note(self, seen: _Seen, condition: Value, active: Value, value: Value, names: dict[str, object]) -> None:
        shape = joint_shape(condition.data.shape, active.data.shape, value.data.shape)
        on = np.broadcast_to((active.data != 0) | ~active.known, shape)
        if not (condition.known.all() and active.known.all() and np.broadcast_to(value.known, shape)[on].all()):
            seen.understood = False
            return
        taken = np.broadcast_to(value.data, shape)[on]
        if taken.size:
            least, most = seen.extremes or (int(taken[0]), int(taken[0]))
            seen.extremes = min(least, int(taken.min())), max(most, int(taken.max()))
        fails = on & (np.broadcast_to(condition.data, shape) == 0)
        seen.fails = seen.fails or bool(fails.any())
        if fails.any():
            self._note_places(seen, fails, names)

    def _note_places(self, seen: _Seen, fails: Known, names: dict[str, object]) -> None:
        """Note the places along x where an assertion fails, if x is the kernel's only axis without a reduction."""
        x = names.get("xindex")
        if isinstance(x, Value) and x.known.all() and "yindex" not in names:
            whole = joint_shape(fails.shape, x.data.shape)
            where = np.broadcast_to(x.data, whole)[np.broadcast_to(fails, whole)]
            seen.places.update(np.unique(where[where < (self._xnumel or 0)]).tolist())

    def _active(self, condition: ast.expr, names: dict[str, object]) -> Value:
        """The lanes that an assertion covers: ``holds | ~mask``."""
        if isinstance(condition, ast.BinOp) and isinstance(condition.op, ast.BitOr):
            rest = condition.right
            if isinstance(rest, ast.UnaryOp) and isinstance(rest.op, ast.Invert):
                return lifted(self.value(rest.operand, names))
        return value_of(1, "int1")


def _rule_of(node: ast.Call) -> str | None:
    """The rule in the message of an assertion about an index; None for another assertion."""
    message = node.args[1] if len(node.args) == 2 else None
    text = message.value if isinstance(message, ast.Constant) else None
    return text.removeprefix(SAID) if isinstance(text, str) and text.startswith(SAID) else None


def _parts(rule: str) -> tuple[ast.expr | None, ast.expr, ast.expr | None]:
    """Lower bound, index and upper bound of ``0 <= index < size``, either bound perhaps missing."""
    try:
        tree = ast.parse(rule, mode="eval").body
    except SyntaxError as error:
        raise BeyondError("a rule of another kind") from error
    match tree:
        case ast.Compare(low, [ast.LtE(), ast.Lt()], [index, high]):
            return low, index, high
        case ast.Compare(low, [ast.LtE()], [index]):
            return low, index, None
        case ast.Compare(index, [ast.Lt()], [high]):
            return None, index, high
    raise BeyondError("a rule of another kind")
