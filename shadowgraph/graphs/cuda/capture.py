"""The launches of a CUDA capture, recorded by a dispatch mode and by a hook on Triton's launcher.

A capture must stay fast, so each operator is only noted; its pointers are read when the capture ends, and the model is
built on first use. Runs in the capturing thread, or in a thread whose current stream belongs to the capture; no lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch
from torch._ops import OpOverload

from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.graphs.cuda.capture_watch import CaptureTracer
from shadowgraph.graphs.cuda.driver import driver
from shadowgraph.graphs.cuda.node_attribution import Marks, Newest, Owner
from shadowgraph.graphs.cuda.recorded_capture import RecordedCapture
from shadowgraph.graphs.dispatch import eager
from shadowgraph.graphs.dispatch.calling import call, redispatch
from shadowgraph.graphs.dispatch.host_copies import makes_host_memory
from shadowgraph.graphs.dispatch.observer_mode import ObserverMode
from shadowgraph.graphs.dispatch.schemas import Schema, accumulates, schema_of
from shadowgraph.graphs.dispatch.tensors import is_lazy_copy, is_plain, named_tensors, tensors_in
from shadowgraph.model.buffers import Ledger, Role
from shadowgraph.model.graphs import Access, Allocation, Graph, Launch, LaunchKind, Node, Pointer
from shadowgraph.model.launches import RESULT
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import Stack
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.foreign import track_foreign
from shadowgraph.tracking.host_memory import note_made_in_capture, note_used
from shadowgraph.tracking.traces import Trace, gather, stacks_of

_FRAMES = 6
_LIFT = torch.ops.aten.lift_fresh.default
_CUDA_KERNEL = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
_PYTHON = torch._C.DispatchKey.Python
COPIES = "aten.copy_", "aten._to_copy", "aten._foreach_copy_"

Form = tuple[torch.dtype, tuple[int, ...], Trace]
_Noted = tuple[OpOverload, Any, Any, Any, Trace, int]
_Facts = tuple[int, int, int, tuple[int, ...], tuple[int, ...], torch.dtype, int]


class _Operator:
    """One operator's tensors as plain numbers; no tensor is held."""

    __slots__ = ("adds", "func", "inputs", "results", "trace")

    def __init__(
        self,
        func: OpOverload,
        inputs: list[tuple[str, _Facts]],
        results: list[_Facts],
        trace: Trace,
        adds: bool | None,
    ) -> None:
        self.func, self.inputs, self.results, self.trace, self.adds = func, inputs, results, trace, adds

    def node(self, index: int, stack: Stack) -> Node:
        schema = schema_of(self.func)
        pointers = [Pointer(name, _view(facts), schema.access(name)) for name, facts in self.inputs]
        pointers += [Pointer(RESULT, _view(facts), Access.WRITE) for facts in self.results]
        return Node(index, Launch(LaunchKind.ATEN, schema.name, tuple(pointers), stack, accumulates=self.adds))


class Origin(NamedTuple):
    """A capture's record of the owners of its nodes, as `device_model` reads it."""

    log: list[tuple[Newest, Owner]]
    launches: dict[int, int]


