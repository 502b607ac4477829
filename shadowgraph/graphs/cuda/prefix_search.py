"""Search by prefixes in a CUDA graph that cannot be probed: finds the node that changed some bytes, before a replay.

Runs in the replaying thread, with the model's lock `Graph.reading` held by the caller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from shadowgraph.common.compat import relaxed_capture
from shadowgraph.engines.device import Device
from shadowgraph.graphs.cuda.driver import Driver, driver, raw_graph
from shadowgraph.graphs.cuda.prefixes import ALLOCATION, CHILD, UNCOPIED, Copied, Disabled, State, must_not_run_alone
from shadowgraph.graphs.prefixes import search
from shadowgraph.graphs.rerunning import NotRerun
from shadowgraph.model.probes import Outcome, Probe
from shadowgraph.model.ranges import ByteRange


def searched(device: Device, graph: Any, lent: bool, expandable: bool, refused: Outcome, probe: Probe) -> Outcome:
    """The outcome of a search by prefixes of a graph that is about to replay and that cannot be probed.

    All memory that the graph may write is restored afterwards, so that the replay computes the same results. Launches
    of other threads meanwhile, and their writes there, would be lost: the caller must prevent them.

    Parameters
    ----------
    graph
        A ``torch.cuda.CUDAGraph`` that keeps its ``cudaGraph_t`` and is executable.
    lent
        Whether the program holds the executable graph, or may have changed it.
    expandable
        Whether expandable segments are on, so that not all of an allocation need be mapped.
    refused
        The outcome that says why it cannot be probed.
    """
    if probe.fallback is None or not probe.fallback.targets:
        return refused
    try:
        with relaxed_capture():
            return _searched(device, graph, lent, expandable, refused, probe)
    except Exception as error:  # the replay runs in any case, and shows a lost device
        why = str(error).split("\n", 1)[0] or type(error).__name__
        return replace(refused, refused=f"{refused.refused}; {why}")


def _searched(device: Device, graph: Any, lent: bool, expandable: bool, refused: Outcome, probe: Probe) -> Outcome:
    fallback, calls = probe.fallback, driver()
    assert fallback is not None
    raw = raw_graph(graph)
    inside = list(_inside(calls, raw))
    why = must_not_run_alone(name for _, _, name in inside if name)
    if why is not None:
        raise NotRerun(why)
    if not device.wait():  # writes of other streams must not be undone
        raise NotRerun("another thread captures")
    own = [calls.allocated_by(node) for node, kind, _ in inside if kind == ALLOCATION]
    ranges = fallback.state(partial(_allocation_of, calls, own, expandable))
    with ExitStack() as undo:
        state = State(device, [probe.parts[target] for target in fallback.targets], ranges)
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
        hits, how, left = search(runner, fallback.targets)
    return replace(refused, hits=hits, search=how, dropped=left)


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
