"""Recorder of a host capture: every operator with the tensors it touched, every Triton launch, every callable.

A capture on CUDA runs no work. Here operators must run to shape their results, so the bytes of static inputs that a
captured operator writes are saved before the first such write and restored at the end of the capture, together with the
random number generators. Runs in the capturing thread; no lock.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from shadowgraph.common.errors import CaptureError
from shadowgraph.graphs.dispatch import mode_sensitive
from shadowgraph.graphs.dispatch.borrowed_memory import note_tensor
from shadowgraph.graphs.dispatch.calling import call
from shadowgraph.graphs.dispatch.out_resize import bytes_of, call_with_outs, grow, wanted_size
from shadowgraph.graphs.dispatch.schemas import Schema, accumulates, schema_of
from shadowgraph.graphs.dispatch.tensors import (
    Aliases,
    Rehomed,
    alias,
    is_plain,
    map_tensors,
    named_tensors,
    storage_key,
    tensors_in,
    view_facts,
)
from shadowgraph.graphs.host.capture_restore import Generators, SavedInputs
from shadowgraph.graphs.host.nodes import AtenNode, CallableNode, Step, TenancyNode, TritonNode
from shadowgraph.graphs.host.unsupported_ops import HOST_READ, READS, SEEDED, call_name, no_plain_memory, shaped_by_data
from shadowgraph.graphs.triton import host as triton_host
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.graphs import Access, Allocation, Graph, Launch, LaunchKind, Node, Pointer
from shadowgraph.model.launches import RESULT
from shadowgraph.model.stacks import Stack, current_stack
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.allocator import HostAllocator, Pool
from shadowgraph.tracking.foreign import is_alias, track_foreign
from shadowgraph.tracking.pointer_tables import tables
from shadowgraph.tracking.pool_watch import borrowers

Given = list[tuple[str, torch.Tensor]]  # an operator's tensor arguments by name

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_CPU_KERNEL = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


class Recorder(TorchDispatchMode):
    """The mode that is active in the capturing thread.

    Attributes
    ----------
    steps
        The steps that a replay runs.
    foreign
        Weak references to storages outside the arena, with the node that uses each first.
    constants
        Tensors made from Python data during the capture; the graph owns them.
    failure
        The first refusal, which makes the capture invalid even when the program swallows it.
    """

    def __init__(self, graph: Graph, pool: Pool, allocator: HostAllocator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        mode_sensitive.install()
        self.graph, self.pool, self.allocator = graph, pool, allocator
        self.steps: list[Step] = []
        self.foreign: dict[int, tuple[StorageWeakRef, TensorView, Node]] = {}
        self.constants: dict[int, torch.UntypedStorage] = {}
        self.failure: CaptureError | None = None
        self._own: set[int] = set()
        self._stack: Stack | None = None
        self._unwritten: set[int] = set()  # constants that were not written so far
        self._inputs, self._generators = SavedInputs(), Generators()

    # -- operators ---------------------------------------------------------------------------------------------

    supports_higher_order_operators = True  # to refuse them with a reason

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # No compilation can reach the dispatch below (the capture's stance is eager), so that its guard, and the import
        # of the compiler that the guard needs, are saved.
        return False

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(t.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl for t in types):
            return NotImplemented  # a subclass unwraps itself first; its inner operators arrive here
        if not isinstance(func, OpOverload):
            self.refuse(f"the higher-order operator {func}", "its parts cannot be recorded; call them one by one")
        schema = schema_of(func, args)
        bodied = "cpu" in schema.python_bodies
        if bodied or schema.composite:
            with self:  # a graph holds its inner operators
                if bodied:
                    return func.redispatch(_CPU_KERNEL, *args, **kwargs)
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        return self.take_whole(func, args, kwargs)

    def take_whole(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """Run an operator and make it one node, whatever its parts (`mode_sensitive`)."""
        schema = schema_of(func, args)
        self._stack = None
        given = list(named_tensors(schema.names, args, kwargs))
        self._refuse_what_cannot_be_held(schema, args, kwargs, given)
        if schema.name == "aten.lift_fresh.default":
            made = func(*args, **kwargs)
            note_tensor(made, self.allocator)
            return self._constant(made)
        for name, tensor in given if schema.written else ():
            if name.split("[")[0] in schema.written:
                self._save(tensor)
        if schema.resizes:
            return self._resized(func, schema, args, kwargs)
        if schema.asserts:  # during a capture the values are not meaningful
            self._add_operator(func, schema, args, kwargs, given, [])
            return None
        return self._run(func, schema, args, kwargs, given)

    def _run(self, func: OpOverload, schema: Schema, args: Any, kwargs: Any, given: Given) -> Any:
        if schema.outs:
            results = call_with_outs(func, schema.outs, args, kwargs, self._allocate, take_empty=True)
        else:
            results = call(func, args, kwargs)
        if schema.random:
            self._generators.drew(kwargs.get("generator"))
        if schema.borrows:
            note_tensor(results if schema.aliases else args[0], self.allocator, schema.aliases)
        moved = Rehomed(results, {storage_key(t) for _, t in given if not t.is_meta}, self._allocate)
        if moved.strange is not None:
            self._refuse_strange(schema, moved.strange)
        if _needs_node(schema, moved.fresh):
            self._add_operator(func, schema, args, kwargs, given, moved.fresh)
        return moved.results

    def _add_operator(
        self,
        func: OpOverload,
        schema: Schema,
        args: Any,
        kwargs: Any,
        given: Given,
        fresh: list[torch.Tensor | None],
    ) -> None:
        plain = [(name, t) for name, t in given if is_plain(t)]
        pointers = [Pointer(name, view_facts(t), schema.access(name)) for name, t in plain]
        pointers += [Pointer(RESULT, view_facts(t), Access.WRITE) for t in fresh if t is not None]
        adds = accumulates(schema, args, kwargs)
        launch = Launch(LaunchKind.ATEN, schema.name, tuple(pointers), self._caller(), accumulates=adds)
        node = self._node(launch)
        for _, tensor in plain:
            self._note_foreign(tensor, node)
        aliases = Aliases()
        homes = tuple(None if t is None else aliases(t) for t in fresh)
        frozen = (map_tensors(args, aliases), map_tensors(kwargs, aliases))
        self.steps.append(AtenNode(node, func, *frozen, homes, torch.is_grad_enabled()))

    # -- memory that grows and values made in Python -----------------------------------------------------------

    def _resized(self, func: OpOverload, schema: Schema, args: Any, kwargs: Any) -> Any:
        copied = grow(args[0], wanted_size(args[1]), self._allocate)
        if copied is not None:
            self._add_copy(schema.name, *copied)
        return func(*args, **kwargs)

    def _add_copy(self, name: str, target: torch.Tensor, source: torch.Tensor) -> None:
        """Add a node that copies bytes; it keeps neither side alive."""
        pointers = (
            Pointer("self", TensorView.of(source), Access.READ),
            Pointer(RESULT, TensorView.of(target), Access.WRITE),
        )
        node = self._node(Launch(LaunchKind.ATEN, name, pointers, self._caller()))
        self._note_foreign(source, node)
        self._note_foreign(target, node)
        copy = torch.ops.aten.copy_.default
        self.steps.append(AtenNode(node, copy, (alias(target), alias(source)), {}, (None,), False))

    def _constant(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self.constants[int(storage._cdata)] = storage
        self._unwritten.add(int(storage._cdata))
        return tensor

    def _restart_constant(self, storage: torch.UntypedStorage) -> None:
        """Before the first write to a constant: add a node that restores its value at each replay.

        Memory shared with numpy is left unchanged: its value belongs to the host.
        """
        self._unwritten.discard(int(storage._cdata))
        if storage.nbytes() and storage.resizable():
            kept = bytes_of(storage).clone()
            self.constants[int(kept.untyped_storage()._cdata)] = kept.untyped_storage()
            self._add_copy("aten.lift_fresh.default", bytes_of(storage), kept)

    # -- launches and callables --------------------------------------------------------------------------------

    def record_triton(self, executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Make a launch a node; it runs once, with stores outside its arguments dropped."""
        tensors = list(triton_host.tensors_of(args, kwargs))
        for tensor in tensors:
            self._save(tensor)
        grid = triton_host.execute_confined(executor, args, kwargs)
        node = self._node(triton_host.describe(executor, args, kwargs, grid))
        for tensor in tensors:
            self._note_foreign(tensor, node)
        for pointer in tables.behind(node.launch.pointers):
            self._note_input(self.allocator.ledger.at(pointer.view.start))
        self.steps.append(TritonNode(node, *triton_host.frozen(executor, grid, args, kwargs)))

    def record_callable(
        self,
        function: Callable[..., object],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        reads: tuple[torch.Tensor, ...],
        writes: tuple[torch.Tensor, ...],
    ) -> None:
        """Make a callable a node; it is not run now."""
        pointers = [Pointer(f"reads[{i}]", TensorView.of(t), Access.READ) for i, t in enumerate(reads)]
        pointers += [Pointer(f"writes[{i}]", TensorView.of(t), Access.WRITE) for i, t in enumerate(writes)]
        node = self._node(Launch(LaunchKind.CALLABLE, _callable_name(function), tuple(pointers), current_stack()))
        for tensor in (*reads, *writes, *tensors_in((args, kwargs))):
            if is_plain(tensor):
                self._note_foreign(tensor, node)
        aliases = Aliases()
        self.steps.append(CallableNode(node, function, map_tensors(args, aliases), map_tensors(kwargs, aliases)))

    # -- end ---------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Restore static inputs and the random number generators to their state before the capture, which is over."""
        self.graph.ended = self.allocator.ledger.next_serial()
        self._inputs.restore()
        self._generators.restore()

    # -- parts -------------------------------------------------------------------------------------------------

    def _node(self, launch: Launch) -> Node:
        node = Node(len(self.graph.nodes), launch)
        self.graph.nodes.append(node)
        return node

    def _allocate(self, nbytes: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.UntypedStorage:
        storage, buffer = self.allocator.storage(
            nbytes, self.pool, Role.POOL, dtype, shape, self.graph.serial, self._caller()
        )
        self._own.add(buffer.start)
        self.graph.allocations.append(Allocation.of(len(self.graph.nodes), buffer))
        guards = self.allocator.guards
        self.steps.append(TenancyNode(guards.claim(buffer), guards))
        return storage

    def _note_foreign(self, tensor: torch.Tensor, node: Node) -> None:
        storage = tensor.untyped_storage()
        key = int(storage._cdata)
        if not storage.nbytes() or key in self.constants or key in self.foreign:
            return
        start = storage.data_ptr()
        if self.allocator.lends(storage):
            self.graph.borrowed[node.index, start] = borrowers.see(storage, self.allocator.ledger.next_serial()).serial
        if not self.allocator.holds(start):
            if not is_alias(storage):
                self.foreign[key] = (StorageWeakRef(storage), TensorView.of(tensor), node)
            self._note_input(track_foreign(self.allocator.ledger, tensor))
        elif start not in self._own:
            self._note_input(self.allocator.ledger.owner(start, start + storage.nbytes()))

    def _note_input(self, buffer: Buffer | None) -> None:
        if buffer is not None:
            self.graph.note_input(buffer)

    def _caller(self) -> Stack:
        """The program's stack at the operator being recorded, walked once."""
        if self._stack is None:
            self._stack = current_stack()
        return self._stack

    def _save(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._own:
            return
        if int(storage._cdata) in self._unwritten:
            self._restart_constant(storage)
        self._inputs.save(storage)

    def _refuse_what_cannot_be_held(self, schema: Schema, args: Any, kwargs: Any, given: Given) -> None:
        if schema.host_read and not self._only_constants(args):
            self.refuse(call_name(schema), HOST_READ)
        if schema.random and not self._generators.untouched(kwargs.get("generator")):
            self.refuse(call_name(schema), SEEDED)
        reason = shaped_by_data(schema, args, kwargs) if schema.data_shaped or schema.indexes else None
        reason = reason or _first_without_memory(given)
        if reason is not None:
            self.refuse(call_name(schema), reason)

    def _refuse_strange(self, schema: Schema, tensor: torch.Tensor) -> None:
        reason = no_plain_memory(tensor)
        if reason is not None:
            self.refuse(call_name(schema), reason)

    def refuse(self, what: str, why: str) -> NoReturn:
        """Abort the capture with one clear error."""
        stack = current_stack(1)
        where = f" at {stack[0].file}:{stack[0].line}" if stack else ""
        error = CaptureError(f"cannot capture {what}{where}: {why}")
        self.failure = self.failure or error
        raise error

    def refuse_host_read(self, method: str, tensor: torch.Tensor) -> None:
        """Refuse a read that no dispatch mode sees; constants may be read."""
        if int(tensor.untyped_storage()._cdata) not in self._unwritten:
            self.refuse(READS.get(method, f"Tensor.{method}()"), HOST_READ)

    def _only_constants(self, args: Any) -> bool:
        return all(int(t.untyped_storage()._cdata) in self._unwritten for t in tensors_in(args))


def _first_without_memory(given: Given) -> str | None:
    """Why address and strides do not describe one of the tensors, or None."""
    for _, tensor in given:
        reason = None if is_plain(tensor) else no_plain_memory(tensor)
        if reason is not None:
            return reason
    return None


def _needs_node(schema: Schema, fresh: list[torch.Tensor | None]) -> bool:
    """Whether an operator wrote memory; a view by its schema may still have made a copy."""
    if schema.written and not schema.pure_view:
        return True
    return not schema.allocates and any(tensor is not None for tensor in fresh)


def _callable_name(function: object) -> str:
    """The name of a callable: constant between runs, and without its arguments."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__qualname__
