"""What one probed replay seemed to show and the next one has to show again before it counts."""

from __future__ import annotations

from collections.abc import Mapping

from shadowgraph.model.buffers import Buffer

Suspect = tuple[int, int]  # a node, and the serial of a buffer


class Suspicions:
    """Of each graph, nodes that seem to have done what they should not, and to which buffers.

    On a device another stream, thread or peer may write during a replay, which nobody sees: what a node seems to have
    changed in two replays, the second of which looks at the suspected buffers only, it changed.

    Parameters
    ----------
    doubtful
        Whether one replay is not enough.
    """

    def __init__(self, doubtful: bool) -> None:
        self._doubtful = doubtful
        self.by_graph: dict[int, dict[Suspect, Buffer]] = {}

    def settle(self, graph: int, found: Mapping[Suspect, Buffer]) -> set[Suspect]:
        """Those of what a replay showed that count now; the others are to be looked at in the graph's next replay."""
        before = self.by_graph.pop(graph, {})
        if not self._doubtful:
            return set(found)
        fresh = {key: buffer for key, buffer in found.items() if key not in before}
        if fresh:
            self.by_graph[graph] = fresh
        return found.keys() & before.keys()

    def buffers(self, graph: int) -> list[Buffer]:
        """What is to be looked at in a graph's next replay."""
        return list({buffer.serial: buffer for buffer in self.by_graph.get(graph, {}).values()}.values())

    def __contains__(self, graph: int) -> bool:
        return graph in self.by_graph

    def drop(self, graph: int) -> None:
        """A graph is gone, or cannot be probed."""
        self.by_graph.pop(graph, None)
