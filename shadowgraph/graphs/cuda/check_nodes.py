"""Adds checks to a captured graph, as its first and its last node, so that every replay is checked without Python.

Called at the end of a capture, in the capturing thread, before the graph is made executable. The head waits for nothing
and every other node waits for it, so that what it finds happened before the replay; the tail waits for all others.
Without such nodes a replay is checked by launches around it. In graphs that are pieces of a step they are disabled and
enabled (`shadowgraph.tracking.steps`), in the replaying thread, before a replay.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from shadowgraph.common.compat import relaxed_capture
from shadowgraph.common.errors import DeviceLostError
from shadowgraph.engines.graph_watches import CheckNode, GraphWatches
from shadowgraph.engines.listed_guards import ListedGuards
from shadowgraph.graphs.cuda.driver import Driver, DriverError, KernelParameters, driver, raw_graph
from shadowgraph.model.graphs import Graph
from shadowgraph.tracking import steps

NO_ROW = "graphs without check nodes: all rows of the check log are taken"
REFUSED = "graphs without check nodes: the driver refuses them"


class CheckNodes:
    """Adds check nodes, and hides them from whatever reads or runs the program's nodes.

    Attributes
    ----------
    refused
        Graphs that carry none, by reason.
    """

    def __init__(self, watches: GraphWatches, listed: ListedGuards) -> None:
        self._watches, self._listed = watches, listed
        self.refused: dict[str, int] = {}
        self._counts: dict[int, tuple[int, int]] = {}
        self._pid = os.getpid()

    def begin(self, wait: Callable[[], None]) -> None:
        """A debugger starts: take over the device's counts of replays of graphs that an earlier one saw captured, once
        `wait` has waited for what was queued. Without such graphs nothing waits."""
        if self._watches.live:
            wait()
        self._counts = self._watches.counts()

    def adopt(self, graph: Any, model: Graph) -> bool:
        """A graph of an earlier debugger replays for the first time under this one: count its replays as the device
        does. False where it is another capture by now, which no debugger has seen."""
        if model.check_nodes and not set(model.check_nodes) <= set(driver().every_node(raw_graph(graph))):
            return False
        if steps.checks(model):  # else the device has not counted all
            model.replays = self._counts.get(model.serial, (model.replays, 0))[0]
        return True

    def halt(self) -> None:
        """A graph ends, and its pool with it, where no lock may be taken; `go_on` once its guards are withdrawn.

        A forked child makes no call of CUDA."""
        if os.getpid() == self._pid:
            with suppress(DeviceLostError):
                self._listed.halt()

    def go_on(self) -> None:
        """The guards in the pool of a graph that ended were withdrawn."""
        if os.getpid() == self._pid:
            with suppress(DeviceLostError):
                self._listed.go_on()

    def add(self, graph: Any, model: Graph) -> None:
        """Add them to a graph that keeps its ``cudaGraph_t`` and is not executable yet; an empty one stays empty."""
        calls, raw = driver(), raw_graph(graph)
        calls.reveal(calls.every_node(raw))  # handles of a graph that is gone may come again
        if not calls.nodes(raw):
            return
        pair = self._watches.begin(model.serial)
        if pair is None:
            self._refuse(NO_ROW)
            return
        try:
            with relaxed_capture():
                model.check_nodes = _added(calls, raw, *pair)
            model.checks_itself = True
        except DriverError:
            self._watches.end(model.serial)
            self._refuse(REFUSED)

    def instantiate(self, graph: Any, model: Graph | None) -> None:
        """Make a graph executable as torch does, without check nodes if that is refused."""
        try:
            with relaxed_capture():
                torch._C._CUDAGraph.instantiate(graph)
        except RuntimeError:
            if model is None or not model.check_nodes:
                raise
            self._take_off(model)
            with relaxed_capture():
                torch._C._CUDAGraph.instantiate(graph)
            self._refuse(REFUSED)

    def switch(self, graph: Any, model: Graph, on: bool, replay: int, refused: str | None = None) -> None:
        """Enable or disable the nodes of a piece of a step; replays that are queued or run are not affected. Called in
        the thread that replays it.

        Parameters
        ----------
        replay
            Number of the first replay to be affected.
        refused
            Why the executable graph cannot be changed, for a graph that the program may change, too.
        """
        stream = self._watches.stream()
        if driver().capturing(stream) is not None or not model.reading.acquire(blocking=False):
            return  # at a later replay: it captures, or another thread reads the graph
        try:
            if refused is not None:
                raise DriverError(refused)
            with self._watches.current():
                self._switch(int(torch._C._CUDAGraph.raw_cuda_graph_exec(graph)), model, on, replay - 1, stream)
            steps.switched(model, on, replay)
        except (AttributeError, RuntimeError, DriverError) as error:
            steps.refuse(model, str(error).split("\n", 1)[0])
            if on:
                model.checks_itself = False  # by launches, then
        finally:
            model.reading.release()

    def _switch(self, executable: int, model: Graph, on: bool, before: int, stream: int) -> None:
        """Both nodes or none. What the head did not count while it was disabled is added to the device's count, in
        order with the replays of a stream."""
        calls, count, switched = driver(), self._watches.count_of(model.serial), list[int]()
        try:
            if on and count is not None:
                words = before & 0xFFFFFFFF, before >> 32
                calls.set_words(count, words, stream)
            for node in model.check_nodes:
                calls.enable(executable, node, on)
                switched.append(node)
        except DriverError:
            for node in switched:
                with suppress(DriverError):
                    calls.enable(executable, node, not on)
            raise

    def _take_off(self, model: Graph) -> None:
        """Remove the nodes from a graph that is not executable yet."""
        calls = driver()
        for node in model.check_nodes:
            with suppress(DriverError):
                calls.remove(node)
        self.dropped(model)

    def dropped(self, model: Graph) -> None:
        """A graph is gone."""
        if model.check_nodes:
            driver().reveal(model.check_nodes)
            model.check_nodes, model.checks_itself = (), False
            self._watches.end(model.serial)

    def _refuse(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1


def _added(calls: Driver, raw: int, head: CheckNode, tail: CheckNode) -> tuple[int, int]:
    """Handles of the two new nodes.

    Raises
    ------
    DriverError
        When the driver refuses one; none remains then.
    """
    nodes, edges = calls.nodes(raw), calls.edges(raw)
    waiting, waited_for = {second for _, second in edges}, {first for first, _ in edges}
    made: list[int] = []
    try:
        made.append(calls.add_kernel(raw, [node for node in nodes if node not in waited_for], _parameters(tail)))
        made.append(calls.add_kernel(raw, [], _parameters(head)))
        calls.add_edges(raw, [(made[1], node) for node in nodes if node not in waiting])
    except DriverError:
        calls.hide(made)  # one that cannot be removed stays hidden
        for node in made:
            with suppress(DriverError):
                calls.remove(node)
        raise
    calls.hide(made)
    return made[1], made[0]


def _parameters(node: CheckNode) -> KernelParameters:
    found = KernelParameters()
    found.func, found.gx, found.bx, found.parameters = node.function, node.blocks, node.threads, node.arguments
    found.gy = found.gz = found.by = found.bz = 1
    return found