class CaptureMode(ObserverMode):
    """Notes each operator while one thread captures, and calls it.

    Where the body of an operator is in Python, the operators that the body calls are noted, and the operator itself
    only if the body also launches past the dispatcher. As under any dispatch mode, such a body runs below autograd and
    autocast.

    Parameters
    ----------
    isolate
        Keep every tensor until the capture ends, so that no block of the pool gets a second tenant.
    marks
        Notes the graph's newest nodes around every launch, so that nodes can be joined to launches; None where the
        driver is too old.

    Attributes
    ----------
    model
        The graph.
    over
        Whether it was left in another thread than that of the capture, which still has to leave it.
    made
        Dtype, shape and stack of each tensor that the capture allocated, by address; complete after `finish`.
    launches
        Index of a launch in the graph by its number in `marks`; complete after `finish`.
    traced
        Whether a `CaptureTracer` attributes what C functions launch past the dispatcher.
    """

    traced, over = True, False

    def __init__(self, graph: Graph, ledger: Ledger, isolate: bool, marks: Marks | None = None) -> None:
        super().__init__()
        self.model, self._ledger, self._isolate = graph, ledger, isolate
        self.marks = marks
        self.watch: CaptureTracer | None = None
        self.before: CaptureMode | RecordedCapture | None = None  # the capture around this one in its thread
        self._token = 0
        self._noted: list[_Noted | tuple[Launch, int]] = []
        self._steps: list[_Operator | Launch] = []
        self.launches: dict[int, int] = {}
        self._inputs: set[tuple[int, int]] = set()  # storages that are certainly in the ledger
        self._known: dict[int, _Facts] = {}  # by id of the tensors that are kept
        self.made: dict[int, Form] = {}
        self._allocated: list[tuple[int, _Facts]] = []  # with the number of launches before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, OpOverload) or func.is_view:
            results = call(func, args, kwargs)
            if func is _LIFT:  # a view of what ``torch.tensor(data)`` made where no mode sees it
                with error_barrier("captured operator"):
                    self._note_host_memory(schema_of(_LIFT), args, {}, results)
            return results
        marks, token = self.marks, self._next()
        inside, marked = _has_python_body(func, args, kwargs), 0
        if marks is None:
            results = self._call(func, args, kwargs, inside)
        else:
            marks.begin(token)
            marked = len(marks.log)
            try:
                results = self._call(func, args, kwargs, inside)
            finally:
                marks.end()
        if inside and marks is not None and all(owner not in (token, None) for _, owner in marks.log[marked:]):
            return results  # all that it launched is of operators and kernels that it called
        self._noted.append((func, args, kwargs, results, gather(), token))
        if not self._isolate:  # tensors must die when the program lets them
            self._settle()
        return results

    def _call(self, func: OpOverload, args: Any, kwargs: Any, inside: bool) -> Any:
        """Call an operator; with `inside`, the operators that its body calls are noted."""
        if not inside:
            return call(func, args, kwargs)
        with self:
            return redispatch(func, _CUDA_KERNEL, args, kwargs or {})

    def begin(self) -> None:
        """Start noting."""
        self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Stop noting."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    @property
    def origin(self) -> Origin:
        """The owners of the graph's nodes; complete after `finish`."""
        return Origin(self.marks.log if self.marks is not None else [], self.launches)

    @contextmanager
    def triton(self, launch: Launch) -> Iterator[None]:
        """Around a Triton launch in the capturing thread; `marks` attributes its nodes, so that the `CaptureTracer`
        ignores it."""
        marks, token = self.marks, self._next()
        if marks is not None:
            marks.begin(token)
        try:
            yield
        finally:
            if marks is not None:
                marks.end()
        self._noted.append((launch, token))
        with error_barrier("captured launch"):
            self._note_owners(launch)

    def _next(self) -> int:
        self._token += 1
        return self._token

    def finish(self) -> None:
        """Read the noted operators and release the capture's tensors; the model is built on first use."""
        self._settle()
        self._known.clear()
        steps, allocated = self._steps, self._allocated
        now = self.model.ended = self._ledger.next_serial()

        def nodes() -> list[Node]:
            stacks = iter(stacks_of([step.trace for step in steps if isinstance(step, _Operator)], _FRAMES))
            return [Node(i, s) if isinstance(s, Launch) else s.node(i, next(stacks)) for i, s in enumerate(steps)]

        self.model.build_later(nodes)
        self.model.build_allocations_later(lambda: [_allocation(before, facts, now) for before, facts in allocated])

    def drop(self) -> None:
        """Release the capture's tensors unread."""
        self._noted.clear()
        self._known.clear()

    def _settle(self) -> None:
        noted, self._noted = self._noted, []
        for entry in noted:
            with error_barrier("captured operator"):
                if len(entry) == 2:
                    self.launches[entry[1]] = len(self._steps)
                    self._steps.append(entry[0])
                else:
                    self._read(*entry)

    def _read(self, func: OpOverload, args: Any, kwargs: Any, results: Any, trace: Trace, token: int) -> None:
        schema = schema_of(func)
        if schema.pure_view and not schema.allocates:  # it may have changed the known facts of its tensors
            self._known.clear()
            return
        inputs, known = [], set()
        for name, tensor in named_tensors(schema.names, args, kwargs or {}):
            facts = self._facts(tensor)
            if facts is not None:
                inputs.append((name, facts))
                known.add(facts[1])
        fresh = []
        for tensor in tensors_in(results):
            facts = self._facts(tensor, result=True)
            if facts is not None and facts[1] not in known and facts[2]:
                fresh.append(facts)
                self.made[facts[1]] = (tensor.dtype, tuple(tensor.shape), trace)
                self._allocated.append((len(self._steps), facts))
        self._note_host_memory(schema, args, kwargs or {}, results)
        if (inputs or fresh) and not schema.pure_view:
            self.launches[token] = len(self._steps)
            self._steps.append(_Operator(func, inputs, fresh, trace, accumulates(schema, args, kwargs or {})))

    def _note_host_memory(self, schema: Schema, args: Any, kwargs: Any, results: Any) -> None:
        """Note the storages of host memory that a copy node may use: they may end before the graph."""
        if makes_host_memory(schema, kwargs):
            made = [tensor for tensor in tensors_in(results) if _has_host_memory(tensor)]
            for tensor in made:
                note_made_in_capture(self._ledger, tensor, self.model.serial)
        if schema.name.startswith(COPIES):
            for tensor in tensors_in(args[:2]):
                if _has_host_memory(tensor):
                    note_used(self._ledger, tensor)

    def _note_owners(self, launch: Launch) -> None:
        """Note the ledger's buffers that a kernel was given; buffers of pools may be this capture's own."""
        for view in (pointer.view for pointer in launch.pointers):
            owner = self._ledger.owner(view.storage_address, view.storage_address + view.storage_nbytes)
            if owner is not None and owner.role is not Role.POOL:
                self.model.note_input(owner)

    def _facts(self, tensor: torch.Tensor, result: bool = False) -> _Facts | None:
        """A tensor's facts, None for one without plain device memory; inputs not made in the capture are entered into
        the ledger."""
        facts = self._known.get(id(tensor))
        if facts is not None:
            return facts
        if not is_plain(tensor, "cuda"):
            return None
        facts = _facts(tensor)
        if self._isolate:
            self._known[id(tensor)] = facts
        if not result and facts[1] not in self.made and facts[1:3] not in self._inputs:
            buffer = track_foreign(self._ledger, tensor)
            self.model.note_input(buffer)
            self._inputs.add(facts[1:3])
        return facts


