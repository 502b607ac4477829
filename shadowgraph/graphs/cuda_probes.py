"""One replay of a CUDA graph with its nodes one after the other and a look at memory after each.

The look is a kernel node of ours behind every node of the program's graph itself, which torch then makes executable
again: random numbers, pools and streams are torch's business as in any replay. Afterwards our nodes are taken out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shadowgraph.compat import relaxed_capture
from shadowgraph.engines.device import Device
from shadowgraph.engines.probing import THREADS, ProbeTable
from shadowgraph.faults import faults
from shadowgraph.graphs.driver import Driver, DriverError, KernelParameters, driver, raw_graph
from shadowgraph.graphs.probe import Hit, Outcome, Probe


class Prober:
    """Runs probed replays on one device.

    Parameters
    ----------
    function
        ``probe`` of kernels.cu, kept loaded by the caller.
    """

    def __init__(self, device: Device, function: int) -> None:
        self._device, self._function = device, function

    def run(self, graph: Any, replay: int, probe: Probe, original: Callable[[Any], None]) -> Outcome:
        """Replay a graph once, probed where that can be done, else plainly; waits for the replay.

        Parameters
        ----------
        graph
            A ``torch.cuda.CUDAGraph`` that keeps its ``cudaGraph_t`` for us and is executable.
        replay
            Number of this replay.
        """
        table, added = None, list[int]()
        try:
            with relaxed_capture():
                calls, raw = driver(), raw_graph(graph)
                table = ProbeTable(self._device, self._function, probe.parts)
                insert(calls, raw, table, added)
                calls.try_instantiate(raw)  # torch gives up the executable graph before it has a new one
                graph.instantiate()
                table.take(self._device.raw_stream())
        except Exception as error:
            self._restore(graph, added)
            original(graph)
            return Outcome(replay, refused=str(error).split("\n", 1)[0])
        try:
            original(graph)
            with relaxed_capture():
                torch.cuda.current_stream(self._device.index).synchronize()
        finally:
            self._restore(graph, added)
        rows, dropped = table.hits()
        return Outcome(replay, merged(rows), dropped=dropped)

    def _restore(self, graph: Any, added: list[int]) -> None:
        """The graph as the program captured it, executable."""
        if not added:
            return
        try:
            with relaxed_capture():
                for node in added:
                    driver().remove(node)
                graph.instantiate()
        except Exception as error:  # a lost device, for which nothing can be made executable: the program hears itself
            faults.note("probed replay", error)


def insert(calls: Driver, graph: int, table: ProbeTable, added: list[int]) -> None:
    """Put a look behind every node of a graph, and every node behind the look before it.

    Parameters
    ----------
    added
        Gets the new nodes as they are made, so that they can be taken out after an error.

    Raises
    ------
    DriverError
        When the driver refuses one; nodes made so far stay.
    """
    nodes = calls.nodes(graph)
    order = in_order(nodes, calls.edges(graph))
    parameters = KernelParameters()
    parameters.func, parameters.gx, parameters.bx = table.function, table.blocks, THREADS
    parameters.gy = parameters.gz = parameters.by = parameters.bz = 1
    places = {node: place for place, node in enumerate(nodes)}
    for node in order:
        parameters.parameters = table.arguments(places[node])
        added.append(calls.add_kernel(graph, [node], parameters))
    calls.add_edges(graph, list(zip(added, order[1:], strict=False)))


def in_order(nodes: list[int], edges: list[tuple[int, int]]) -> list[int]:
    """Nodes so that each comes after those that it waits for; those without an order between them as they are listed.

    Raises
    ------
    DriverError
        For edges that go round.
    """
    waits = dict.fromkeys(nodes, 0)
    following: dict[int, list[int]] = {node: [] for node in nodes}
    for first, second in edges:
        waits[second] += 1
        following[first].append(second)
    places = {node: place for place, node in enumerate(nodes)}
    if all(places[first] < places[second] for first, second in edges):
        return nodes  # as captures are
    ready, found = [node for node in nodes if not waits[node]], list[int]()
    while ready:
        node = ready.pop(0)
        found.append(node)
        for then in following[node]:
            waits[then] -= 1
            if not waits[then]:
                ready.append(then)
    if len(found) != len(nodes):
        raise DriverError("the graph's edges go round")
    return found


def merged(rows: npt.NDArray[np.void]) -> tuple[Hit, ...]:
    """Rows of `HIT`, of which several may be of one part, as one hit a node and part, in order."""
    found: dict[tuple[int, int], Hit] = {}
    for node, part, first, last, count in rows.tolist():
        known = found.get((node, part))
        if known is not None:
            first, last, count = min(known.first, first), max(known.last, last), known.count + count
        found[node, part] = Hit(node, part, first, last, count)
    return tuple(found[key] for key in sorted(found))
