"""Eager operators of one thread: guarded allocation while asked for, and writes to tracked buffers noted."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from shadowgraph.faults import shielded
from shadowgraph.graphs import host_reads
from shadowgraph.graphs.eager_guard import EagerGuard
from shadowgraph.graphs.events import emit, listeners
from shadowgraph.graphs.growing import call_with_outs, grow, wanted_size
from shadowgraph.graphs.model import Access, Launch, LaunchKind, Pointer
from shadowgraph.graphs.schemas import Schema, schema_of
from shadowgraph.graphs.tensors import Rehomed, is_plain, named_tensors, storage_key, tensors_in
from shadowgraph.tracking.allocator import HostAllocator
from shadowgraph.tracking.buffers import Role
from shadowgraph.tracking.ranges import ByteRange
from shadowgraph.tracking.stacks import current_stack
from shadowgraph.tracking.views import TensorView


class _Local(threading.local):
    guard_depth = 0
    capturing = False


_local = _Local()


def _is_traced() -> bool:
    """Whether ``make_fx`` traces this thread; it knows tensors as objects, so that none may be replaced."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


def set_capturing(on: bool) -> None:
    """Stand aside in this thread while a capture records it."""
    _local.capturing = on


class EagerMode(TorchDispatchMode):
    """Watches one thread between captures and replays.

    Parameters
    ----------
    allocator
        Where guarded allocations go.
    tracked
        Whether a byte range belongs to a buffer that somebody wants to hear about.
    rule
        Which allocations are guarded outside `guard_allocations`; None for none.
    """

    inert = False  # its debugger has stopped, in a thread that could not take it off this one's stack

    def __init__(
        self, allocator: HostAllocator, tracked: Callable[[ByteRange], bool], rule: EagerGuard | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._allocator, self._tracked, self._rule = allocator, tracked, rule
        self._device = torch.device(allocator.device).type

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let a compiled function compile exactly as without us; its inside is not seen."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import the compiler, and Triton with it, at the first operator; see below

    def __torch_dispatch__(
        self, func: OpOverload | HigherOrderOperator, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if "torch._dynamo" in sys.modules:
            hide_from_compiler(EagerMode)
        return self.dispatch(func, args, kwargs or {})

    def dispatch(self, func: OpOverload | HigherOrderOperator, args: Any, kwargs: Any) -> Any:
        """Run an operator and note what it did; for a mode that stands in this one's place too."""
        if self.inert:
            return func(*args, **kwargs)
        if _local.capturing or not isinstance(func, OpOverload) or func.namespace == "prim":
            return func(*args, **kwargs)  # a higher-order operator or an attribute of a tensor that only fakes it
        schema: Schema | None = None
        with shielded("eager operator"):
            schema = schema_of(func, args)
        if schema is None:
            return func(*args, **kwargs)
        if schema.host_read or self._copies_to_host(schema, args, kwargs):
            for tensor in tensors_in(args):
                host_reads.note_read(tensor, schema.name)
        if schema.resizes:
            self._make_room(args[0], args[1])
        guarding = self._guards(schema)
        if schema.outs:
            results = call_with_outs(func, schema.outs, args, kwargs, self._allocate, take_empty=guarding)
        elif schema.name == "aten._lazy_clone.default":
            results = self._cloned(func, args[0])
        else:
            results = func(*args, **kwargs)
        if schema.written and listeners:
            with shielded("eager write"):
                self._note_write(schema, args, kwargs)
        if guarding and not schema.host_read:
            if schema.name == "aten.lift_fresh.default":
                return self._guarded_constant(results)
            if not func.is_view:
                return self._guarded(results, args, kwargs)
        return results

    def _guards(self, schema: Schema) -> bool:
        """Whether what an operator makes becomes a guarded static buffer."""
        rule = self._rule
        wanted = bool(_local.guard_depth) or (rule is not None and rule.active and rule.wants(schema))
        return wanted and not _is_traced()

    def _cloned(self, func: OpOverload, tensor: torch.Tensor) -> torch.Tensor:
        """A lazy clone; memory of ours cannot be copied on write, so that of it a clone is made at once."""
        ours = is_plain(tensor, self._device) and not tensor.untyped_storage().resizable()
        made: torch.Tensor = torch.ops.aten.clone.default(tensor) if ours else func(tensor)
        return made

    def _copies_to_host(self, schema: Schema, args: Any, kwargs: Any) -> bool:
        """A device-to-host copy is a host read; on the host backend nothing tells one from any other copy."""
        if self._device == "cpu" or not schema.name.startswith(("aten.copy_", "aten._to_copy")):
            return False
        if schema.name.startswith("aten._to_copy"):
            return bool(args[0].is_cuda and str(kwargs.get("device")) == "cpu")
        return bool(args[0].is_cpu and args[1].is_cuda)

    def _note_write(self, schema: Schema, args: Any, kwargs: Any) -> None:
        pointers = []
        tracked = False
        for name, tensor in named_tensors(schema.names, args, kwargs):
            if not is_plain(tensor, self._device):
                continue
            view = TensorView.of(tensor)
            access = schema.access(name)
            pointers.append(Pointer(name, view, access))
            tracked = tracked or (access is not Access.READ and self._tracked(ByteRange(view.start, view.stop)))
        # flashinfer's plan copies onto its own buffer what it is about to read: nothing was written
        onto_itself = schema.name == "aten.copy_.default" and len({p.view for p in pointers}) < len(pointers)
        if tracked and not onto_itself:
            emit("launch_ran", Launch(LaunchKind.ATEN, schema.name, tuple(pointers), current_stack()), None)

    def _guarded_constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """``torch.tensor(data)`` gets a home of its own; ``from_numpy`` keeps sharing the array's memory."""
        if is_plain(tensor, self._device) and tensor.untyped_storage().resizable():
            moved: torch.Tensor = self._guarded(tensor, (), {})
            return moved
        return tensor

    def _guarded(self, results: Any, args: Any, kwargs: Any) -> Any:
        with shielded("guarded allocation"):
            inputs = {storage_key(t) for t in tensors_in((args, kwargs)) if is_plain(t, self._device)}
            allocate = self._allocate if _local.guard_depth else self._allocate_small
            return Rehomed(results, inputs, allocate, self._device).results
        return results

    def _allocate_small(self, nbytes: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.UntypedStorage | None:
        limit = self._rule.limit() if self._rule is not None else None
        return None if limit is not None and nbytes > limit else self._allocate(nbytes, dtype, shape)

    def _allocate(self, nbytes: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.UntypedStorage | None:
        try:
            return self._allocator.storage(nbytes, self._allocator.static_pool, Role.STATIC, dtype, shape)[0]
        except MemoryError:
            self._allocator.unguarded_for_memory += 1
            return None

    def _make_room(self, tensor: torch.Tensor, size: Any) -> None:
        """Storages of ours cannot grow; where one would have to, it is replaced first."""
        if is_plain(tensor, self._device) and not tensor.untyped_storage().resizable():
            with shielded("guarded resize"):
                grow(tensor, wanted_size(size), self._allocate)


class guard_allocations:
    """Context in which eager allocations of this thread become guarded static buffers (an active `EagerMode`)."""

    def __enter__(self) -> None:
        _local.guard_depth += 1

    def __exit__(self, *exc: object) -> None:
        _local.guard_depth -= 1


_hidden: set[type] = set()


def hide_from_compiler(mode: type[TorchDispatchMode]) -> None:
    """Once the compiler is loaded, keep it from compiling a mode's own code, as torch does for other modes at once."""
    compiler = sys.modules.get("torch._dynamo")
    if mode not in _hidden and not getattr(getattr(compiler, "__spec__", None), "_initializing", True):
        _hidden.add(mode)
        hidden = torch._compile._disable_dynamo(mode.__torch_dispatch__, recursive=True)
        setattr(mode, "__torch_dispatch__", hidden)  # noqa: B010  # a method, to mypy
