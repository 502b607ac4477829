"""Runs the nodes of a host graph one after the other, and emits the events about them. In the replaying thread; no
lock."""

from __future__ import annotations

from collections.abc import Iterable

from shadowgraph.graphs.events import events
from shadowgraph.graphs.host.nodes import AtenNode, Step, TenancyNode
from shadowgraph.model.graphs import Graph, Node


def run_telling_each(steps: Iterable[Step], model: Graph) -> None:
    """Run the steps of a replay and emit `node_ran` after each node."""
    for step in steps:
        stores = step.run(True)
        if not isinstance(step, TenancyNode):
            events.node_ran(model, step.node, stores)


def run_telling(steps: Iterable[Step], model: Graph) -> None:
    """Run the steps of a replay and report operators in groups: that costs a fraction, and each takes a few
    microseconds.

    A group is reported before a check looks for a culprit: before broken guards move, before a node that runs a
    callable or a kernel, when a node raises, and at the end.
    """
    ran: list[Node] = []
    try:
        for step in steps:
            if type(step) is AtenNode:
                step.run(True)
                ran.append(step.node)
            elif isinstance(step, TenancyNode):
                if not step.move_intact():
                    _tell(model, ran)
                    step.run(True)
            else:
                _tell(model, ran)
                events.node_ran(model, step.node, step.run(True))
    finally:
        _tell(model, ran)


def _tell(model: Graph, ran: list[Node]) -> None:
    if ran:
        nodes = tuple(ran)
        ran.clear()
        events.nodes_ran(model, nodes)
