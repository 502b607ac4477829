"""Suspicions from one probed replay that the next probed replay must confirm before they are reported.

Used by `ForeignWrites` and `GivenViews`; the locator reads the buffers to probe next.
"""

from __future__ import annotations

from collections.abc import Mapping

from shadowgraph.model.buffers import Buffer

Suspect = tuple[int, int]  # a node, and the serial of a buffer


class Suspicions:
    """Suspected nodes of each graph, with the buffers that they seem to have changed.

    On a device another stream, thread or peer may write unseen during a replay. A node is taken to have changed a
    buffer if it seems to in two replays, of which the second looks at the suspected buffers only.

    Parameters
    ----------
    doubtful
        Whether one replay is not enough.
    """

    def __init__(self, doubtful: bool) -> None:
        self._doubtful = doubtful
        self.by_graph: dict[int, dict[Suspect, Buffer]] = {}

    def settle(self, graph: int, found: Mapping[Suspect, Buffer]) -> set[Suspect]:
        """The confirmed suspicions of a replay; the others are to be looked at in the graph's next replay."""
        before = self.by_graph.pop(graph, {})
        if not self._doubtful:
            return set(found)
        fresh = {key: buffer for key, buffer in found.items() if key not in before}
        if fresh:
            self.by_graph[graph] = fresh
        return found.keys() & before.keys()

    def buffers(self, graph: int) -> list[Buffer]:
        """The buffers to look at in a graph's next replay."""
        return list({buffer.serial: buffer for buffer in self.by_graph.get(graph, {}).values()}.values())
