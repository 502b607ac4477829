"""Events of a backend, and the listeners that receive them. Backends do not know the checks; a debugger is one
listener.

`graphs` emits them in the program's thread that captures, replays, launches or reads, without a lock; each listener
takes its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVarTuple

from shadowgraph.common.errors import ShadowgraphError
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.model.views import TensorView

if TYPE_CHECKING:
    import torch

    from shadowgraph.model.graphs import Graph, Launch, Node
    from shadowgraph.model.host_copies import HostWrite, QueuedCopy
    from shadowgraph.model.launches import IndexRule, Pointer
    from shadowgraph.tracking.stores import StoreLog

Facts = TypeVarTuple("Facts")


class Listener:
    """Every event as a method that does nothing. Exceptions other than `ShadowgraphError` are counted as internal
    errors."""

    def capture_began(self, graph: Graph) -> None:
        """A capture starts; no operator of it has run yet."""

    def capture_ended(self, graph: Graph) -> None:
        """A capture is complete; static inputs hold their bytes from before it again."""

    def graph_reset(self, graph: Graph) -> None:
        """A graph was reset, captured again or garbage collected; its nodes are gone."""

    def replay_refused(self, graph: Graph) -> None:
        """A replay does not begin: an input is gone. ``graph.replays`` does not count it."""

    def replay_began(self, graph: Graph) -> None:
        """A replay is about to run; ``graph.replays`` already counts it."""

    @property
    def wants_each_node(self) -> bool:
        """Whether `node_ran` is to be called after each node of the running replay, instead of `nodes_ran` later on."""
        return type(self).node_ran is not Listener.node_ran

    def node_ran(self, graph: Graph, node: Node, stores: StoreLog | None) -> None:
        """A node of a replay ran; stores are known for Triton nodes."""

    def nodes_ran(self, graph: Graph, nodes: Sequence[Node]) -> None:
        """Operators of a replay ran, one after the other; no other node, guard check or listener ran in between."""

    def replay_failed(self, graph: Graph) -> None:
        """A replay raised; it ran in part or not at all."""

    def replay_ended(self, graph: Graph) -> None:
        """A replay is complete."""

    def replays_passed(self, graph: Graph) -> None:
        """Replays have ended that only their graphs' own check nodes observed (see `tracking.passing`); the
        last one was of this graph."""

    def checks_itself(self, graph: Graph, end: bool) -> None:
        """A replay of a host graph that passes unobserved is about to run, or has run: what check nodes of a CUDA graph
        do on the device is to be done."""

    def launch_begins(self, launch: Launch, rules: tuple[IndexRule, ...]) -> None:
        """An eager launch that touches a tracked buffer or takes indices is about to run."""

    def launch_ran(self, launch: Launch, stores: StoreLog | None) -> None:
        """An eager launch that writes a tracked buffer ran."""

    def operands_read(self, name: str, pointers: Sequence[Pointer]) -> None:
        """An eager operator is about to read tracked memory through these pointers; only where that is asked for."""

    def host_read(self, view: TensorView, how: str, waits: bool = True) -> None:
        """The host is about to read a tensor's bytes, and to wait for them unless `waits` is False."""

    def pool_read(self, tensor: torch.Tensor, view: TensorView, how: str) -> None:
        """Eager code, or the host, is about to read a tensor in watched memory of a pool (`tracking.pool_watch`)."""

    def pool_written(self, tensor: torch.Tensor, view: TensorView, how: str) -> None:
        """An eager operator is about to write a tensor in watched memory of a pool; `launch_ran` follows where the
        memory is tracked."""

    def copy_queued(self, copy: QueuedCopy) -> None:
        """An asynchronous copy from pinned memory was queued on the current stream, and nothing behind it yet."""

    def host_write_begins(self, write: HostWrite) -> None:
        """An operator is about to write host memory of `tracking.pending_sources`."""

    def host_write_ran(self, write: HostWrite) -> None:
        """The operator of `host_write_begins` ran."""


class Listeners(list[Listener]):
    """The listeners; caches, for each event, the methods that are overridden: each replay emits two events."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, tuple[Callable[..., None], ...]] = {}  # cache of `overriding`; `event` keeps the object

    def append(self, listener: Listener) -> None:
        super().append(listener)
        self.known.clear()

    def remove(self, listener: Listener) -> None:
        super().remove(listener)
        self.known.clear()

    def overriding(self, event: str) -> tuple[Callable[..., None], ...]:
        """The methods to call for an event, in order."""
        nothing = getattr(Listener, event)
        able = [each for each in self if getattr(type(each), event) is not nothing]
        known = self.known[event] = tuple(getattr(each, event) for each in able)
        return known


listeners = Listeners()


def event(method: Callable[[Listener, *Facts], None]) -> Callable[[*Facts], None]:
    """The function that emits an event: it takes the arguments of a method of `Listener`, by position, and calls that
    method of every listener. An internal error in one reaches neither the program nor the other listeners."""
    name, known = method.__name__, listeners.known

    def emit(*facts: *Facts) -> None:
        for hear in known.get(name) or listeners.overriding(name):
            try:  # as `error_barrier`, without its cost
                hear(*facts)
            except ShadowgraphError:
                raise
            except Exception as error:
                internal_errors.note(name, error)

    emit.__name__ = emit.__qualname__ = name
    return emit


class Events:
    """The events, each a function that emits it: ``events.replay_began(graph)``."""

    def __init__(self) -> None:
        self.capture_began = event(Listener.capture_began)
        self.capture_ended = event(Listener.capture_ended)
        self.graph_reset = event(Listener.graph_reset)
        self.replay_refused = event(Listener.replay_refused)
        self.replay_began = event(Listener.replay_began)
        self.node_ran = event(Listener.node_ran)
        self.nodes_ran = event(Listener.nodes_ran)
        self.replay_failed = event(Listener.replay_failed)
        self.replay_ended = event(Listener.replay_ended)
        self.replays_passed = event(Listener.replays_passed)
        self.checks_itself = event(Listener.checks_itself)
        self.launch_begins = event(Listener.launch_begins)
        self.launch_ran = event(Listener.launch_ran)
        self.operands_read = event(Listener.operands_read)
        self.host_read = event(Listener.host_read)
        self.pool_read = event(Listener.pool_read)
        self.pool_written = event(Listener.pool_written)
        self.copy_queued = event(Listener.copy_queued)
        self.host_write_begins = event(Listener.host_write_begins)
        self.host_write_ran = event(Listener.host_write_ran)


events = Events()
