"""One kernel launch or operator call, as pure data: kind, name, tensor pointers, and the Python stack that made it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from shadowgraph.model.kernel_code import KernelCode
from shadowgraph.model.saved_fields import Absent, Sparse, Text
from shadowgraph.model.stacks import Stack
from shadowgraph.model.views import TensorView

RESULT = "result"  # `Pointer.argument` of a new tensor that an operator returned


class LaunchKind(StrEnum):
    """The kind of a launch."""

    ATEN = "aten"
    TRITON = "triton"
    CALLABLE = "callable"  # a Python callable put into a host graph on purpose


class Access(StrEnum):
    """The accesses that a launch may make through a pointer, by its signature."""

    READ = "read"
    WRITE = "write"  # overwrites without reading
    READ_WRITE = "read_write"  # in-place arithmetic
    UNKNOWN = "unknown"  # a kernel's pointer: read, write or both


class Pointer(msgspec.Struct, frozen=True, gc=False):
    """One tensor argument of a launch."""

    argument: Text
    view: TensorView
    access: Access

    @property
    def may_write(self) -> bool:
        return self.access is not Access.READ

    @property
    def may_read(self) -> bool:
        return self.access is not Access.WRITE


@dataclass(frozen=True, slots=True)
class IndexRule:
    """The range in which the values of an index tensor must lie for a launch to stay in bounds.

    Attributes
    ----------
    argument, index
        The index tensor's name in the launch, and its memory.
    target
        The indexed tensor.
    dim, low, high
        Dimension, None for the flattened tensor; values from `low` up to, not including, `high` are valid.
    """

    argument: str
    index: TensorView
    target: TensorView
    dim: int | None
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class CompiledCall:
    """The non-tensor facts of a launch of compiled code; holds no tensor.

    Attributes
    ----------
    function
        The jitted function, which holds the source.
    numbers
        Name and value of each integer argument.
    file
        The generated file that defines the function; empty if unknown.
    """

    function: Any
    numbers: tuple[tuple[str, int], ...]
    file: str = ""


class Launch(msgspec.Struct, frozen=True):
    """One kernel launch or operator call, captured or eager.

    Attributes
    ----------
    grid
        Triton programs per axis, None otherwise.
    source
        ``file:line`` of the kernel's definition, when known.
    compiled
        The kernel, where inductor generated it.
    learnt_from
        The graph in whose capture the stack was seen; empty where that was its own.
    code
        What a compiled Triton kernel does with its arguments, once it has been launched on a device.
    accumulates
        Of an operator with such an argument, whether it adds to what it stores over; None where that is not known.
    """

    kind: LaunchKind
    name: Text
    pointers: tuple[Pointer, ...]
    stack: Stack = ()
    grid: tuple[int, ...] | None = None
    source: Text | None = None
    compiled: Absent[CompiledCall | None] = None
    learnt_from: Sparse[Text] = ""
    code: Absent[KernelCode | None] = None
    accumulates: Absent[bool | None] = None

    def may_store(self, pointer: Pointer) -> bool:
        """Whether the launch may write through one of its pointers: not where a compiled kernel's code shows that it
        stores nothing there, whatever the access of the pointer."""
        if not pointer.may_write or self.code is None:
            return pointer.may_write
        use = self.code.use(pointer.argument)
        return use is None or use.stores
