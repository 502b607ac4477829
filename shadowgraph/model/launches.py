"""One kernel launch or operator call, as pure data: what it is, what it points at, the line that made it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from shadowgraph.model.stacks import Stack
from shadowgraph.model.views import TensorView

RESULT = "result"  # `Pointer.argument` of what an operator returned and was not given


class LaunchKind(StrEnum):
    """What kind of work a launch is."""

    ATEN = "aten"
    TRITON = "triton"
    CALLABLE = "callable"  # a Python callable put into a host graph on purpose


class Access(StrEnum):
    """What a launch may do through a pointer, as far as its signature says."""

    READ = "read"
    WRITE = "write"  # overwrites without reading
    READ_WRITE = "read_write"  # in-place arithmetic
    UNKNOWN = "unknown"  # a kernel's pointer: it may read, write or both


class Pointer(msgspec.Struct, frozen=True):
    """One tensor argument of a launch."""

    argument: str
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
    """What the values of an index tensor must be for a launch to stay inside what it indexes.

    Attributes
    ----------
    argument, index
        The index tensor's name in the launch, and where it lies.
    target
        What is indexed.
    dim, low, high
        Dimension, None for the flattened tensor; values from `low` up to, not including, `high` are fine.
    """

    argument: str
    index: TensorView
    target: TensorView
    dim: int | None
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class CompiledCall:
    """Of a launch of compiled code what is no tensor; it holds none either.

    Attributes
    ----------
    function
        The jitted function, which has the source.
    numbers
        Name and value of each integer argument.
    file
        The generated file that defines it; empty if unknown.
    """

    function: Any
    numbers: tuple[tuple[str, int], ...]
    file: str = ""


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch or operator call, captured or eager.

    Attributes
    ----------
    grid
        Programs per axis for Triton, None otherwise.
    source
        ``file:line`` where the kernel is defined, when known.
    compiled
        The kernel, where inductor made it.
    """

    kind: LaunchKind
    name: str
    pointers: tuple[Pointer, ...]
    stack: Stack = ()
    grid: tuple[int, ...] | None = None
    source: str | None = None
    compiled: CompiledCall | None = field(default=None, compare=False, repr=False)
