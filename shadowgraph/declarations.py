"""Declarations of a user about tensors: host-owned, invariant, padded, refreshed, watched.

Base class of `Debugger`; methods run in the caller's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import suppress

import numpy as np
import torch

from shadowgraph.checks.contents_lost.check import ContentsLost, Loss
from shadowgraph.checks.invariants.check import Invariants
from shadowgraph.checks.invariants.rules import Rule, rule_of
from shadowgraph.checks.mutation.check import InGraphMutation
from shadowgraph.checks.rebound.check import ReboundInputs
from shadowgraph.checks.stale_rows.check import StaleRows
from shadowgraph.checks.stale_rows.rules import POLICIES
from shadowgraph.checks.undefined.check import UndefinedInfluence
from shadowgraph.common.compat import weak_reference
from shadowgraph.common.errors import FindingsError, UnknownBufferError, UsageError
from shadowgraph.common.option_kinds import shown
from shadowgraph.common.suggestions import did_you_mean
from shadowgraph.graphs.dispatch.tensors import is_plain
from shadowgraph.graphs.host.graph import HostGraph
from shadowgraph.graphs.lookup import model_of
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.graphs import Graph
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import current_stack
from shadowgraph.model.views import TensorView
from shadowgraph.monitor.monitor import Monitor
from shadowgraph.monitor.tensor_watches import Watch
from shadowgraph.tracking.foreign import track_foreign
from shadowgraph.tracking.names import stored

_NO_OWNERS = (type(None), bool, int, float, complex, str, bytes, bytearray, memoryview, np.generic, np.ndarray, type)


class Declarations:
    """The declaring methods of a debugger. A tensor passed to them is not kept alive."""

    _work: Monitor

    def protect(self, tensor: torch.Tensor) -> None:
        """Declare a tensor host-owned: a replay that changes one of its values is reported as SG102.

        Parameters
        ----------
        tensor
            Any dtype, strided; a view protects the bytes from its first to its last element. It is not kept alive: the
            declaration ends with the memory.

        Raises
        ------
        UnknownBufferError
            For an object that is no tensor, or has no plain memory on the backend's device.
        """
        buffer, view = self._locate(tensor, "protect")
        self._work.checks[InGraphMutation].protect(buffer, view.hull)
        self._work.observation.observe_all()  # from the next replay on

    def invariant(self, tensor: torch.Tensor, rule: str | Rule | Callable[..., bool]) -> None:
        """Declare a rule for a contiguous tensor's values: a violation is reported as SG109.

        Parameters
        ----------
        tensor
            Contiguous, of a dtype that numpy has (not bfloat16, complex32, float8). It is not kept alive.
        rule
            ``"nondecreasing"``, `index_range`, or a callable that receives a numpy copy of the values and returns
            whether they are valid.

        Raises
        ------
        UsageError
            For a tensor with gaps, a dtype that numpy does not have, or an unknown rule.
        UnknownBufferError
            For an object that is no tensor, or has no plain memory on the backend's device.
        """
        buffer, view = self._locate(tensor, "invariant")
        if not view.contiguous:
            raise UsageError("invariant() needs a contiguous tensor; pass the whole buffer or a contiguous slice of it")
        if view.dtype in {"bfloat16", "complex32"} or "float8" in view.dtype:
            raise UsageError(f"invariant() cannot read {view.dtype}; numpy has no such type")
        self._work.checks[Invariants].declare(buffer, view, rule_of(rule))
        self._work.observation.observe_all()  # the rule is checked at host reads, not observed in the steady state

    def padding(self, tensor: torch.Tensor, policy: str) -> None:
        """Declare how padded rows of a static input are treated: rows that a graph was captured with and that hold no
        request in this step.

        Parameters
        ----------
        tensor
            The whole input, or some of its rows. Replaces an earlier declaration for these rows.
        policy
            ``"refresh"``: when some rows are written before a replay, all rows that the graph reads must be written, or
            hold zeros or values left by a fill; else SG103, without regard to other inputs. ``"dont_care"``: their
            values are not used; never SG103. ``"judged"``: decided by other inputs, as by default, and also under
            ``wrap``, where an undeclared input gives notes only.

        Raises
        ------
        UsageError
            For an unknown policy.
        UnknownBufferError
            For an object that is no tensor, or has no plain memory on the backend's device.
        """
        self._require_watching("padding")
        declare_padding(self._work, tensor, policy)

    def refreshes(self, graph: HostGraph | torch.cuda.CUDAGraph, owner: object, *attributes: str) -> None:
        """Declare that host code refreshes the tensors behind some attributes between two replays of a graph.

        Call it once the graph is captured, with the attributes as they were at capture. SG108 is reported when an
        attribute later leads to other memory with other values, while the memory that the graph reads stays unchanged.

        Parameters
        ----------
        graph
            A graph that was captured while this debugger watched.
        owner
            Holds the tensors in its instance dictionary, in slots, or as parameters and buffers of a module; it is not
            kept alive.
        *attributes
            Names of the attributes that the graph was captured with.

        Raises
        ------
        UsageError
            For a graph that was captured before the debugger watched, and for an object that cannot be weakly
            referenced.
        UnknownBufferError
            For an attribute that leads to no tensor with memory of its own.
        """
        self._require_watching("refreshes")
        if not attributes or not all(isinstance(each, str) for each in attributes):
            raise UsageError("refreshes() takes a graph, an object, and the names of its attributes")
        model = watched_model(graph, "refreshes")
        try:
            weak_reference(owner)
        except TypeError:
            kind = type(owner).__name__
            raise UsageError(
                f"refreshes() refers to the owner weakly, which {kind} does not allow; give an instance of a class"
            ) from None
        for attribute in attributes:
            tensor = stored(owner, attribute)
            if not isinstance(tensor, torch.Tensor):
                raise UnknownBufferError(
                    f"refreshes(): the attribute {attribute!r} of this {type(owner).__name__} leads to no tensor"
                )
            self._locate(tensor, "refreshes")
            self._work.checks[ReboundInputs].bind(model, owner, attribute, tensor, planned=False)

    def contents_lost(self, *tensors: torch.Tensor, how: str = "declared") -> None:
        """Declare that the contents of tensors are gone, and their addresses stayed, as after a sleep or a pause.

        Bytes of them that a graph reads before it writes them must be written before its next replay; else SG116.

        Parameters
        ----------
        *tensors
            Any dtype, strided. They are not kept alive.
        how
            What dropped them, for the report.

        Raises
        ------
        UnknownBufferError
            For an object that is no tensor, or has no plain memory on the backend's device.
        """
        if not isinstance(how, str):
            raise UsageError(f"contents_lost() takes a text as how, not {shown(how)}")
        ranges = [self._locate(tensor, "contents_lost")[1].hull for tensor in tensors]
        lose_contents(self._work, ranges, how)()

    def watch(self, tensor: torch.Tensor, name: str | None = None) -> Watch:
        """Record every write to a tensor, bug or not.

        Parameters
        ----------
        tensor
            Strided, of any dtype. It is not kept alive: the watch ends with the memory.
        name
            Its name in the report; by default its owner's name, or the line that allocated it.

        Returns
        -------
        Watch
            Its `changes` grow as writes are observed. The debugger holds it too.

        Raises
        ------
        UnknownBufferError
            For an object that is no tensor, or has no plain memory on the backend's device.
        """
        if name is not None and not isinstance(name, str):
            raise UsageError(f"watch() takes a tensor and a name as text, not {shown(name)}")
        buffer, view = self._locate(tensor, "watch")
        watch = Watch(name or self._work.context.names.name_of(buffer)[0], buffer, view.hull)
        self._work.watches.watches.append(watch)
        self._work.observation.observe_all()  # the steady state does not observe its writers
        return watch

    def _require_watching(self, method: str) -> None:
        """Refuse a method that has an effect only while the debugger watches."""
        raise NotImplementedError

    def _locate(self, tensor: object, method: str) -> tuple[Buffer, TensorView]:
        self._require_watching(method)
        return _locate(self._work, tensor, method)


def watched_model(graph: HostGraph | torch.cuda.CUDAGraph, method: str) -> Graph:
    """The model of a graph that was captured while a debugger watched.

    Raises
    ------
    UsageError
        For another graph, and for something else.
    """
    if graph is None:
        raise UsageError(f"{method}() takes a HostGraph or a torch.cuda.CUDAGraph, not None")
    model = model_of(graph)
    if model is None:
        raise UsageError("this graph was captured before shadowgraph watched; capture it again, or start earlier")
    return model


def declare_padding(work: Monitor, tensor: object, policy: str) -> None:
    """`Declarations.padding`, for users and adapters."""
    buffer, view = _locate(work, tensor, "padding")
    if not isinstance(policy, str) or policy not in POLICIES:
        near = did_you_mean(policy, POLICIES) if isinstance(policy, str) else ""
        raise UsageError(f"padding() takes 'refresh', 'dont_care' or 'judged', not {shown(policy)}{near}")
    work.checks[StaleRows].declare(buffer, view.hull, policy)
    undefined = work.checks.find(UndefinedInfluence)
    if undefined is not None:
        undefined.declare(buffer, view.hull, policy)


def keep_rows(work: Monitor, tensor: object) -> None:
    """Declare that padded rows of an input keep old values on purpose; says nothing of the rows that hold requests."""
    buffer, view = _locate(work, tensor)
    work.checks[StaleRows].declare(buffer, view.hull, "dont_care")


def keep_rule(work: Monitor, tensor: object, rule: Rule, most: int) -> None:
    """Declare a rule by what a package's source says: checked as an inferred one."""
    buffer, view = _locate(work, tensor)
    if view.contiguous:
        work.checks[Invariants].keep(buffer, view, rule, most)


