"""Batches of the latest replays: sizes, lengths and request ids, never request contents.

Written in the thread that prepares a replay, of every replay, observed or not; read where a finding or an exception is
recorded. Takes no lock.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from shadowgraph.adapter_interface import launch_recording
from shadowgraph.model.findings import Batch
from shadowgraph.model.graphs import Graph

_KEPT = 256  # replays: evidence of a device arrives a few replays later
_LOGGED, _LOGGED_IDS = 8, 64  # lengths and ids in the launch log
_INTEGERS = {torch.int32, torch.int64}
_values = torch._C.TensorBase.tolist  # torch's own: checks would see `tolist` of a tensor as a read by the program

# Serial and coming replay of a graph; size, padded size, lengths, ids.
_Noted = tuple[int, int, int, int, list[int], tuple[object, ...]]


class Batches:
    """The batches of the latest replays, by graph and replay. Tensors are copied, not kept."""

    def __init__(self) -> None:
        self._noted: deque[_Noted] = deque(maxlen=_KEPT)
        self._said: tuple[tuple[object, ...], str] = (), ""  # the latest ids, and these in words

    def note(self, graph: Graph, padded_to: int, batch: Any) -> list[int]:
        """Record the ``ForwardBatch`` of a graph's coming replay, whose lengths are read from the host's copy only.

        Returns
        -------
        list of int
            The lengths; empty if the host has none.
        """
        given = getattr(batch, "seq_lens_cpu", None)
        lengths: list[int] = []
        if isinstance(given, torch.Tensor) and given.is_cpu and given.dtype in _INTEGERS and given.dim() == 1:
            lengths = _values(given)
        ids = tuple(getattr(batch, "rids", None) or ())
        size, replay = batch.batch_size, graph.replays + 1
        self._noted.append((graph.serial, replay, size, padded_to, lengths, ids))
        log = launch_recording.current
        if log is not None:  # what is known of it after the process's death
            if ids != self._said[0]:
                self._said = ids, f"; ids {', '.join(map(str, ids[:_LOGGED_IDS]))}"
            tokens = f"; {', '.join(map(str, lengths[:_LOGGED]))} tokens" if lengths else ""
            values = tokens + self._said[1]
            log.batch(f"{size} request{'s' * (size != 1)}, padded to {padded_to}", values, graph.serial, replay)
        return lengths

    def of(self, graph: Graph, replay: int) -> Batch | None:
        """The batch of a replay, if it is one of the latest."""
        for serial, number, size, padded_to, lengths, ids in reversed(self._noted.copy()):  # at once: others append
            if serial == graph.serial and number == replay:
                return Batch(size, padded_to, tuple(lengths), tuple(map(str, ids)))
        return None
