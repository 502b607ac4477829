"""Probed replay of a CUDA graph: its nodes run one after the other, with a comparison of memory after each.

The comparison is a kernel node added behind every node of the program's own graph, which torch then instantiates again:
random numbers, pools and streams are handled by torch as in any replay. Afterwards the added nodes are removed. Runs in
the replaying thread, with the model's lock `Graph.reading` held by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shadowgraph.common.compat import relaxed_capture
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.engines.device import Device
from shadowgraph.engines.probing import THREADS, ProbeTable
from shadowgraph.graphs.cuda.driver import Driver, DriverError, KernelParameters, driver, raw_graph
from shadowgraph.graphs.cuda.ordering import in_order
from shadowgraph.graphs.cuda.prefix_search import searched
from shadowgraph.graphs.cuda.reruns import conducted
from shadowgraph.model.probes import Hit, Outcome, Probe
from shadowgraph.model.reruns import Experiment

REFUSED = {
    6: "it waits for events outside of it",
    7: "it records events that others wait for",
    8: "it signals others through semaphores",
    9: "it waits for others through semaphores",
    10: "a graph that allocates can be made executable only once",
    11: "a graph that frees can be made executable only once",
    12: "its branches talk to each other through memory",
    13: "a graph with conditional nodes can be made executable only once",
}


class Prober:
    """Runs probed replays on one device.

    Parameters
    ----------
    function
        ``probe`` of kernels.cu, kept loaded by the caller.
    expandable
        Whether torch's allocator uses expandable segments.
    """

    def __init__(self, device: Device, function: int, expandable: bool = False) -> None:
        self._device, self._function, self._expandable = device, function, expandable
        self._lost: list[ProbeTable] = []  # tables of graphs that could not be restored: their probes may still run

    def run(self, graph: Any, replay: int, probe: Probe, original: Callable[[Any], None]) -> Outcome:
        """Replay a graph once, probed where that is possible, else plainly; waits for the replay.

        The caller holds the model's lock `reading`.

        Parameters
        ----------
        graph
            A ``torch.cuda.CUDAGraph`` that keeps its ``cudaGraph_t`` at our request and is executable.
        replay
            Number of this replay.
        """
        look = _Look(graph)
        try:
            with relaxed_capture():
                look.prepare(self._device, self._function, probe)
        except BaseException as error:
            self._restore(look)
            if not isinstance(error, Exception):
                raise
            reason = str(error).split("\n", 1)[0] or type(error).__name__
            outcome = self.search(graph, Outcome(replay, refused=reason), probe, lent=False)
            original(graph)
            return outcome
        try:
            original(graph)
            with relaxed_capture():
                torch.cuda.current_stream(self._device.index).synchronize()
            outcome = _outcome(replay, look)
        finally:
            self._restore(look)
        return outcome

    def search(self, graph: Any, refused: Outcome, probe: Probe, lent: bool) -> Outcome:
        """Search by prefixes before a replay that cannot be probed, where that is possible.

        The caller holds the model's lock `reading`, and replays the graph afterwards; otherwise as in `searched`.
        """
        if _drives_several_devices():
            return refused
        return searched(self._device, graph, lent, self._expandable, refused, probe)

    def conduct(self, graph: Any, experiment: Experiment, lent: bool) -> str | None:
        """Conduct an experiment before a replay; returns why there were no runs, or None. Otherwise as `search`."""
        if _drives_several_devices():
            return "other devices that this process drives may take part in its replays"
        return conducted(self._device, graph, lent, self._expandable, experiment)

    def _restore(self, look: _Look) -> None:
        """Restore the graph as the program captured it, executable."""
        try:
            with relaxed_capture():
                look.restore()
        except Exception as error:  # a lost device: the program gets its own error
            internal_errors.note("probed replay", error)
            look.graph._shadowgraph_keeps = "program"  # never probed again
            if look.table is not None:
                self._lost.append(look.table)


class _Look:
    """One graph with the added nodes in it, for one replay."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.table: ProbeTable | None = None
        self._calls, self._raw = driver(), 0
        self._own: list[int] | None = None  # the program's nodes
        self._replaced = False

    def prepare(self, device: Device, function: int, probe: Probe) -> None:
        """Add the nodes and instantiate the graph with them."""
        calls = self._calls
        self._raw = raw_graph(self.graph)
        own = calls.every_node(self._raw)
        for kind in sorted(calls.kinds(own) & REFUSED.keys()):
            raise DriverError(REFUSED[kind])
        if _drives_several_devices() and any("nccl" in name for name in _kernels(calls, own)):
            raise DriverError("it waits for other devices that this process drives, too")
        self.table = ProbeTable(device, function, probe.parts)
        self._own = own
        insert(calls, self._raw, self.table)
        calls.try_instantiate(self._raw)  # torch destroys the executable graph before it has a new one
        self._replaced = True
        torch._C._CUDAGraph.instantiate(self.graph)
        self.table.take(device.raw_stream())

    def restore(self) -> None:
        """Remove the added nodes, and instantiate the graph again if it was replaced."""
        if self._own is not None:
            own, self._own = set(self._own), None
            for node in self._calls.every_node(self._raw):
                if node not in own:
                    self._calls.remove(node)
        if self._replaced:
            self._calls.try_instantiate(self._raw)
            torch._C._CUDAGraph.instantiate(self.graph)
            self._replaced = False
        if self.table is not None:
            table, self.table = self.table, None
            table.close()


def _drives_several_devices() -> bool:
    """Whether this process may have launched, or be about to launch, work that a kernel of another device waits for."""
    alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
    return alone and torch.cuda.device_count() > 1


def _kernels(calls: Driver, nodes: Sequence[int]) -> Iterator[str]:
    """Names of kernels."""
    return (calls.kernel_of(node) for node in nodes if calls.kind(node) == 0)


def _outcome(replay: int, look: _Look) -> Outcome:
    assert look.table is not None
    try:
        rows, dropped = look.table.hits()
    except Exception as error:  # the replay itself is done
        return Outcome(replay, refused=f"what it showed cannot be read: {str(error).splitlines()[0]}")
    return Outcome(replay, merged(rows), dropped=dropped)


def insert(calls: Driver, graph: int, table: ProbeTable) -> list[int]:
    """Add a probe node behind every node of a graph, and make every node wait for the probe before it.

    Returns
    -------
    list of int
        The new nodes.

    Raises
    ------
    DriverError
        When the driver refuses a node; nodes added so far stay.
    """
    nodes = calls.nodes(graph)
    order = in_order(nodes, calls.edges(graph))
    parameters = KernelParameters()
    parameters.func, parameters.gx, parameters.bx = table.function, table.blocks, THREADS
    parameters.gy = parameters.gz = parameters.by = parameters.bz = 1
    places = {node: place for place, node in enumerate(nodes)}
    added = []
    for node in order:
        parameters.parameters = table.arguments(places[node])
        added.append(calls.add_kernel(graph, [node], parameters))
    calls.add_edges(graph, list(zip(added, order[1:], strict=False)))
    return added


def merged(rows: npt.NDArray[np.void]) -> tuple[Hit, ...]:
    """Rows of `HIT`, of which several may be for one part, as one hit for each node and part, in order."""
    found: dict[tuple[int, int], Hit] = {}
    for node, part, first, last, count in rows.tolist():
        known = found.get((node, part))
        if known is not None:
            first, last, count = min(known.first, first), max(known.last, last), known.count + count
        found[node, part] = Hit(node, part, first, last, count)
    return tuple(found[key] for key in sorted(found))
