"""What a backend tells whoever listens. Backends know nothing of checks; a debugger is one listener."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shadowgraph.common.errors import ShadowgraphError
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.model.views import TensorView

if TYPE_CHECKING:
    from shadowgraph.model.graphs import Graph, Launch, Node
    from shadowgraph.model.launches import IndexRule
    from shadowgraph.tracking.stores import StoreLog


class Listener:
    """Every event as a method that does nothing. Exceptions other than `ShadowgraphError` are counted as faults."""

    def capture_began(self, graph: Graph) -> None:
        """A capture starts; nothing of it ran yet."""

    def capture_ended(self, graph: Graph) -> None:
        """A capture is complete; static inputs hold again what they held before it."""

    def graph_reset(self, graph: Graph) -> None:
        """A graph was reset or captured anew; its nodes are gone."""

    def replay_refused(self, graph: Graph) -> None:
        """A replay does not begin: an input is gone. ``graph.replays`` does not count it."""

    def replay_began(self, graph: Graph) -> None:
        """A replay is about to run; ``graph.replays`` already counts it."""

    @property
    def wants_each_node(self) -> bool:
        """Whether `node_ran` is to be called after each node of the replay that runs, not `nodes_ran` later on."""
        return type(self).node_ran is not Listener.node_ran

    def node_ran(self, graph: Graph, node: Node, stores: StoreLog | None) -> None:
        """A node of a replay ran; stores are known for Triton nodes."""

    def nodes_ran(self, graph: Graph, nodes: Sequence[Node]) -> None:
        """Operators of a replay ran, one after the other, and no other node, look at guards or listener since."""

    def replay_failed(self, graph: Graph) -> None:
        """A replay raised; it ran in part or not at all."""

    def replay_ended(self, graph: Graph) -> None:
        """A replay is complete."""

    def replays_passed(self, graph: Graph) -> None:
        """Replays are over that passed unseen, with what prepared them (see `graphs.passing`), the last one of this
        graph."""

    def launch_begins(self, launch: Launch, rules: tuple[IndexRule, ...]) -> None:
        """An eager launch is about to run that touches a tracked buffer or takes indices."""

    def launch_ran(self, launch: Launch, stores: StoreLog | None) -> None:
        """An eager launch that writes a tracked buffer ran."""

    def host_read(self, view: TensorView, how: str, waits: bool = True) -> None:
        """The host is about to read a tensor's bytes, and to wait for them unless `waits` is False."""


class Listeners(list[Listener]):
    """Who is told; knows, for each event, whose method does anything with it: each replay comes by there twice."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, tuple[Callable[..., None], ...]] = {}  # what `finding_listeners` has worked out

    def append(self, listener: Listener) -> None:
        super().append(listener)
        self.known = {}

    def remove(self, listener: Listener) -> None:
        super().remove(listener)
        self.known = {}

    def finding_listeners(self, event: str) -> tuple[Callable[..., None], ...]:
        """The methods to call, in order."""
        nothing = getattr(Listener, event)
        able = [each for each in self if getattr(type(each), event) is not nothing]
        known = self.known[event] = tuple(getattr(each, event) for each in able)
        return known


listeners = Listeners()


def emit(event: str, *facts: object) -> None:
    """Tell every listener; a fault in one reaches neither the program nor the other listeners."""
    for hear in listeners.known.get(event) or listeners.finding_listeners(event):
        try:  # what `error_barrier` does, without its cost
            hear(*facts)
        except ShadowgraphError:
            raise
        except Exception as error:
            internal_errors.note(event, error)
