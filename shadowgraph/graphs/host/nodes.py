"""Executable nodes of a host graph: the captured work over the same addresses, without the captured Python.

Run in the replaying thread; no lock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from shadowgraph.common.errors import CaptureError
from shadowgraph.graphs.dispatch.tensors import tensors_in
from shadowgraph.graphs.triton import host as triton_host
from shadowgraph.model.graphs import Node
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.reruns import Load
from shadowgraph.tracking.guard_keeper import GuardKeeper, Tenancy
from shadowgraph.tracking.loads import LoadLog
from shadowgraph.tracking.stores import StoreLog


@dataclass(slots=True, eq=False)
class AtenNode:
    """An operator over aliases of the tensors it was captured with; owns no memory.

    Attributes
    ----------
    outputs
        The destination of each result tensor, in order; None for one that aliases an input.
    """

    node: Node
    operator: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[torch.Tensor | None, ...]
    grad_mode: bool

    def run(self, watched: bool) -> StoreLog | None:
        torch._C._set_grad_enabled(self.grad_mode)  # the replay puts it back
        results = self.operator(*self.args, **self.kwargs)
        for result, home in zip(tensors_in(results), self.outputs, strict=False):
            if home is not None:
                _put(result, home)
        return None


def _put(result: torch.Tensor, home: torch.Tensor) -> None:
    if result.shape != home.shape or result.dtype != home.dtype:
        raise CaptureError(
            f"a replayed operator returned {result.dtype}{list(result.shape)} where the capture had "
            f"{home.dtype}{list(home.shape)}; its result depends on data or on a setting, which a graph cannot hold"
        )
    same = result.stride() == home.stride() and result.is_contiguous()
    if same and not (result.is_conj() or result.is_neg()):
        ctypes.memmove(home.data_ptr(), result.data_ptr(), result.numel() * result.element_size())
    else:
        home.copy_(result)


@dataclass(slots=True, eq=False)
class TritonNode:
    """A launch in Triton's interpreter over aliases, with a fixed grid."""

    node: Node
    executor: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self, watched: bool) -> StoreLog | None:
        log = triton_host.new_log() if watched else None
        triton_host.execute(self.executor, self.args, self.kwargs, log)
        return log

    def loads(self, where: ByteRange) -> list[Load]:
        """Run it, and return its loads of bytes of a range."""
        log = StoreLog()
        log.loads = LoadLog(where)
        triton_host.execute(self.executor, self.args, self.kwargs, log)
        return log.loads.found


@dataclass(slots=True, eq=False)
class CallableNode:
    """A Python callable that the program put into the graph; the program decides what it keeps alive."""

    node: Node
    function: Callable[..., object]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self, watched: bool) -> StoreLog | None:
        self.function(*self.args, **self.kwargs)
        return None


@dataclass(slots=True, eq=False)
class TenancyNode:
    """A block gets the tenant that was allocated here: the guards move to its size. Runs none of the program's work."""

    tenancy: Tenancy
    guards: GuardKeeper

    def move_intact(self) -> bool:
        """Whether the guards were moved without a check for a culprit, since the present ones are intact."""
        return self.guards.move_intact(self.tenancy)

    def run(self, watched: bool) -> StoreLog | None:
        self.guards.move_in_replay(self.tenancy)
        return None


Step = AtenNode | TritonNode | CallableNode | TenancyNode
