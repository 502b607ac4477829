"""What the eager mode reports of host memory: pinned allocations, asynchronous copies to the device, and operators that
write memory which such a copy has yet to read.

Runs in the thread of the operator, inside the dispatch mode, without a lock. For other operators it costs the tests
of their cached path.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.graphs.dispatch.op_filter import Path
from shadowgraph.graphs.dispatch.schemas import Schema
from shadowgraph.graphs.dispatch.tensors import is_lazy_copy, is_plain, named_tensors, tensors_in, view_facts
from shadowgraph.graphs.events import events
from shadowgraph.model.buffers import Ledger
from shadowgraph.model.host_copies import COMPARED, HostWrite, QueuedCopy, bytes_at, pieces_of
from shadowgraph.model.launches import RESULT, Access, Launch, LaunchKind, Pointer
from shadowgraph.model.stacks import current_stack
from shadowgraph.model.views import TensorView
from shadowgraph.tracking import pending_sources
from shadowgraph.tracking.host_memory import note_allocated, note_device_writes, note_used
from shadowgraph.tracking.traces import Trace, gather, stacks_of

_FRAMES = 12
_PINS = "aten._pin_memory.default"
# A copy converts integers as C does, which numpy repeats; rounding need not be the same.
_INTEGERS = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


@dataclass(frozen=True, slots=True)
class Place:
    """The device whose copies are reported: its type and index, its name in views, and the ledger of its memory."""

    device: str
    index: int
    name: str
    ledger: Ledger


def run_told(
    run: Callable[[], Any], path: Path, allocates: bool, args: Sequence[Any], kwargs: dict[str, Any], place: Place
) -> Any:
    """Run an operator that may copy from or to host memory, or write or allocate some, and report that.

    Parameters
    ----------
    run
        Runs it.
    allocates
        Whether it allocates pinned memory.
    """
    schema, write = path.schema, None
    copies: list[CopyToDevice] = []
    if path.copies:
        with error_barrier("copy from host memory"):
            copies = copies_begin(schema, args, kwargs, place)
    if pending_sources.spans and schema.written:
        write = write_begins(schema, args, kwargs)
    results = run()
    if path.copies:
        with error_barrier("copy of host memory"):
            if copies:
                copies_queued(copies, schema, results, place)
            else:
                note_copies_to_host(schema, args, kwargs, results, place)
    if write is not None:
        events.host_write_ran(write)
    if allocates:
        with error_barrier("pinned memory"):
            note_pinned(place.ledger, results)
    return results


# -- pinned allocations --------------------------------------------------------------------------------------------


def pins(schema: Schema, kwargs: dict[str, Any]) -> bool:
    """Whether a call returns pinned memory."""
    return bool(kwargs.get("pin_memory")) or schema.name == _PINS


def makes_host_memory(schema: Schema, kwargs: dict[str, Any]) -> bool:
    """Whether a call of a capture may return host memory that a copy node goes on using: pinned, a copy from the
    device, or of ``torch.tensor(data)``, which torch makes where no mode sees it."""
    return pins(schema, kwargs) or schema.name in ("aten.lift_fresh.default", "aten._to_copy.default")


def note_pinned(ledger: Ledger, results: Any) -> None:
    """Enter pinned memory that an operator has just allocated."""
    for tensor in tensors_in(results):
        if is_plain(tensor) and tensor.nbytes:
            note_allocated(ledger, tensor, current_stack())


# -- copies to the device ------------------------------------------------------------------------------------------


class CopyToDevice:
    """A copy that is about to be queued, and its source as it is now. The tensors are the caller's.

    Attributes
    ----------
    target
        None where the operator makes it.
    """

    __slots__ = ("before", "pieces", "source", "target", "view")

    def __init__(self, source: torch.Tensor, target: torch.Tensor | None) -> None:
        self.source, self.target = source, target
        self.view = view_facts(source)
        self.pieces = pieces_of(self.view.nbytes)
        self.before = bytes_at(self.view.address, self.pieces)


def copies_begin(schema: Schema, args: Sequence[Any], kwargs: dict[str, Any], place: Place) -> list[CopyToDevice]:
    """The asynchronous copies from pinned memory to the device that a call is about to queue."""
    found = []
    for source, target in _pairs(schema, args, kwargs, place.device):
        if target is not None and not _is_there(target, place):
            continue
        if _is_flat(source) and source.nbytes and is_comparable(source, target) and _is_pinned(source):
            found.append(CopyToDevice(source, target))
    return found


def _is_pinned(tensor: torch.Tensor) -> bool:
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():  # modes of the program see no such call
        return torch.Tensor.is_pinned(tensor)


def note_copies_to_host(
    schema: Schema, args: Sequence[Any], kwargs: dict[str, Any], results: Any, place: Place
) -> None:
    """Note the host memory that an asynchronous copy from the device writes."""
    given = {**dict(zip(schema.names, args, strict=False)), **kwargs}
    if not given.get("non_blocking"):
        return
    made = schema.name.startswith("aten._to_copy")
    source, target = (given.get("self"), results) if made else (given.get("src"), given.get("self"))
    if not (isinstance(source, torch.Tensor) and isinstance(target, torch.Tensor)):
        return
    if source.device.type == place.device and is_plain(target) and target.nbytes and not is_lazy_copy(target):
        note_device_writes(target)


def _pairs(
    schema: Schema, args: Sequence[Any], kwargs: dict[str, Any], device: str
) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    """Source and target of each copy that need not be over when a call returns."""
    if schema.name.startswith("aten._to_copy"):
        to = kwargs.get("device")
        if kwargs.get("non_blocking") and to is not None and torch.device(to).type == device:
            yield args[0], None
        return
    given = {**dict(zip(schema.names, args, strict=False)), **kwargs}
    target, source = given.get("self"), given.get("src")
    if not given.get("non_blocking"):
        return
    if isinstance(target, torch.Tensor) and isinstance(source, torch.Tensor):
        yield source, target
    elif isinstance(target, list | tuple) and isinstance(source, list | tuple):
        yield from zip(source, target, strict=False)


def _is_flat(tensor: torch.Tensor, device: str = "cpu") -> bool:
    """Whether a tensor's bytes are its elements in order."""
    return (
        is_plain(tensor, device)
        and not is_lazy_copy(tensor)
        and tensor.is_contiguous()
        and not (tensor.is_neg() or tensor.is_conj())
    )


