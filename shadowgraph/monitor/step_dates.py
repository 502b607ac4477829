"""Dates checkpoints within steps of pieces, as far as the checks of the step tell.

Called by `Boundaries`, `NodeCheckpoints` and `Monitor.retiring`, in the thread of the event; takes no lock.
"""

from __future__ import annotations

from shadowgraph.checks.base import Checkpoint
from shadowgraph.tracking import steps

OF_REPLAYS = frozenset(("replay_begin", "replay_end"))  # boundaries at which check nodes check


def dated(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint with its step, if it belongs to one; changed in place, as it was just made."""
    if not steps.known():
        return checkpoint
    if checkpoint.at in OF_REPLAYS:
        return _of_replay(checkpoint)
    here = steps.date_here() if checkpoint.phase is None else None
    if here is not None:
        (checkpoint.graph, checkpoint.replay), date = here
        checkpoint.phase, checkpoint.within, checkpoint.pieces = date.phase, date.step, date.pieces
    return checkpoint


def _of_replay(checkpoint: Checkpoint) -> Checkpoint:
    graph, replay = checkpoint.graph, checkpoint.replay
    if graph is None or replay is None or (checkpoint.at == "replay_begin" and checkpoint.phase is not None):
        return checkpoint  # the latter: in the middle of a replay, where another one begins
    date = steps.date(graph.serial, replay, checkpoint.at == "replay_end")
    if date is not None:
        checkpoint.within, checkpoint.pieces = date.step, date.pieces
        checkpoint.phase = checkpoint.phase if date.phase is None else date.phase
    return checkpoint
