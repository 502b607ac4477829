"""A capture that was recorded in C++, decoded on first use: launches, tensors that it made, owners of its nodes.

Decoded in the thread that first asks; no lock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from shadowgraph.graphs.dispatch.schemas import Schema
from shadowgraph.graphs.observer.library import ALONE
from shadowgraph.graphs.observer.operators import dtype_of, schema_named, text_of
from shadowgraph.model.graphs import Access, Allocation, Launch, LaunchKind, Node, Pointer
from shadowgraph.model.launches import RESULT
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import Stack
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.traces import Trace, stacks_of

_FRAMES = 6
_OPERATOR, _HEAD = 1, 4  # kind of a row, and its words before the first tensor's; see capture_recorder.cpp
_FACTS = 5  # words of a tensor before its sizes
_PLACE, _DIMENSIONS, _FLAGS = 3, 32, 40  # the word of a tensor's small facts, and bits in it
_RESULT, _FRESH = 1, 2
_PART = 2  # the first bit of what a tensor is of another one, see capture_arguments.cpp
_PARTS = "", ".indices", ".values", ".compressed_indices", ".plain_indices", ".buffer"
_NO_TRACE = 2**64 - 1
_LEARNT = 1 << 63  # see capture_recorder.cpp

Words = Sequence[int]
Newest = tuple[int, ...]
Told = tuple[Trace, str]  # a stack, and the name of the graph in whose capture it was seen
Form = tuple[torch.dtype, tuple[int, ...], Trace]


class Tensor(NamedTuple):
    """A tensor as plain numbers."""

    address: int
    storage: int
    nbytes: int
    argument: int
    member: int
    dtype: int
    device: int
    flags: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def torch_dtype(self) -> torch.dtype:
        """Its dtype; bytes where torch has no such dtype any more."""
        known = getattr(torch, dtype_of(self.dtype)[0], None)
        return known if isinstance(known, torch.dtype) else torch.uint8

    @property
    def part(self) -> str:
        """What it is of a sparse or nested tensor; empty for a tensor with memory of its own."""
        kind = self.flags >> _PART
        return _PARTS[kind] if kind < len(_PARTS) else ".part"

    @property
    def spans(self) -> bool:
        """Whether it has the whole storage, as a contiguous array would."""
        count = dtype_of(self.dtype)[1]
        for size in self.shape:
            count *= size
        return self.address == self.storage and count == self.nbytes

    def view(self) -> TensorView:
        name, itemsize = dtype_of(self.dtype)
        # An index of a device is a signed byte.
        device = f"cuda:{self.device}" if self.device < 128 else "cpu"
        return TensorView(
            self.address, self.storage, self.nbytes, self.shape, self.strides, name, itemsize, device
        )  # fmt: skip


def tensor_at(words: Words, place: int) -> Tensor:
    """The tensor whose words begin at a place."""
    address, storage, nbytes, facts, member = words[place : place + _FACTS]
    count = facts >> _DIMENSIONS & 0xFF
    sizes = words[place + _FACTS : place + _FACTS + 2 * count]
    return Tensor(
        address, storage, nbytes, facts & 0xFFFF, member, facts >> 16 & 0xFF, facts >> 24 & 0xFF, facts >> _FLAGS,
        tuple(sizes[::2]), tuple(sizes[1::2]),
    )  # fmt: skip


class Taught(NamedTuple):
    """The operators of a capture, for later captures by the same code.

    Attributes
    ----------
    operators
        Their numbers, in order; those without a stack are marked.
    traces
        Their stacks, by place in that order, and the graph that each is of.
    places
        Of some, the innermost calls that led to them.
    """

    operators: ctypes.Array[ctypes.c_uint64]
    traces: Mapping[int, Told]
    places: Mapping[int, object]


class _Operator(NamedTuple):
    """One operator's tensors, as the rows have them."""

    name: str
    schema: Schema | None
    inputs: tuple[Tensor, ...]
    fresh: tuple[Tensor, ...]
    trace: Trace
    learnt_from: str

    def node(self, index: int, stack: Stack) -> Node:
        pointers = [_pointer(tensor, self.schema) for tensor in self.inputs]
        pointers += [Pointer(RESULT + tensor.part, tensor.view(), Access.WRITE) for tensor in self.fresh]
        launch = Launch(LaunchKind.ATEN, self.name, tuple(pointers), stack, learnt_from=self.learnt_from)
        return Node(index, launch)


def _pointer(tensor: Tensor, schema: Schema | None) -> Pointer:
    known = schema is not None and tensor.argument < len(schema.names)
    name = schema.names[tensor.argument] if schema is not None and known else f"argument {tensor.argument}"
    if tensor.member != ALONE:
        name = f"{name}[{tensor.member}]"
    access = schema.access(name) if schema is not None else Access.UNKNOWN
    return Pointer(name + tensor.part, tensor.view(), access)


class _Decoded(NamedTuple):
    steps: list[_Operator | Launch]
    places: dict[int, int]  # of the steps, by number of the launch
    allocated: list[tuple[int, Tensor]]  # with the number of steps before


