"""Lines that were seen in the capture of another graph are told as such."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import shadowgraph as sg
from shadowgraph.checks.culprits import culprit_of_node
from shadowgraph.model.buffers import Ledger
from shadowgraph.model.device_nodes import DeviceNode, NodeKind
from shadowgraph.model.graphs import Graph, Launch, LaunchKind, Node
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import Frame
from shadowgraph.monitor.run_facts import _operators
from shadowgraph.render.text.culprit_text import culprit_rows
from shadowgraph.tracking.aliases import NameBook

STACK = (Frame("/p/decode.py", 7, "step"),)


def graph(*, by_launch: bool, learnt_from: str) -> Graph:
    """One node, made by an operator or by a C function."""
    launches = [Node(0, Launch(LaunchKind.ATEN, "aten.mul.Tensor", (), STACK, learnt_from=learnt_from))]
    made = Graph(2, "graph#2", launches if by_launch else ())
    node = DeviceNode(0, NodeKind.KERNEL, "run", launch=0) if by_launch else DeviceNode(
        0, NodeKind.KERNEL, "run", stack=STACK, learnt_from=learnt_from
    )  # fmt: skip
    made.build_device_later(lambda: (node,))
    return made


@pytest.mark.parametrize("by_launch", [True, False])
@pytest.mark.parametrize("learnt_from", ["graph#1", ""])
def test_a_culprit(by_launch: bool, learnt_from: str) -> None:
    where = ByteRange(0, 4)
    ledger, made = Ledger(), graph(by_launch=by_launch, learnt_from=learnt_from)
    found = culprit_of_node(made, 0, 3, where, where, ledger, NameBook(ledger))
    assert (found.line, found.learnt_from) == (7, learnt_from or None)
    rows = [text for _, text in culprit_rows(found)]
    assert ("line as in graph#1, which the same code captured" in rows) is bool(learnt_from)


def test_graphs_whose_lines_were_not_learnt_are_counted() -> None:
    x = torch.zeros(4)
    with sg.debug() as debugger:
        graphs = []
        for _ in range(2):
            graphs.append(sg.HostGraph())
            with sg.host_graph(graphs[-1]):
                x.add_(1)
        assert not any("not learnt" in line for line in debugger.report(quiet=True).facts.limits)
        debugger.graphs[1].unlearnt = True
        (said,) = [line for line in debugger.report(quiet=True).facts.limits if "not learnt" in line]
    assert said == "lines not learnt: of 1 graph, for kernels that C functions launched"
    assert len(graphs) == 2


@pytest.mark.parametrize(
    ("backend", "capture_lines", "said"),
    [
        ("cuda", "learnt", "captures go through a dispatch mode: without the observer in C++ no lines are learnt"),
        ("cuda", "each", None),
        ("host", "learnt", None),
    ],
)
def test_learnt_lines_that_are_wanted_without_the_observer(backend: str, capture_lines: str, said: str | None) -> None:
    settings = SimpleNamespace(backend=backend, capture_lines=capture_lines)
    work: Any = SimpleNamespace(flight_recorder=SimpleNamespace(observer=None), settings=settings)
    assert _operators(work) == said
