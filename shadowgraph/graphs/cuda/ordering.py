"""Topological order of a graph's nodes, for running them one after the other."""

from __future__ import annotations

from shadowgraph.graphs.cuda.driver import DriverError


def in_order(nodes: list[int], edges: list[tuple[int, int]]) -> list[int]:
    """Nodes in topological order; nodes without an order between them stay as listed.

    Raises
    ------
    DriverError
        For edges with a cycle.
    """
    waits = dict.fromkeys(nodes, 0)
    following: dict[int, list[int]] = {node: [] for node in nodes}
    for first, second in edges:
        waits[second] += 1
        following[first].append(second)
    places = {node: place for place, node in enumerate(nodes)}
    if all(places[first] < places[second] for first, second in edges):
        return nodes  # as captures are
    ready, found = [node for node in nodes if not waits[node]], list[int]()
    while ready:
        node = ready.pop(0)
        found.append(node)
        for then in following[node]:
            waits[then] -= 1
            if not waits[then]:
                ready.append(then)
    if len(found) != len(nodes):
        raise DriverError("the graph's edges go round")
    return found