class Recording(Mapping[int, Form]):
    """What was recorded of a capture. As a mapping: dtype, shape and stack of each tensor that it made, by address.

    Parameters
    ----------
    rows, marks
        Words of the recording; capture_recorder.cpp has their layout.
    fresh
        Addresses of the tensors that it made.
    traces
        Stacks of the operators, by number.
    owner_of
        The owner of nodes by its number in the marks; the number itself for a launch.
    name_of
        The name of an operator, and its overload.
    learnt
        Stacks of an earlier capture, for operators without one.

    Attributes
    ----------
    launched
        Launches that are no operators, by number.
    """

    def __init__(
        self,
        rows: Words,
        marks: Words,
        fresh: frozenset[int],
        traces: Mapping[int, Trace],
        owner_of: Callable[[int], Any],
        name_of: Callable[[int], tuple[str, str]],
        learnt: Mapping[int, Told] = MappingProxyType({}),
    ) -> None:
        self._rows, self._marks, self._fresh, self._traces = rows, marks, fresh, traces
        self._owner_of, self._name_of, self._learnt = owner_of, name_of, learnt
        self.launched: dict[int, Launch] = {}

    @classmethod
    def empty(cls) -> Recording:
        """That of a capture without launches."""
        return cls((), (), frozenset(), {}, lambda number: None, lambda operator: ("", ""))

    def forget_learnt(self) -> bool:
        """Have `nodes` tell no stack any more that an earlier capture's operator had. Returns whether one did."""
        had, self._learnt = bool(self._learnt), {}
        for decoded in ("_decoded", "_made"):
            vars(self).pop(decoded, None)
        return had

    @cached_property
    def log(self) -> list[tuple[Newest, Any]]:
        """Newest nodes at each mark, and their owner; None for no owner."""
        found, words, at = list[tuple[Newest, Any]](), self._marks, 0
        while at < len(words):
            owner, count = words[at], words[at + 1]
            found.append((tuple(words[at + 2 : at + 2 + count]), self._owner_of(owner)))
            at += 2 + count
        return found

    @property
    def launches(self) -> dict[int, int]:
        """Index of a launch in the graph by its number."""
        return self._decoded.places

    def nodes(self) -> list[Node]:
        """The launches, in order."""
        steps = self._decoded.steps
        operators = [step for step in steps if isinstance(step, _Operator)]
        stacks = dict(zip(map(id, operators), stacks_of([each.trace for each in operators], _FRAMES), strict=True))
        return [
            Node(index, step) if isinstance(step, Launch) else step.node(index, stacks[id(step)])
            for index, step in enumerate(steps)
        ]

    def allocations(self, serial: int) -> list[Allocation]:
        """The tensors that it allocated, in order; with the ledger's serial of its end."""
        return [
            Allocation(
                before,
                ByteRange(tensor.storage, tensor.storage + tensor.nbytes),
                serial,
                str(tensor.torch_dtype).removeprefix("torch."),
                tensor.torch_dtype.itemsize,
                tensor.shape,
            )
            for before, tensor in self._decoded.allocated
        ]

    # -- the tensors that it made ---------------------------------------------------------------------------------

    def __getitem__(self, address: int) -> Form:
        return self._made[address]

    def __iter__(self) -> Iterator[int]:
        return iter(self._fresh)

    def __len__(self) -> int:
        return len(self._fresh)

    @cached_property
    def _made(self) -> dict[int, Form]:
        """Read without the rest, as the next capture waits for it: guards stand around these tensors before it
        begins."""
        made, rows, at = dict[int, Form](), list(self._rows), 0
        while at < len(rows):
            if rows[at] & 0xFF != _OPERATOR:
                at += 2
                continue
            trace, count = rows[at + 2 : at + _HEAD]
            at += _HEAD
            for _ in range(count):
                facts = rows[at + _PLACE]
                if facts >> _FLAGS & _FRESH:
                    tensor = tensor_at(rows, at)
                    made[tensor.storage] = tensor.torch_dtype, tensor.shape, self._trace(trace)[0]
                at += _FACTS + 2 * (facts >> _DIMENSIONS & 0xFF)
        return made

    @cached_property
    def _decoded(self) -> _Decoded:
        steps, places, allocated = list[_Operator | Launch](), dict[int, int](), list[tuple[int, Tensor]]()
        for number, step in self._steps():
            if isinstance(step, _Operator):
                allocated += [(len(steps), tensor) for tensor in step.fresh]
                if step.schema is not None and step.schema.pure_view:
                    continue  # it allocates, and leaves no node
            places[number] = len(steps)
            steps.append(step)
        return _Decoded(steps, places, allocated)

    def _steps(self) -> Iterator[tuple[int, _Operator | Launch]]:
        rows, at = list(self._rows), 0
        while at < len(rows):
            kind, number = rows[at], rows[at + 1]
            if kind & 0xFF != _OPERATOR:
                at += 2
                if number in self.launched:
                    yield number, self.launched[number]
                continue
            trace, count = rows[at + 2 : at + _HEAD]
            at += _HEAD
            tensors: list[Tensor] = []
            for _ in range(count):
                tensors.append(tensor_at(rows, at))
                at += _FACTS + 2 * len(tensors[-1].shape)
            step = self._operator(kind >> 8, tensors, trace)
            if step.inputs or step.fresh:
                yield number, step

    def _operator(self, operator: int, tensors: Sequence[Tensor], trace: int) -> _Operator:
        name, overload = self._name_of(operator)
        inputs = tuple(tensor for tensor in tensors if not tensor.flags & _RESULT)
        fresh = tuple(tensor for tensor in tensors if tensor.flags & _FRESH)
        return _Operator(
            text_of(name, overload), schema_named(name, overload), inputs, fresh, *self._trace(trace)
        )  # fmt: skip

    def _trace(self, number: int) -> Told:
        """A stack, and the graph that it was learnt from."""
        if number == _NO_TRACE:
            return None, ""
        if not number & _LEARNT:
            return self._traces[number], ""
        return self._learnt.get(number ^ _LEARNT, (None, ""))
