"""Search by prefixes in a CUDA graph that cannot be probed: finds the node that changed some bytes, before a replay.

Runs in the replaying thread, with the model's lock `Graph.reading` held by the caller.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shadowgraph.common.compat import relaxed_capture
from shadowgraph.engines.device import Device
from shadowgraph.graphs.cuda.reruns import opened
from shadowgraph.graphs.prefixes import search
from shadowgraph.model.probes import Outcome, Probe


def searched(device: Device, graph: Any, lent: bool, expandable: bool, refused: Outcome, probe: Probe) -> Outcome:
    """The outcome of a search by prefixes of a graph that is about to replay and that cannot be probed.

    All memory that the graph may write is restored afterwards, so that the replay computes the same results. Launches
    of other threads meanwhile, and their writes there, would be lost: the caller must prevent them.

    Parameters
    ----------
    graph, lent, expandable
        As for `opened`.
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
    fallback = probe.fallback
    assert fallback is not None
    targets = [probe.parts[target] for target in fallback.targets]
    with opened(device, graph, lent, expandable, targets, fallback.state) as (runner, _):
        hits, how, left = search(runner, fallback.targets)
    return replace(refused, hits=hits, search=how, dropped=left)
