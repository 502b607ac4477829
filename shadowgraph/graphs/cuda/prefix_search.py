"""Who changed some bytes in a CUDA graph that takes no look behind every node: searched for before its replay."""

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
    """What a search by prefixes shows of a graph that is about to replay and that cannot be probed.

    All memory that the graph may write is put back afterwards, so that the replay is what it would have been. What
    other threads launch meanwhile, and what it writes there, would be lost: the caller sees to it that nobody does.

    Parameters
    ----------
    graph
        A ``torch.cuda.CUDAGraph`` that keeps its ``cudaGraph_t`` and is executable.
    lent
        Whether its executable form is the program's, or may have been changed by it.
    expandable
        Whether torch's allocator maps memory piecemeal, so that not all of an allocation need be there.
    refused
        Why it cannot be probed.
    """
    if probe.fallback is None or not probe.fallback.targets:
        return refused
    try:
        with relaxed_capture():
            return _searched(device, graph, lent, expandable, refused, probe)
    except Exception as error:  # the replay comes in any case, and tells of a device that is lost
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
    if not device.wait():  # what other streams are about to write must not be put back
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
    """Handle, kind and, of kernels, name of every node, those of child graphs included."""
    for node in calls.nodes(graph):
        kind = calls.kind(node)
        yield node, kind, calls.kernel_of(node) if not kind else ""
        if kind == CHILD:
            yield from _inside(calls, calls.child(node))


def _allocation_of(
    calls: Driver, own: Sequence[tuple[int, int]], expandable: bool, address: int
) -> tuple[int, int] | None:
    """The allocation that holds an address; of no size where the graph makes it anew in each replay."""
    if any(ByteRange(start, start + nbytes).contains(address) for start, nbytes in own):
        return address, 0
    return None if expandable else calls.allocation_of(address)
