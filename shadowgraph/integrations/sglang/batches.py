"""What the latest replays were prepared for: sizes, lengths and ids of requests, never what they say."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from typing import Any, TypeGuard

import numpy as np
import torch

from shadowgraph.model.findings import Batch
from shadowgraph.model.graphs import Graph

_KEPT = 256  # replays: a check on a device is judged a few of them later
_INTEGERS = {torch.int32: np.int32, torch.int64: np.int64}

_Noted = tuple[int, int, bytes, torch.dtype | None, tuple[str, ...]]


class Batches:
    """The batches of the latest replays, by graph and replay. Tensors are copied, not kept."""

    def __init__(self) -> None:
        self._noted: OrderedDict[tuple[int, int], _Noted] = OrderedDict()

    def note(self, graph: Graph, padded_to: int, batch: Any) -> None:
        """A graph's coming replay is being prepared for a ``ForwardBatch``; this is on the path of each replay."""
        lengths = getattr(batch, "seq_lens_cpu", None)
        data, dtype = b"", None
        if _plain(lengths):
            # As bytes from its address: `tolist` and the like are reads by the program, as far as checks can tell.
            data, dtype = ctypes.string_at(lengths.data_ptr(), lengths.nbytes), lengths.dtype
        ids = tuple(getattr(batch, "rids", None) or ())
        self._noted[graph.serial, graph.replays + 1] = batch.batch_size, padded_to, data, dtype, ids
        while len(self._noted) > _KEPT:
            self._noted.popitem(last=False)

    def of(self, graph: Graph, replay: int) -> Batch | None:
        """What a replay was prepared for, if it is one of the latest."""
        noted = self._noted.get((graph.serial, replay))
        if noted is None:
            return None
        size, padded_to, data, dtype, ids = noted
        lengths = np.frombuffer(data, _INTEGERS[dtype]).tolist() if dtype is not None else ()
        return Batch(size, padded_to, tuple(lengths), tuple(map(str, ids)))


def _plain(lengths: object) -> TypeGuard[torch.Tensor]:
    """Whether something is a tensor of integers in the host's memory, one after the other."""
    if not isinstance(lengths, torch.Tensor):
        return False
    return lengths.is_cpu and lengths.dtype in _INTEGERS and lengths.is_contiguous()
