"""Fast filter for eager operators: whether one can be relevant, in about a microsecond. Most touch no tracked memory.

Used by the eager mode in the thread of each operator, without a lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from shadowgraph.graphs.dispatch.eager_guard import MAKERS
from shadowgraph.graphs.dispatch.schemas import Schema, schema_of
from shadowgraph.graphs.dispatch.tensors import is_lazy_copy
from shadowgraph.model.buffers import Ledger
from shadowgraph.model.ranges import ByteRange

_KNOWN = 8192  # most cached ranges, and operators
_LOADING = MAKERS | {f"aten.{name}" for name in ("fill_", "zero_", "normal_", "uniform_", "set_", "resize_")}
_PINS, _COPIES = "aten._pin_memory", "aten._foreach_copy_"
_ORDINARY = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True, slots=True)
class Path:
    """The handling that an operator needs.

    Attributes
    ----------
    operator
        Kept, so that its id is not reused.
    schema
        Its facts.
    quiet
        It writes no tensor, takes no indices, returns no values to the host and changes no storage.
    copies_to_host
        It may be a copy from a device to the host.
    copies
        It may be a copy from host memory to a device.
    plain
        Without tracked memory among its arguments it needs no handling: it does not allocate static buffers either,
        unless every result is to be guarded.
    works
        It computes: no view, copy or allocation, of which loading a model takes many.
    pins
        Its result may be pinned memory.
    concerns
        Positions and names of the arguments whose memory decides whether the call is relevant; None for all arguments.
    """

    operator: OpOverload
    schema: Schema
    quiet: bool
    copies_to_host: bool
    copies: bool
    plain: bool
    works: bool
    pins: bool
    concerns: tuple[tuple[int, str], ...] | None


paths: dict[int, Path] = {}  # cache, by the operator's id


def path_of(operator: OpOverload, args: tuple[Any, ...]) -> Path:
    """The path of an operator's call, computed once; each time where it depends on the arguments."""
    known = paths.get(id(operator))
    if known is not None and known.operator is operator:
        return known
    schema = schema_of(operator, args)
    path = _path(operator, schema)
    if not schema.by_call:
        if len(paths) >= _KNOWN:
            paths.clear()
        paths[id(operator)] = path
    return path


def _path(operator: OpOverload, schema: Schema) -> Path:
    packet = schema.name.rsplit(".", 1)[0]
    copies = schema.name.startswith(("aten.copy_", "aten._to_copy"))
    lazy = schema.name == "aten._lazy_clone.default"
    pins = "pin_memory" in schema.names or packet == _PINS
    handled = schema.host_read or schema.resizes or bool(schema.outs) or copies or lazy
    return Path(
        operator,
        schema,
        quiet=not (handled or schema.borrows or schema.written or schema.takes_indices or packet == _PINS),
        copies_to_host=copies,
        copies=copies or packet == _COPIES,
        plain=not (handled or schema.borrows or packet in MAKERS or packet in (_COPIES, _PINS)),
        works=not (copies or operator.is_view or packet in _LOADING),
        pins=pins,
        concerns=_concerns(schema),
    )


def _concerns(schema: Schema) -> tuple[tuple[int, str], ...] | None:
    if schema.takes_indices:
        return None
    return tuple((at, name) for at, name in enumerate(schema.names) if name in schema.written)


class Relevance:
    """Caches for address ranges whether they are tracked, until the ledger changes.

    Parameters
    ----------
    ledger
        The ledger of tracked buffers.
    tracked
        Whether a range belongs to one of these buffers.
    device, index
        Type and number of the device whose memory counts.
    """

    def __init__(self, ledger: Ledger, tracked: Callable[[ByteRange], bool], device: str, index: int) -> None:
        self._ledger, self._tracked, self._index, self._on_host = ledger, tracked, index, device == "cpu"
        self._version = -1
        self._known: dict[tuple[int, int], bool] = {}

    def of(self, path: Path, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call may touch tracked memory in the arguments that count; True where that is not easily known."""
        if path.concerns is None:
            return self._any((*args, *kwargs.values()))
        count = len(args)
        if len(path.concerns) == 1 and path.concerns[0][0] < count:  # most operators that write, write one argument
            value = args[path.concerns[0][0]]
            if type(value) in _ORDINARY:
                return self._may_be_tracked(value)
        return self._any([args[at] if at < count else kwargs.get(name) for at, name in path.concerns])

    def _any(self, values: Any) -> bool:
        for value in values:
            if isinstance(value, torch.Tensor):
                if self._may_be_tracked(value):
                    return True
            elif isinstance(value, list | tuple) and self._any(value):
                return True
        return False

    def _may_be_tracked(self, tensor: torch.Tensor) -> bool:
        if (tensor.is_cpu if self._on_host else tensor.is_cuda) is False:
            return False
        if type(tensor) not in _ORDINARY:
            return True
        try:
            if is_lazy_copy(tensor) or not tensor.is_contiguous():
                return True
            if self._version == self._ledger.version:  # the first step of `tracked`, inlined
                known = self._known.get((tensor.data_ptr(), tensor.nbytes))
                if known is not None:
                    return known
            return self.tracked(tensor.data_ptr(), tensor.nbytes)
        except RuntimeError:  # no strided memory of its own
            return True

    def tracked(self, address: int, nbytes: int) -> bool:
        """Whether any byte of a range belongs to a buffer of the ledger; for an empty range, whether its address
        does."""
        if self._version != self._ledger.version or len(self._known) >= _KNOWN:
            self._version = self._ledger.version
            self._known = {}
        known = self._known.get((address, nbytes))
        if known is None:
            known = self._known[address, nbytes] = self._tracked(ByteRange(address, address + nbytes))
        return known