def _has_python_body(func: OpOverload, args: Any, kwargs: Any) -> bool:
    """Whether an operator's kernel for these arguments is a Python function, which may read more than its arguments, as
    attention in vLLM does, and no other mode and no tensor subclass would handle the call."""
    if "cuda" not in schema_of(func).python_bodies or torch._C._len_torch_dispatch_stack():
        return False
    tensors = [*tensors_in(args), *tensors_in(kwargs)]
    return bool(tensors) and all(
        is_plain(tensor, "cuda") and not is_lazy_copy(tensor) and not torch._C._dispatch_keys(tensor).has(_PYTHON)
        for tensor in tensors
    )


def _has_host_memory(tensor: torch.Tensor) -> bool:
    return is_plain(tensor) and bool(tensor.nbytes) and not is_lazy_copy(tensor)


def _facts(tensor: torch.Tensor) -> _Facts:
    storage = tensor.untyped_storage()
    return (
        tensor.data_ptr(),
        storage.data_ptr(),
        storage.nbytes(),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
        tensor.get_device(),
    )


def _view(facts: _Facts) -> TensorView:
    address, storage, nbytes, shape, stride, dtype, device = facts
    name = str(dtype).removeprefix("torch.")
    return TensorView(address, storage, nbytes, shape, stride, name, dtype.itemsize, f"cuda:{device}")


def _allocation(before: int, facts: _Facts, serial: int) -> Allocation:
    _, start, nbytes, shape, _, dtype, _ = facts
    where = ByteRange(start, start + nbytes)
    return Allocation(before, where, serial, str(dtype).removeprefix("torch."), dtype.itemsize, shape)


Capture: TypeAlias = CaptureMode | RecordedCapture


class _Local(threading.local):
    mode: Capture | None = None


_local = _Local()
_by_graph: dict[int, Capture] = {}  # of running captures; autograd's thread launches into the capture of its caller
_threads: dict[int, tuple[int, Capture]] = {}  # of all running captures, by the graph's serial: thread and mode


def current() -> Capture | None:
    """The mode of this thread's capture, else of the capture that the current stream belongs to, if any."""
    settle()
    if _local.mode is not None or not _by_graph:
        return _local.mode
    with error_barrier("capture in another thread"):
        return _by_graph.get(driver().capturing(torch.cuda.current_stream().cuda_stream) or 0)
    return None


def enter(mode: Capture) -> None:
    """Start noting this thread's operators; the eager mode is suspended."""
    settle()
    eager.suspend()
    mode.before, _local.mode = _local.mode, mode
    _threads[mode.model.serial] = threading.get_ident(), mode
    if mode.marks is not None:
        _by_graph[mode.marks.graph] = mode
        if mode.traced:
            mode.watch = CaptureTracer(mode.marks)
            mode.watch.begin()
    mode.begin()


def leave(mode: Capture) -> None:
    """Stop noting. In another thread than that of the capture, which may be waiting, do what can be done there; the
    thread itself does the rest in `settle`."""
    thread, _ = _threads.pop(mode.model.serial, (threading.get_ident(), mode))
    if mode.marks is not None and _by_graph.get(mode.marks.graph) is mode:
        del _by_graph[mode.marks.graph]
    if thread == threading.get_ident():
        _leave_here(mode)
        return
    mode.over = True
    if isinstance(mode, RecordedCapture):
        mode.end()


def abandon(model: Graph) -> None:
    """A graph has died in the middle of its capture, or at any other time, which changes nothing."""
    _, mode = _threads.get(model.serial, (0, None))
    if mode is not None:
        try:
            leave(mode)
        finally:
            mode.drop()


def end_recordings() -> None:
    """Leave all captures that are recorded in C++. A dispatch mode may stand below one of the program's."""
    for _, mode in tuple(_threads.values()):
        if isinstance(mode, RecordedCapture):
            abandon(mode.model)


def settle() -> None:
    """Leave this thread's captures that another thread has ended."""
    while _local.mode is not None and _local.mode.over:
        _local.mode.over = False
        with error_barrier("capture ended elsewhere"):
            _leave_here(_local.mode)


def _leave_here(mode: Capture) -> None:
    try:
        mode.end()
    finally:
        try:
            if mode.watch is not None:
                mode.watch.end()
        finally:
            if _local.mode is mode:
                _local.mode = mode.before
            eager.resume_mode()