def _is_there(tensor: torch.Tensor, place: Place) -> bool:
    """Whether a tensor's bytes are its elements in order, in memory of the device."""
    return _is_flat(tensor, place.device) and tensor.get_device() == place.index


def is_comparable(source: torch.Tensor, target: torch.Tensor | None) -> bool:
    """Whether the bytes that arrive follow from those of the source: they are the same, or integers converted."""
    if target is None:
        return True
    if source.numel() != target.numel():
        return False
    both = source.dtype, target.dtype
    return both[0] is both[1] or (_INTEGERS.issuperset(both) and source.nbytes <= COMPARED)


def copies_queued(copies: Sequence[CopyToDevice], schema: Schema, results: Any, place: Place) -> None:
    """Report copies that have been queued."""
    for copy in copies:
        target = copy.target if copy.target is not None else results
        if not (isinstance(target, torch.Tensor) and _is_there(target, place) and is_comparable(copy.source, target)):
            continue
        note_used(place.ledger, copy.source)  # a capture of the same code may go unseen
        view, made = view_facts(target, place.name), copy.target is None
        pointers = (
            Pointer(RESULT if made else "self", view, Access.WRITE),
            Pointer("self" if made else "src", copy.view, Access.READ),
        )
        launch, storage = partial(_launch, schema.name, pointers, gather()), weakref.ref(copy.source.untyped_storage())
        events.copy_queued(QueuedCopy(launch, copy.view, view, copy.pieces, copy.before, storage))


def _launch(name: str, pointers: tuple[Pointer, ...], trace: Trace) -> Launch:
    (stack,) = stacks_of([trace], _FRAMES)
    return Launch(LaunchKind.ATEN, name, pointers, stack)


# -- writes of host memory -----------------------------------------------------------------------------------------


def writes_pending(path: Path, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an operator writes memory that a copy has yet to read; asked only while there is some."""
    with error_barrier("write of host memory"):
        return bool(not path.quiet and path.schema.written and _hit(path.schema, args, kwargs))
    return False


def write_begins(schema: Schema, args: Sequence[Any], kwargs: dict[str, Any]) -> HostWrite | None:
    """Report that an operator is about to write memory that a copy has yet to read, if it is."""
    with error_barrier("write of host memory"):
        views = _hit(schema, args, kwargs)
        if views:
            pointers = [Pointer(name, view, schema.access(name)) for name, view in views]
            launch = Launch(LaunchKind.ATEN, schema.name, tuple(pointers), current_stack())
            write = HostWrite(launch, tuple(view.hull for _, view in views))
            events.host_write_begins(write)
            return write
    return None


def _hit(schema: Schema, args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[str, TensorView]]:
    """The arguments that the operator writes, as far as they have such memory."""
    found = []
    for name, tensor in named_tensors(schema.names, tuple(args), kwargs):
        if name.split("[")[0] in schema.written and tensor.is_cpu and is_plain(tensor) and not is_lazy_copy(tensor):
            view = view_facts(tensor)
            if view.nbytes and pending_sources.hit(view.start, view.stop):
                found.append((name, view))
    return found
