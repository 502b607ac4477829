"""A kernel that no noted launch made, and that was given the damaged buffer: before it is confirmed, too, it is a
likelier culprit than an operator of torch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from shadowgraph.checks.base import Detection
from shadowgraph.checks.out_of_bounds.facts import OverrunDetail
from shadowgraph.model.buffers import Buffer, Ledger, Role
from shadowgraph.model.device_nodes import BLIND, DeviceNode, NodeKind, Sureness, Word
from shadowgraph.model.findings import Culprit, Status
from shadowgraph.model.graphs import Graph, Node
from shadowgraph.model.guards import Side
from shadowgraph.model.launches import Access, Launch, LaunchKind, Pointer
from shadowgraph.model.phases import Phase
from shadowgraph.model.stacks import Frame
from shadowgraph.model.views import TensorView
from shadowgraph.monitor.finding_builder import build_finding, culprit_of
from shadowgraph.monitor.unnoted_nodes import with_unnoted_nodes
from shadowgraph.tracking.writes import write_of

START, NBYTES = 0x10_0000_0000, 256
HERE, THERE = (Frame("model.py", 7, "body"),), (Frame("model.py", 9, "body"),)
VIEW = TensorView(START, START, NBYTES, (64,), (1,), "int32", 4, "cuda:0")
ADD = Launch(LaunchKind.ATEN, "aten.add_.Tensor", (Pointer("self", VIEW, Access.READ_WRITE),), HERE)
PUT = Launch(LaunchKind.TRITON, "put", (Pointer("out", VIEW, Access.UNKNOWN),), HERE)
PAST = DeviceNode(
    1, NodeKind.KERNEL, "past", (1, 1, 1), (1, 1, 1), (Word(0, 0, "", START),), stack=THERE, learnt_from="graph#1"
)
OWN = DeviceNode(0, NodeKind.KERNEL, "elementwise", words=(Word(0, 0, "self", START),), launch=0)


def context(asynchronous: bool = True) -> Any:
    names = SimpleNamespace(name_of=lambda *_: ("table", ()), relations=lambda *_: ())
    return SimpleNamespace(engine=SimpleNamespace(asynchronous=asynchronous), ledger=Ledger(), names=names)


def detection(*nodes: DeviceNode, launch: Launch = ADD, **facts: Any) -> Detection:
    """Damage past the buffer's end by a replay of a graph with these nodes and one noted launch."""
    graph = Graph(2, "graph#2", [Node(0, launch)])
    graph.build_device_later(lambda: nodes)
    buffer = Buffer(1, START, NBYTES, Role.STATIC, "int32", (64,), 4, device="cuda:0")
    write = changed(write_of(launch, None, 0), opaque=True)
    checkpoint: Any = SimpleNamespace(graph=graph, within=None, at="replay_end", pieces=())
    known: dict[str, Any] = {
        "code": "SG101", "checkpoint": checkpoint, "buffer": buffer, "first": START + NBYTES,
        "last": START + NBYTES + 3, "count": 4, "ranges": ((START + NBYTES, START + NBYTES + 3),),
        "side": Side.AFTER, "culprits": (write,), "phase": Phase.REPLAY, "graph": graph, "replay": 3,
        "facts": OverrunDetail(()),
    }  # fmt: skip
    return Detection(**{**known, **facts})


def test_a_kernel_that_no_launch_made_is_the_culprit_before_an_operator() -> None:
    found = build_finding(with_unnoted_nodes(detection(OWN, PAST), context()), context())
    culprit = found.culprit
    assert (culprit.name, culprit.status, culprit.node) == ("past", Status.CANDIDATE, 1)
    assert (culprit.file, culprit.line, culprit.learnt_from) == ("model.py", 9, "graph#1")
    assert culprit.led_by is not None
    assert (culprit.led_by.address, culprit.seen_in) == (START, None)
    assert [one.name for one in found.candidates] == ["aten.add_.Tensor"]


@pytest.mark.parametrize(
    "node",
    [
        changed(PAST, words=(Word(0, 0, "", START + NBYTES),)),
        changed(PAST, words=(Word(0, 0, "", START, Sureness.LOW),)),
        changed(PAST, words=(), note=BLIND),
        changed(PAST, launch=0),
        changed(PAST, kind=NodeKind.MEMSET),
        changed(PAST, stack=()),
    ],
    ids=["another buffer", "a number", "unknown arguments", "the operator's own", "no kernel", "not attributed"],
)
def test_other_nodes_are_no_candidates(node: DeviceNode) -> None:
    assert with_unnoted_nodes(detection(OWN, node), context()).unnoted == ()


@pytest.mark.parametrize(
    ("facts", "asynchronous"),
    [
        ({"code": "SG102"}, True),
        ({"phase": Phase.PREPARE}, True),
        ({"graph": None}, True),
        ({"located": (Culprit(Status.CONFIRMED, name="put"),)}, True),
        ({"culprits": (write_of(ADD, None, 0),)}, True),
        ({"launch": PUT}, True),
        ({"launch": changed(ADD, name="mylib.scatter.default")}, True),
        ({}, False),
    ],
    ids=[
        "written inside",
        "not by the graph",
        "no graph",
        "located",
        "known",
        "a noted kernel",
        "an operator of a library",
        "host",
    ],
)
def test_where_an_operator_or_another_kernel_is_likelier(facts: dict[str, Any], asynchronous: bool) -> None:
    assert with_unnoted_nodes(detection(OWN, PAST, **facts), context(asynchronous)).unnoted == ()


def test_a_candidate_says_whose_line_it_has() -> None:
    """Also where it was never confirmed."""
    assert culprit_of(write_of(changed(ADD, learnt_from="graph#1"), None, 0)).learnt_from == "graph#1"
    assert culprit_of(write_of(ADD, None, 0)).learnt_from is None
