"""Batches of the latest replays: sizes, lengths and request ids, never request contents.

Written in the thread that prepares a replay, read where a finding or an exception is recorded; takes no lock.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from typing import Any, TypeGuard

import numpy as np
import torch

from shadowgraph.adapter_interface import launch_recording
from shadowgraph.model.findings import Batch
from shadowgraph.model.graphs import Graph

_KEPT = 256  # replays: a device check is dispatched a few replays later
_LOGGED = 64  # requests of a batch, in the launch log
_INTEGERS = {torch.int32: np.int32, torch.int64: np.int64}

_Noted = tuple[int, int, bytes, torch.dtype | None, tuple[str, ...]]


class Batches:
    """The batches of the latest replays, by graph and replay. Tensors are copied, not kept."""

    def __init__(self) -> None:
        self._noted: OrderedDict[tuple[int, int], _Noted] = OrderedDict()

    def note(self, graph: Graph, padded_to: int, batch: Any) -> None:
        """Record the ``ForwardBatch`` of a graph's coming replay; runs on the path of every replay."""
        lengths = getattr(batch, "seq_lens_cpu", None)
        data, dtype = b"", None
        if _plain(lengths):
            # Read by address: checks would see `tolist` as a read by the program.
            data, dtype = ctypes.string_at(lengths.data_ptr(), lengths.nbytes), lengths.dtype
        ids = tuple(getattr(batch, "rids", None) or ())
        log = launch_recording.current
        if log is not None:
            said = f"{batch.batch_size} requests" + (
                f", padded to {padded_to}" if padded_to != batch.batch_size else ""
            )
            log.batch(said, _values(data, dtype, ids), graph.serial, graph.replays + 1)
        self._noted[graph.serial, graph.replays + 1] = batch.batch_size, padded_to, data, dtype, ids
        while len(self._noted) > _KEPT:
            self._noted.popitem(last=False)

    def of(self, graph: Graph, replay: int) -> Batch | None:
        """The batch of a replay, if it is one of the latest."""
        noted = self._noted.get((graph.serial, replay))
        if noted is None:
            return None
        size, padded_to, data, dtype, ids = noted
        lengths = np.frombuffer(data, _INTEGERS[dtype]).tolist() if dtype is not None else ()
        return Batch(size, padded_to, tuple(lengths), tuple(map(str, ids)))


def _values(data: bytes, dtype: torch.dtype | None, ids: tuple[str, ...]) -> str:
    """Lengths and request ids of the launch log's row, the first of many."""
    lengths = np.frombuffer(data, _INTEGERS[dtype])[:_LOGGED].tolist() if dtype is not None else ()
    said = f"; {', '.join(map(str, lengths))} tokens" if lengths else ""
    return said + (f"; ids {', '.join(map(str, ids[:_LOGGED]))}" if ids else "")


def _plain(lengths: object) -> TypeGuard[torch.Tensor]:
    """Whether an object is a contiguous tensor of integers in host memory."""
    if not isinstance(lengths, torch.Tensor):
        return False
    return lengths.is_cpu and lengths.dtype in _INTEGERS and lengths.is_contiguous()
