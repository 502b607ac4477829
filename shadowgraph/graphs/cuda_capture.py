"""What a CUDA capture launches, as far as a dispatch mode and Triton's launcher see it.

A capture must stay fast, so each operator is only noted down; what it pointed at is read off when the capture ends,
and the model is built from that when somebody first asks for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from shadowgraph.faults import shielded
from shadowgraph.graphs import eager
from shadowgraph.graphs.model import Access, Graph, Launch, LaunchKind, Node, Pointer
from shadowgraph.graphs.schemas import schema_of
from shadowgraph.graphs.tensors import is_plain, named_tensors, tensors_in
from shadowgraph.tracking.buffers import Ledger
from shadowgraph.tracking.foreign import track_foreign
from shadowgraph.tracking.stacks import RawStack, raw_stack, stack_of
from shadowgraph.tracking.views import TensorView

_FRAMES = 6

Form = tuple[torch.dtype, tuple[int, ...], RawStack]
_Noted = tuple[OpOverload, Any, Any, Any, RawStack]


class _Facts:
    """One operator's tensors as plain numbers; no tensor is held."""

    __slots__ = ("func", "inputs", "results", "stack")

    def __init__(self, func: OpOverload, inputs: list[Any], results: list[Any], stack: RawStack) -> None:
        self.func, self.inputs, self.results, self.stack = func, inputs, results, stack

    def node(self, index: int) -> Node:
        schema = schema_of(self.func)
        pointers = [Pointer(name, _view(facts), schema.access(name)) for name, facts in self.inputs]
        pointers += [Pointer("result", _view(facts), Access.WRITE) for facts in self.results]
        return Node(index, Launch(LaunchKind.ATEN, schema.name, tuple(pointers), stack_of(self.stack)))


class CaptureMode(TorchDispatchMode):
    """Notes each operator while one thread captures; changes nothing that runs.

    Parameters
    ----------
    isolate
        Keep every tensor until the capture ends, so that no block of the pool has two tenants in it.

    Attributes
    ----------
    made
        Form and stack of each tensor that the capture allocated, by address; complete after `finish`.
    """

    def __init__(self, graph: Graph, ledger: Ledger, isolate: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph, self._ledger, self._isolate = graph, ledger, isolate
        self._noted: list[_Noted | Launch] = []
        self._facts: list[_Facts | Launch] = []
        self.made: dict[int, Form] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let a compiled function compile exactly as without us."""
        return True

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **kwargs) if kwargs else func(*args)
        if not func.is_view:
            self._noted.append((func, args, kwargs, results, raw_stack(_FRAMES)))
            if not self._isolate:  # tensors must die when the program lets them
                self._settle()
        return results

    def note_triton(self, launch: Launch) -> None:
        """A Triton launch in the capturing thread."""
        self._noted.append(launch)

    def finish(self) -> None:
        """Read off what was noted and let the capture's tensors go; the model is built when it is first used."""
        self._settle()
        facts = self._facts

        def nodes() -> list[Node]:
            return [Node(i, f) if isinstance(f, Launch) else f.node(i) for i, f in enumerate(facts)]

        self._graph.build_later(nodes)

    def _settle(self) -> None:
        noted, self._noted = self._noted, []
        for entry in noted:
            with shielded("captured operator"):
                self._facts.append(entry) if isinstance(entry, Launch) else self._read(*entry)

    def _read(self, func: OpOverload, args: Any, kwargs: Any, results: Any, stack: RawStack) -> None:
        schema = schema_of(func)
        inputs, known = [], set()
        for name, tensor in named_tensors(schema.names, args, kwargs or {}):
            if is_plain(tensor, "cuda"):
                facts = _facts(tensor)
                inputs.append((name, facts))
                known.add(facts[1])
                if facts[1] not in self.made:
                    track_foreign(self._ledger, tensor)
        fresh = []
        for tensor in _plain_in(results):
            facts = _facts(tensor)
            if facts[1] not in known and facts[2]:
                fresh.append(facts)
                self.made[facts[1]] = (tensor.dtype, tuple(tensor.shape), stack)
        if (inputs or fresh) and not schema.pure_view:
            self._facts.append(_Facts(func, inputs, fresh, stack))


def _plain_in(results: Any) -> Iterator[torch.Tensor]:
    return (tensor for tensor in tensors_in(results) if is_plain(tensor, "cuda"))


def _facts(tensor: torch.Tensor) -> tuple[int, int, int, tuple[int, ...], tuple[int, ...], torch.dtype, int]:
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


def _view(facts: Any) -> TensorView:
    address, storage, nbytes, shape, stride, dtype, device = facts
    name = str(dtype).removeprefix("torch.")
    return TensorView(address, storage, nbytes, shape, stride, name, dtype.itemsize, f"cuda:{device}")


class _Local(threading.local):
    mode: CaptureMode | None = None


_local = _Local()


def current() -> CaptureMode | None:
    """The mode of the capture in this thread, if any."""
    return _local.mode


def enter(mode: CaptureMode) -> None:
    """Begin to note this thread's operators; the eager mode stands aside."""
    eager.set_capturing(True)
    _local.mode = mode
    mode.__enter__()  # type: ignore[no-untyped-call]


def leave(mode: CaptureMode) -> None:
    """Stop noting."""
    mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    _local.mode = None
    eager.set_capturing(False)
