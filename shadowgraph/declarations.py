"""What a user declares of tensors: host-owned, ruled, padded, watched."""

from __future__ import annotations

from collections.abc import Callable

import torch

from shadowgraph.checks.rules import Rule, rule_of
from shadowgraph.checks.stale_rows import POLICIES
from shadowgraph.common.errors import UnknownBufferError, UsageError
from shadowgraph.graphs.dispatch.tensors import is_plain
from shadowgraph.graphs.host.graph import HostGraph
from shadowgraph.graphs.lookup import model_of
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.stacks import current_stack
from shadowgraph.model.views import TensorView
from shadowgraph.monitor.monitor import Monitor
from shadowgraph.monitor.tensor_watches import Watch
from shadowgraph.tracking.allocator import HostAllocator
from shadowgraph.tracking.foreign import track_foreign


class Declarations:
    """The part of a debugger that takes declarations. No tensor that is handed over is kept alive."""

    _work: Monitor
    _allocator: HostAllocator

    def protect(self, tensor: torch.Tensor) -> None:
        """Declare a tensor host-owned: a replay that changes a value of it is SG102.

        Parameters
        ----------
        tensor
            Any dtype, strided; a view protects the bytes from its first to its last element. It is not kept alive: the
            declaration ends with the memory.

        Raises
        ------
        UnknownBufferError
            For what is no tensor, or has no plain memory on the backend's device.
        """
        buffer, view = self._locate(tensor)
        self._work.checks.mutation.protect(buffer, view.hull)
        self._work.naps.rouse()  # from the next replay on

    def invariant(self, tensor: torch.Tensor, rule: str | Rule | Callable[..., bool]) -> None:
        """Declare a rule for a contiguous tensor's values: SG109 where it fails.

        Parameters
        ----------
        tensor
            Contiguous, of a dtype that numpy has (not bfloat16, complex32, float8). It is not kept alive.
        rule
            ``"nondecreasing"``, `index_range`, or a callable that is handed a numpy copy of the values and returns
            whether they are well.

        Raises
        ------
        UsageError
            For a tensor with gaps, a dtype that numpy does not have, or a rule that does not exist.
        UnknownBufferError
            For what is no tensor, or has no plain memory on the backend's device.
        """
        buffer, view = self._locate(tensor)
        if not view.contiguous:
            raise UsageError("invariant() needs a contiguous tensor; pass the whole buffer or a contiguous slice of it")
        if view.dtype in {"bfloat16", "complex32"} or "float8" in view.dtype:
            raise UsageError(f"invariant() cannot read {view.dtype}; numpy has no such type")
        self._work.checks.invariants.declare(buffer, view, rule_of(rule))
        self._work.naps.rouse()  # it is judged at each read by the host, which are not heard of in a nap

    def padding(self, tensor: torch.Tensor, policy: str) -> None:
        """Declare what becomes of padded rows of a static input: those that a graph was captured with and that hold no
        request in this step.

        Parameters
        ----------
        tensor
            The whole input, or some rows of it. What was declared of these rows before is forgotten.
        policy
            ``"refresh"``: where some rows are written before a replay, all that the graph reads must be, or hold zeros
            or what a fill left; else SG103, without asking what other inputs show. ``"dont_care"``: nobody uses what
            they hold; never SG103. ``"judged"``: what other inputs show decides, as it does by default, and also under
            ``wrap``, where an input of which nothing is said gives notes only.

        Raises
        ------
        UsageError
            For another policy.
        UnknownBufferError
            For what is no tensor, or has no plain memory on the backend's device.
        """
        buffer, view = self._locate(tensor)
        if policy not in POLICIES:
            raise UsageError(f"padding() takes 'refresh', 'dont_care' or 'judged', not {policy!r}")
        self._work.checks.stale_rows.declare(buffer, view.hull, policy)

    def refreshes(self, graph: HostGraph | torch.cuda.CUDAGraph, owner: object, *attributes: str) -> None:
        """Declare that host code refreshes, between two replays of a graph, what some attributes of an object lead to.

        To be called when the graph has been captured, with the attributes as they were then. Where one leads to other
        memory later, of other values, while the memory that the graph reads is left as it was: SG108.

        Parameters
        ----------
        graph
            One that was captured while this debugger watched.
        owner
            Holds the tensors in its instance dictionary; it is not kept alive.
        *attributes
            Names of its attributes that the graph was captured with.

        Raises
        ------
        UsageError
            For a graph that was captured before anybody watched, and for an object that cannot be referred to weakly.
        UnknownBufferError
            For an attribute that leads to no tensor with memory of its own.
        """
        model = model_of(graph)
        if model is None:
            raise UsageError("this graph was captured before shadowgraph watched; capture it again, or start earlier")
        if not hasattr(type(owner), "__weakref__"):
            raise UsageError(f"refreshes() needs an object with attributes, not {type(owner).__name__}")
        for attribute in attributes:
            tensor = vars(owner).get(attribute)
            self._locate(tensor)
            assert isinstance(tensor, torch.Tensor)
            self._work.checks.rebound.bind(model, owner, attribute, tensor, planned=False)

    def watch(self, tensor: torch.Tensor, name: str | None = None) -> Watch:
        """Note everything that writes a tensor, bug or not.

        Parameters
        ----------
        tensor
            Strided, of any dtype. It is not kept alive: the watch ends with the memory.
        name
            What the report calls it; its owner's name, or the line that allocated it, unless given.

        Returns
        -------
        Watch
            Its `changes` grow as they are seen. The debugger holds it too.

        Raises
        ------
        UnknownBufferError
            For what is no tensor, or has no plain memory on the backend's device.
        """
        buffer, view = self._locate(tensor)
        watch = Watch(name or self._work.context.names.name_of(buffer)[0], buffer, view.hull)
        self._work.watches.watches.append(watch)
        self._work.naps.rouse()  # what writes it passes unseen in a nap
        return watch

    def _locate(self, tensor: object) -> tuple[Buffer, TensorView]:
        if not isinstance(tensor, torch.Tensor):
            raise UnknownBufferError(f"expected a tensor, got {type(tensor).__name__}")
        if not is_plain(tensor, torch.device(self._allocator.device).type) or not tensor.numel():
            raise UnknownBufferError(
                f"this tensor ({tensor.dtype}, {tuple(tensor.shape)}, {tensor.device}, {tensor.layout}) has no plain "
                f"{self._allocator.device} memory to track"
            )
        return track_foreign(self._work.context.ledger, tensor, current_stack()), TensorView.of(tensor)
