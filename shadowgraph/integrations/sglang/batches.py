"""Batches of sglang's replays: from a ``ForwardBatch``, in the thread that prepares the replay, of every replay."""

from __future__ import annotations

from typing import Any

from shadowgraph.integrations.batches import Batches as _Batches
from shadowgraph.integrations.batches import lengths_of, total
from shadowgraph.model.graphs import Graph


class Batches(_Batches):
    """The batches of the latest replays, by graph and replay."""

    def note(self, graph: Graph, padded_to: int, batch: Any) -> tuple[int, int]:
        """Record the ``ForwardBatch`` of a graph's coming replay, whose lengths are read from the host's copy only.

        Returns
        -------
        tuple of int
            The longest length and the number of tokens; 0 for what the host does not know.
        """
        size = batch.batch_size
        lengths = lengths_of(getattr(batch, "seq_lens_cpu", None), size)
        longest = self.record(graph, (size, padded_to, 0, 0), lengths, getattr(batch, "rids", None))
        tokens = getattr(batch, "seq_lens_sum", None)
        return longest, tokens if type(tokens) is int else total(lengths)
