"""Device nodes of a captured CUDA graph, joined to the launches and source lines that made them.

The nodes are read from the driver on first use, in the requesting thread, under the model's lock `Graph.reading`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from shadowgraph.common.errors import ShadowgraphError
from shadowgraph.graphs.cuda.capture_watch import Called
from shadowgraph.graphs.cuda.driver import driver, raw_graph
from shadowgraph.graphs.cuda.node_attribution import Newest, Owner, owners_of
from shadowgraph.graphs.cuda.reading import UNATTRIBUTED, Allocations, GraphReader, Join
from shadowgraph.graphs.cuda.runner_lines import GraphLines, LearntCall, names_of
from shadowgraph.model.buffers import Ledger
from shadowgraph.model.device_nodes import DeviceNode
from shadowgraph.model.graphs import Graph
from shadowgraph.model.stacks import Stack
from shadowgraph.tracking.traces import stacks_of

_FRAMES = 6


class Origin(Protocol):
    """A capture's record of the owners of its nodes."""

    @property
    def log(self) -> Sequence[tuple[Newest, Owner]]:
        """Newest nodes at each mark, and their owner: the number of a launch, or a C function that was called."""

    @property
    def launches(self) -> Mapping[int, int]:
        """Index in `Graph.nodes` by the number of a launch."""


def read_later(graph: Any, model: Graph, ledger: Ledger, origin: Origin, lines: GraphLines | None = None) -> None:
    """Let a model read its device nodes on request, as long as the graph holds them.

    Parameters
    ----------
    graph
        A ``torch.cuda.CUDAGraph`` that keeps its ``cudaGraph_t``; not kept alive.
    lines
        Of other graphs of its runner, for nodes without an owner.
    """
    alive = weakref.ref(graph)
    model.build_device_later(lambda: _read(alive, model, ledger, origin, lines))


def _read(
    alive: Callable[[], Any], model: Graph, ledger: Ledger, origin: Origin, lines: GraphLines | None
) -> tuple[DeviceNode, ...] | None:
    graph = alive()
    state = getattr(graph, "_shadowgraph", None)
    if graph is None or state is None or state.model is not model:
        model.unread = "the graph was gone before its nodes were read"
        return None
    try:
        calls = driver()
        raw = raw_graph(graph)
        handles = calls.nodes(raw)
        owners = owners_of(handles, calls.edges(raw), origin.log)
        if lines is not None:
            owners = lines.fill(model, names_of(calls, handles), owners)
        join = joining(owners, origin.launches, model)
        known = Allocations(calls.allocation_of, (buffer.range for buffer in ledger))
        return GraphReader(calls, known, _begins(ledger), join).read(raw)
    except (ShadowgraphError, RuntimeError) as error:
        model.unread = f"its nodes cannot be read: {str(error).splitlines()[0]}"
        return None


def _begins(ledger: Ledger) -> Callable[[int], bool]:
    def begins(address: int) -> bool:
        owner = ledger.owner(address, address + 1)
        return owner is not None and owner.start == address

    return begins


def joining(owners: Sequence[Owner | None], launches: Mapping[int, int], model: Graph) -> Callable[[int], Join]:
    """The owner of the node at a place: the launch, with its argument names by tensor address, or a stack."""
    called = [owner for owner in owners if isinstance(owner, Called | LearntCall)]
    stacks: dict[int, Stack] = {
        id(owner): stack for owner, stack in zip(called, stacks_of([c.trace for c in called], _FRAMES), strict=True)
    }
    nodes = model.nodes
    names: dict[int, Mapping[int, str]] = {}

    def join(place: int) -> Join:
        owner = owners[place]
        if isinstance(owner, Called):
            return Join(None, stacks[id(owner)], {})
        if isinstance(owner, LearntCall):
            return Join(None, stacks[id(owner)], {}, owner.graph)
        launch = launches.get(owner) if owner is not None else None
        if launch is None:
            return UNATTRIBUTED
        known = names.get(launch)
        if known is None:
            pointers = nodes[launch].launch.pointers
            known = names[launch] = {pointer.view.address: pointer.argument for pointer in reversed(pointers)}
        return Join(launch, (), known)

    return join
