"""Dispatch mode for the eager operators of one thread: notes writes to tracked buffers, and guards allocations on
request.

`__torch_dispatch__` runs in the thread of each operator, without a lock; events are emitted there. State of a thread is
thread-local.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import _get_current_dispatch_mode

from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.graphs.dispatch import active_pools, host_copies, host_reads, host_waits, operand_notes, pool_reads
from shadowgraph.graphs.dispatch.borrowed_memory import note_tensor
from shadowgraph.graphs.dispatch.calling import call
from shadowgraph.graphs.dispatch.eager_guard import LARGEST, EagerGuard
from shadowgraph.graphs.dispatch.fencing import Fencing
from shadowgraph.graphs.dispatch.indexing import IndexUse, index_uses
from shadowgraph.graphs.dispatch.large import LargeResults
from shadowgraph.graphs.dispatch.observer_mode import ObserverMode
from shadowgraph.graphs.dispatch.op_filter import Path, Relevance, path_of, paths
from shadowgraph.graphs.dispatch.out_resize import call_with_outs, grow, wanted_size
from shadowgraph.graphs.dispatch.schemas import Schema
from shadowgraph.graphs.dispatch.stepping_aside import FENCE, MADE_FX, POOLED, stepped_aside
from shadowgraph.graphs.dispatch.tensors import Rehomed, is_plain, named_tensors, storage_key, tensors_in, view_facts
from shadowgraph.graphs.events import events, listeners
from shadowgraph.model.buffers import Role
from shadowgraph.model.graphs import Launch, LaunchKind, Pointer
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import current_stack
from shadowgraph.tracking import pending_sources
from shadowgraph.tracking.allocator import HostAllocator
from shadowgraph.tracking.captures import captures
from shadowgraph.tracking.foreign import drop_stale
from shadowgraph.tracking.pointer_tables import tables
from shadowgraph.tracking.pool_watch import watch
from shadowgraph.tracking.stream_order import order

_depth: Callable[[], int] = torch._C._len_torch_dispatch_stack
_CONSTANT = "aten.lift_fresh.default"  # of `torch.tensor`


@dataclass(eq=False)
class _Rest:
    """A mode that `follow` took off its thread's stack, and the number of modes left there."""

    mode: ObserverMode
    depth: int


class _Local(threading.local):
    guard_depth = 0
    capturing = False
    aside: ObserverMode | None = None  # mode taken off the stack during a capture
    rest: _Rest | None = None


_local = _Local()
rests: dict[int, weakref.ref[_Rest]] = {}  # of all living threads, by id


class Idle:
    """Receives operators before any capture; see `shadowgraph.monitor.idleness`."""

    counting = False

    def operator(self, works: bool) -> None:
        """An operator is about to run; `works` as in `Path`."""

    def passed(self) -> None:
        """An operator passed unseen."""


def _moves(schema: Schema) -> bool:
    """Whether the output of an operator may get its memory only while the operator runs."""
    return schema.resizes or bool(schema.outs)


def _is_made_fx() -> bool:
    """Whether ``make_fx`` traces this thread; it tracks tensor objects, so that none may be replaced."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


def set_capturing(on: bool) -> None:
    """Make the mode inactive in this thread while a capture records it."""
    _local.capturing = on


def suspend() -> None:
    """`set_capturing`, and take the mode off this thread's stack if no mode is above it: each mode costs every operator
    microseconds."""
    _local.capturing = True
    mode = _get_current_dispatch_mode()
    if isinstance(mode, ObserverMode) and mode.steps_aside:
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        _local.aside = mode


def resume_mode() -> None:
    """Undo `suspend`."""
    _local.capturing = False
    mode, _local.aside = _local.aside, None
    if mode is not None and not getattr(mode, "inert", False):
        mode.__enter__()  # type: ignore[no-untyped-call]


def follow(unobserved: bool) -> None:
    """Take this thread's mode off its stack while its operators are not observed, if no mode is above it; put it back
    afterwards.

    Not put back above a mode that the program has entered meanwhile: on leaving that one, the program would pop ours.
    It is then put back by a later call.
    """
    rest = _local.rest
    if _local.capturing:
        return
    if rest is None and unobserved:
        _take_off()
    elif rest is not None and not unobserved:
        _put_back(rest)


def _take_off() -> None:
    mode = _get_current_dispatch_mode()
    if isinstance(mode, ObserverMode) and mode.steps_aside:
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        _local.rest = rest = _Rest(mode, _depth())
        key = id(rest)
        rests[key] = weakref.ref(rest, lambda _: rests.pop(key, None) and None)  # the thread has ended


def _put_back(rest: _Rest) -> None:
    inert = getattr(rest.mode, "inert", False)
    if inert or _depth() <= rest.depth:
        _local.rest = None
        rests.pop(id(rest), None)
        if not inert:
            rest.mode.__enter__()  # type: ignore[no-untyped-call]


def anyone_rests() -> bool:
    """Whether the mode of an active debugger is off any thread's stack."""
    found = [each() for each in list(rests.values())]
    return any(rest is not None and not getattr(rest.mode, "inert", False) for rest in found)