def lose_contents(work: Monitor, ranges: Sequence[ByteRange], how: str, read: bool = False) -> Callable[[], None]:
    """`Debugger.contents_lost` in two steps, for users and adapters: called before the loss; the result after it.

    With `read` the memory is about to be unmapped: checks that read it and have not run yet are waited for. What they
    find is stored, and not raised in the middle of a pause.
    """
    check, stack = work.checks[ContentsLost], current_stack()
    if read:
        with suppress(FindingsError):
            work.drain()
    endangered = check.endangered(ranges, read)

    def lost() -> None:
        work.observation.observe_all()  # every write from here on counts
        check.lost(ranges, endangered, Loss(how, stack))

    return lost


def name_owner(work: Monitor, name: str, owner: object, without: Container[str] = ()) -> int:
    """`Debugger.name`, for users and adapters; these may leave out attributes."""
    if issubclass(type(owner), _NO_OWNERS):  # `isinstance` may run the program's code
        raise UnknownBufferError(f"name({name!r}) needs an object that holds tensors, not {type(owner).__name__}")
    return work.context.names.add(name, owner, without)


def _locate(work: Monitor, tensor: object, method: str = "") -> tuple[Buffer, TensorView]:
    device = work.allocator.device
    if not isinstance(tensor, torch.Tensor):
        called = f"{method}() " if method else ""
        raise UnknownBufferError(f"{called}expected a tensor, got {type(tensor).__name__}")
    if not is_plain(tensor, torch.device(device).type) or not tensor.numel():
        raise UnknownBufferError(
            f"this tensor ({tensor.dtype}, {tuple(tensor.shape)}, {tensor.device}, {tensor.layout}) has no plain "
            f"{device} memory to track"
        )
    return track_foreign(work.context.ledger, tensor, current_stack()), TensorView.of(tensor)
