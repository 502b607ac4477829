"""Runs of a CUDA graph, in whole or in part, from one state, which is restored afterwards: for the search by prefixes
and for experiments.

In the replaying thread, before the replay, with the model's lock `Graph.reading` held by the caller. Launches of other
threads meanwhile, and their writes there, would be lost: the caller must prevent them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from shadowgraph.common.compat import relaxed_capture
from shadowgraph.engines.device import Device
from shadowgraph.graphs.cuda.driver import Driver, driver, raw_graph
from shadowgraph.graphs.cuda.prefixes import ALLOCATION, CHILD, UNCOPIED, Copied, Disabled, State, must_not_run_alone
from shadowgraph.graphs.rerunning import NotRerun
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.reruns import AllocationOf, Bytes, Experiment, Fill, Load

StateOf = Callable[[AllocationOf], list[ByteRange]]


@contextmanager
def opened(
    device: Device, graph: Any, lent: bool, expandable: bool, targets: Sequence[ByteRange], state_of: StateOf
) -> Iterator[tuple[Copied | Disabled, State]]:
    """Context in which the first nodes of a graph can be run; all that it may write is restored at its end.

    Parameters
    ----------
    graph
        A ``torch.cuda.CUDAGraph`` that keeps its ``cudaGraph_t`` and is executable.
    lent
        Whether the program holds the executable graph, or may have changed it.
    expandable
        Whether expandable segments are on, so that not all of an allocation need be mapped.
    targets
        The ranges that a run is compared in.
    state_of
        Returns the ranges to restore.

    Raises
    ------
    NotRerun
        For a graph that must not run again, or cannot.
    """
    calls, raw = driver(), raw_graph(graph)
    inside = list(_inside(calls, raw))
    why = must_not_run_alone(name for _, _, name in inside if name)
    if why is not None:
        raise NotRerun(why)
    if not device.wait():  # writes of other streams must not be undone
        raise NotRerun("another thread captures")
    own = [calls.allocated_by(node) for node, kind, _ in inside if kind == ALLOCATION]
    ranges = state_of(partial(_allocation_of, calls, own, expandable))
    if not all(calls.is_memory_of(where.start, device.index) for where in ranges):
        raise NotRerun("it may write memory of the host, or of another device")
    with ExitStack() as undo:
        state = State(device, targets, ranges)
        undo.callback(state.close)
        runner: Copied | Disabled
        if any(kind in UNCOPIED for _, kind, _ in inside):
            if lent:
                raise NotRerun("its executable form is the program's")
            executable = int(torch._C._CUDAGraph.raw_cuda_graph_exec(graph))
            runner = Disabled(calls, raw, executable, device.raw_stream, state)
        else:
            runner = Copied(calls, raw, device.raw_stream, state)
        undo.callback(state.wait)
        undo.callback(state.restore)
        undo.callback(runner.close)
        yield runner, state


class CudaReruns:
    """Runs of a graph for an experiment; `close` it before the context that it was opened in ends.

    Parameters
    ----------
    runner, state
        As from `opened`.
    """

    def __init__(self, runner: Copied | Disabled, state: State) -> None:
        self._runner, self._state = runner, state
        self._whole: int | None = None  # an executable copy with all nodes
        self._made = ExitStack()
        self.order, self.how, self.runs = runner.order, runner.how, 0

    def run(self, fills: Sequence[Fill] = (), count: int | None = None) -> None:
        """Restore the state, set bytes, and run the first `count` nodes, or all; waits."""
        total = len(self.order)
        count = total if count is None else count
        if not count:
            self._state.restore()
            self._state.fill(fills)
            self._state.wait()
        elif count == total and isinstance(self._runner, Copied):
            if self._whole is None:
                self._whole = self._made.enter_context(self._runner.executable(total))
            self._launch(fills, self._whole)
        else:
            with self._runner.executable(count) as runnable:
                self._launch(fills, runnable)

    def read(self, ranges: Sequence[ByteRange]) -> list[Bytes]:
        """Copies of some bytes as the latest run has left them; waits."""
        return self._state.read(ranges)

    def trace(
        self, fills: Sequence[Fill], ranges: Sequence[ByteRange], digest: Callable[[list[Bytes]], bytes]
    ) -> list[bytes] | None:
        """Return None: nodes are not looked at one by one."""
        return None

    def loads(self, fills: Sequence[Fill], place: int, where: ByteRange) -> list[Load]:
        """Return nothing: loads are not known on a device."""
        return []

    def close(self) -> None:
        """Destroy the copy that is kept for further runs."""
        self._made.close()

    def _launch(self, fills: Sequence[Fill], runnable: int) -> None:
        self._state.restore()
        self._state.fill(fills)
        self._runner.launch(runnable)
        self.runs += 1
        self._state.wait()


def conducted(device: Device, graph: Any, lent: bool, expandable: bool, experiment: Experiment) -> str | None:
    """Conduct an experiment on a graph that is about to replay; returns why there were no runs, or None.

    The parameters are those of `opened`.
    """
    try:
        with relaxed_capture(), opened(device, graph, lent, expandable, (), experiment.state) as (runner, state):
            reruns = CudaReruns(runner, state)
            try:
                experiment.conduct(reruns)
            finally:
                reruns.close()
    except Exception as error:  # the replay runs in any case, and shows a lost device
        return str(error).split("\n", 1)[0] or type(error).__name__
    return None


def _inside(calls: Driver, graph: int) -> Iterator[tuple[int, int, str]]:
    """Handle, kind and, for kernels, name of every node, including those of child graphs."""
    for node in calls.nodes(graph):
        kind = calls.kind(node)
        yield node, kind, calls.kernel_of(node) if not kind else ""
        if kind == CHILD:
            yield from _inside(calls, calls.child(node))


def _allocation_of(
    calls: Driver, own: Sequence[tuple[int, int]], expandable: bool, address: int
) -> tuple[int, int] | None:
    """The allocation that holds an address; of size 0 where the graph allocates it in each replay."""
    if any(ByteRange(start, start + nbytes).contains(address) for start, nbytes in own):
        return address, 0
    return None if expandable else calls.allocation_of(address)