class EagerMode(ObserverMode):
    """Observes one thread between captures and replays.

    Parameters
    ----------
    allocator
        The allocator of guarded memory.
    tracked
        Whether a byte range belongs to a tracked buffer.
    rule
        Selects the allocations that are guarded outside `guard_allocations`; None for none.
    thorough
        Report every operator that takes indices before it runs, tracked or not.
    unobserved
        Whether operators are to pass unseen now, also in threads whose mode cannot be removed.
    idle
        Counts operators until the first capture.
    fencing
        Selects the allocations that get a fence; None for none.

    Attributes
    ----------
    uses_host
        Whether copies between host and device memory are reported, and allocations and writes of their host memory.
    """

    notes_operands = False  # whether operators that only read tracked memory are reported, too
    inert = False  # its debugger was stopped in another thread, which could not take it off this stack
    steps_aside = True

    def __init__(
        self,
        allocator: HostAllocator,
        tracked: Callable[[ByteRange], bool],
        rule: EagerGuard | None = None,
        thorough: bool = False,
        unobserved: Callable[[], bool] = lambda: False,
        idle: Idle | None = None,
        fencing: Fencing | None = None,
    ) -> None:
        super().__init__()
        self._allocator, self._rule, self._thorough, self._fencing = allocator, rule, thorough, fencing
        place = torch.device(allocator.device)
        self._device, self._index, self._place = place.type, -1 if place.index is None else place.index, str(place)
        self._unobserved, self._idle = unobserved, idle if idle is not None else Idle()
        self.uses_host = self._device != "cpu"
        self._host_copies = host_copies.Place(self._device, self._index, self._place, allocator.ledger)
        self._announces = thorough or self._device != "cpu"  # operators on the host raise by themselves
        self._relevance = Relevance(allocator.ledger, tracked, self._device, self._index)
        self._large = LargeResults(allocator, rule, self._device, self._index) if rule is not None else None

    def __torch_dispatch__(
        self, func: OpOverload | HigherOrderOperator, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return self.dispatch(func, args, kwargs or {})

    def dispatch(self, func: OpOverload | HigherOrderOperator, args: Any, kwargs: Any) -> Any:
        """Run an operator and note its effects; also called by a mode that stands in for this one."""
        if self.inert or self._unobserved():
            self._idle.passed()
            return call(func, args, kwargs)
        if _local.capturing or not isinstance(func, OpOverload) or func.namespace == "prim":
            results = call(func, args, kwargs)  # a higher-order operator, or an attribute of a fake tensor
            if order.on and isinstance(func, HigherOrderOperator):
                order.host_waits_here()
            return results
        if self.notes_operands:
            with error_barrier("operands"):
                self._note_operands(func, args, kwargs)
        if watch.on:
            pool_reads.note_operator(func, args, kwargs)
        results = self._observed(func, args, kwargs)
        notes = operand_notes.current
        if notes is not None and (notes.closely or (notes.learns and id(func) in operand_notes.copying)):
            with error_barrier("operands"):
                notes.note(func, args, kwargs, results)
        if order.on and id(func) not in host_waits.never:
            with error_barrier("waits of the host"):
                host_waits.note(func, args, kwargs)
        return results

    def _observed(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        path = paths.get(id(func))
        if path is not None and path.plain and path.operator is func and self._passes(path, args, kwargs):
            return call(func, args, kwargs)
        return self._handle(func, args, kwargs)

    def _handle(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        path: Path | None = None
        with error_barrier("eager operator"):
            path = path_of(func, args)
        if path is None:
            return call(func, args, kwargs)
        if self._idle.counting:
            with error_barrier("count of operators"):
                self._idle.operator(path.works)
        guarding = self._guards(path.schema)
        pins = path.pins and host_copies.pins(path.schema, kwargs)
        if path.quiet and not guarding and not pins:
            return call(func, args, kwargs)
        if self.uses_host and listeners and (pins or path.copies or pending_sources.spans):
            run = partial(self._run, path, guarding, args, kwargs)
            return host_copies.run_told(run, path, pins, args, kwargs, self._host_copies)
        return self._run(path, guarding, args, kwargs)

    def _note_operands(self, func: OpOverload, args: Any, kwargs: Any) -> None:
        """Report the tracked memory that an operator is about to read."""
        schema = path_of(func, args).schema
        shaped_only = "_like." in schema.name or schema.name.split(".")[1].startswith("new_")
        if schema.pure_view or schema.host_read or shaped_only:
            return
        read = tuple(p for p in self._pointers(schema, args, kwargs) if p.may_read and self._is_tracked(p))
        if read:
            events.operands_read(schema.name, read)

    def _passes(self, path: Path, args: Any, kwargs: Any) -> bool:
        """Whether an operator with a plain path needs no handling: most operators take this path."""
        if self._thorough or _local.guard_depth or (self._rule is not None and self._rule.every):
            return False
        if not path.quiet and self._relevance.of(path, args, kwargs):
            return False
        if pending_sources.spans and host_copies.writes_pending(path, args, kwargs):
            return False
        if self._idle.counting:
            with error_barrier("count of operators"):
                self._idle.operator(path.works)
        return True

    def _run(self, path: Path, guarding: bool, args: Any, kwargs: Any) -> Any:
        schema = path.schema
        if guarding and self._large is not None and not _local.guard_depth and not self._fences(schema):
            with error_barrier("large allocation"):
                large = self._large.make(path.operator, schema, args, kwargs)
                if large is not None:
                    return large
        if schema.host_read or path.copies_to_host:
            self._note_host_read(schema, args, kwargs)
        if schema.resizes:
            self._make_room(args[0], args[1])
        if listeners and (schema.written or schema.takes_indices) and self._is_told(path, args, kwargs):
            results = self._call_told(path, guarding, args, kwargs)
        else:
            results = self._call(path, guarding, args, kwargs)
        if schema.borrows:
            note_tensor(results, self._allocator, schema.aliases)
        if guarding and not schema.host_read:
            results = self._guarded_results(path, results, args, kwargs)
        self._note_addresses(schema, results)
        return results

    def _note_addresses(self, schema: Schema, made: Any) -> None:
        """A tensor that may hold addresses was made, outside of captures: in one its words cannot be read."""
        if schema.name != _CONSTANT or made.dtype != torch.uint64:
            return
        if self._is_here(made) and not captures.running:
            with error_barrier("table of addresses"), torch._C._DisableTorchDispatch():
                tables.note(made, self._allocator.ledger)

    def _is_told(self, path: Path, args: Any, kwargs: Any) -> bool:
        return self._thorough or _moves(path.schema) or self._relevance.of(path, args, kwargs)

    def _call_told(self, path: Path, guarding: bool, args: Any, kwargs: Any) -> Any:
        """Run an operator, with an event before it where operators are announced, and one after its writes."""
        schema = path.schema
        launch: Launch | None = None
        if self._announces:
            with error_barrier("eager launch"):
                launch = self._announce(schema, args, kwargs)
        results = self._call(path, guarding, args, kwargs)
        if schema.written:
            with error_barrier("eager write"):
                self._note_write(schema, args, kwargs, None if _moves(schema) else launch)
        return results

    def _call(self, path: Path, guarding: bool, args: Any, kwargs: Any) -> Any:
        func, schema = path.operator, path.schema
        if schema.outs:
            results = call_with_outs(func, schema.outs, args, kwargs, self._allocate, take_empty=guarding)
        elif schema.name == "aten._lazy_clone.default":
            results = self._cloned(func, args[0])
        else:
            results = call(func, args, kwargs)
        if schema.resizes and self._device != "cpu":  # on the host each replay looks for moved storages
            with error_barrier("eager resize"):
                drop_stale(self._allocator.ledger)
                self._allocator.sweep_large()
        return results

    def _guarded_results(self, path: Path, results: Any, args: Any, kwargs: Any) -> Any:
        if path.schema.name == _CONSTANT:  # a view of what torch made where no mode sees it
            return self._guarded_constant(results)
        return results if path.operator.is_view else self._guarded(results, args, kwargs)

    def _note_host_read(self, schema: Schema, args: Any, kwargs: Any) -> None:
        """Tell of the tensors that an operator reads on the host."""
        if not schema.host_read and not self._copies_to_host(schema, args, kwargs):
            return
        waits = not (kwargs.get("non_blocking") or any(argument is True for argument in args))
        for tensor in tensors_in(args):
            host_reads.note_read(tensor, schema.name, waits)

    def _guards(self, schema: Schema) -> bool:
        """Whether the results of an operator become guarded static buffers."""
        rule = self._rule
        wanted = bool(_local.guard_depth) or (rule is not None and rule.active and rule.wants(schema))
        if not (wanted or self._fences(schema)):
            return False
        reason = POOLED if active_pools.routed() else MADE_FX if _is_made_fx() else None
        if reason is not None:
            stepped_aside(FENCE + reason if self._fences(schema) else reason)
        return reason is None

    def _fences(self, schema: Schema) -> bool:
        """Whether the results of an operator are to have fences."""
        return self._fencing is not None and self._fencing.wants(schema)

    def _cloned(self, func: OpOverload, tensor: torch.Tensor) -> torch.Tensor:
        """A lazy clone; guarded memory cannot be copied on write, so that it is cloned at once."""
        ours = is_plain(tensor, self._device) and not tensor.untyped_storage().resizable()
        made: torch.Tensor = torch.ops.aten.clone.default(tensor) if ours else func(tensor)
        return made

    def _copies_to_host(self, schema: Schema, args: Any, kwargs: Any) -> bool:
        """Whether a copy is a host read: from device to host it is; on the host backend it looks like any other
        copy."""
        if self._device == "cpu":
            return False
        if schema.name.startswith("aten._to_copy"):
            return bool(args[0].is_cuda and str(kwargs.get("device")) == "cpu")
        return bool(args[0].is_cpu and args[1].is_cuda)

    def _announce(self, schema: Schema, args: Any, kwargs: Any) -> Launch | None:
        """Report an operator that is about to write tracked memory, or to take relevant indices; returns the reported
        launch."""
        pointers = self._pointers(schema, args, kwargs)
        plain = self._plain_uses(schema, args, kwargs) if schema.takes_indices else []
        if (plain and self._thorough) or any(self._is_tracked(p) for p in pointers if plain or p.may_write):
            launch = Launch(LaunchKind.ATEN, schema.name, tuple(pointers), current_stack())
            events.launch_begins(launch, tuple(use.rule() for use in plain))
            return launch
        return None

    def _plain_uses(self, schema: Schema, args: Any, kwargs: Any) -> list[IndexUse]:
        """The uses of indices in which index and target are plain tensors on this device."""
        given = {**dict(zip(schema.names, args, strict=False)), **kwargs}
        uses = index_uses(schema.name, given)
        return [use for use in uses if self._is_here(use.index) and self._is_here(use.target)]

    def _note_write(self, schema: Schema, args: Any, kwargs: Any, launch: Launch | None) -> None:
        """Report a write to tracked memory, with the launch reported before it ran if there is one."""
        pointers = launch.pointers if launch is not None else tuple(self._pointers(schema, args, kwargs))
        # flashinfer's plan copies a buffer onto itself before it reads it: no value changes
        onto_itself = schema.name == "aten.copy_.default" and len({p.view for p in pointers}) < len(pointers)
        if not onto_itself and any(self._is_tracked(p) for p in pointers if p.may_write):
            launch = launch or Launch(LaunchKind.ATEN, schema.name, pointers, current_stack())
            events.launch_ran(launch, None)

    def _pointers(self, schema: Schema, args: Any, kwargs: Any) -> list[Pointer]:
        return [
            Pointer(name, view_facts(tensor, self._place), schema.access(name))
            for name, tensor in named_tensors(schema.names, args, kwargs)
            if self._is_here(tensor)
        ]

    def _is_here(self, tensor: torch.Tensor) -> bool:
        return is_plain(tensor, self._device) and tensor.get_device() == self._index

    def _is_tracked(self, pointer: Pointer) -> bool:
        view = pointer.view
        return self._relevance.tracked(view.address, view.stop - view.address)

    def _guarded_constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """Move ``torch.tensor(data)`` to guarded memory; ``from_numpy`` keeps sharing the array's memory."""
        if is_plain(tensor, self._device) and tensor.untyped_storage().resizable():
            moved: torch.Tensor = self._guarded(tensor, (), {})
            return moved
        return tensor

    def _guarded(self, results: Any, args: Any, kwargs: Any) -> Any:
        with error_barrier("guarded allocation"):
            if any(tensor.get_device() != self._index for tensor in tensors_in(results)):
                return results  # a device that is not watched
            inputs = {storage_key(t) for t in tensors_in((args, kwargs)) if is_plain(t, self._device)}
            allocate = self._allocate if _local.guard_depth else self._allocate_small
            return Rehomed(results, inputs, allocate, self._device).results
        return results

    def _allocate_small(self, nbytes: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.UntypedStorage | None:
        fenced = self._allocate_fenced(nbytes, dtype, shape)
        limit = self._rule.limit() if self._rule is not None else LARGEST
        if fenced is not None or (limit is not None and nbytes > limit):
            return fenced
        return self._allocate_guarded(nbytes, dtype, shape, guarded=True)

    def _allocate(self, nbytes: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.UntypedStorage | None:
        fenced = self._allocate_fenced(nbytes, dtype, shape)
        return fenced if fenced is not None else self._allocate_guarded(nbytes, dtype, shape)

    def _allocate_guarded(
        self, nbytes: int, dtype: torch.dtype, shape: tuple[int, ...], guarded: bool = False
    ) -> torch.UntypedStorage | None:
        pool = self._allocator.static_pool
        try:
            return self._allocator.storage(nbytes, pool, Role.STATIC, dtype, shape, guarded=guarded)[0]
        except MemoryError:
            if self._allocator.policy is not None:
                self._allocator.policy.drop()
            return None

    def _allocate_fenced(self, nbytes: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.UntypedStorage | None:
        """A storage with a fence, where one is wanted and can be laid."""
        fencing, pool = self._fencing, self._allocator.static_pool
        if fencing is None or not fencing.here():
            return None
        try:
            storage, buffer = self._allocator.storage(nbytes, pool, Role.STATIC, dtype, shape, fenced=True)
        except MemoryError as error:
            stepped_aside(f"{FENCE}{error}")
            return None
        with error_barrier("fences"):
            fencing.laid(buffer)
        return storage

    def _make_room(self, tensor: torch.Tensor, size: Any) -> None:
        """Guarded storages cannot grow; one that would have to is replaced first."""
        if is_plain(tensor, self._device) and not tensor.untyped_storage().resizable():
            with error_barrier("guarded resize"):
                before = tensor.untyped_storage().data_ptr()
                owner = self._allocator.ledger.at(before)
                grow(tensor, wanted_size(size), self._allocate)
                if owner is not None and tensor.untyped_storage().data_ptr() != before:
                    owner.resized = True


def leave_stopped_modes() -> None:
    """Take the modes of stopped debuggers off the top of this thread's stack.

    A mode can be removed only in its own thread, and only from the top; below others it stays, inert.
    """
    while isinstance(mode := _get_current_dispatch_mode(), EagerMode) and mode.inert:
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]


class guard_allocations:
    """Context in which eager allocations of this thread become guarded static buffers (with an active `EagerMode`)."""

    def __enter__(self) -> None:
        _local.guard_depth += 1

    def __exit__(self, *exc: object) -> None:
        _local.guard_depth -= 1
