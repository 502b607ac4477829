"""What must be put back before a graph may run again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shadowgraph.graphs.rerunning import NotRerun, state_of
from shadowgraph.model.device_nodes import DeviceNode, NodeKind, Sureness, Word
from shadowgraph.model.graphs import Access, Graph, Launch, LaunchKind, Node, Pointer
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.views import TensorView

READ, WRITTEN, OTHER = (torch.zeros(16, dtype=torch.uint8) for _ in range(3))


def whole(tensor: torch.Tensor) -> ByteRange:
    return ByteRange(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)


def kernel(index: int, *tensors: torch.Tensor, **facts: Any) -> DeviceNode:
    words = tuple(Word(place, 0, "", t.data_ptr(), Sureness.MEDIUM) for place, t in enumerate(tensors))
    return DeviceNode(index, facts.pop("kind", NodeKind.KERNEL), "kernel", words=words, **facts)


def state(
    *nodes: DeviceNode,
    launches: tuple[Launch, ...] = (),
    tracked: tuple[torch.Tensor, ...] = (READ, WRITTEN, OTHER),
    room: int = 1 << 20,
    more: tuple[ByteRange, ...] = (),
) -> list[ByteRange]:
    graph = Graph(1, "graph", [Node(index, launch) for index, launch in enumerate(launches)])
    graph.build_device_later(lambda: nodes)

    def buffer_at(address: int) -> ByteRange | None:
        return next((whole(t) for t in tracked if whole(t).contains(address)), None)

    def allocation_of(address: int) -> tuple[int, int] | None:
        where = whole(OTHER)
        return (where.start - 4, 24) if where.contains(address) else None

    return state_of(graph, buffer_at, allocation_of, more, room)


def test_whatever_a_kernel_points_at() -> None:
    assert state(kernel(0, WRITTEN[3:])) == [whole(WRITTEN)]
    inner = DeviceNode(1, NodeKind.CHILD, "1 node", inner=(kernel(0, OTHER),))
    assert sorted(state(kernel(0, WRITTEN), inner), key=lambda r: r.start) == sorted(
        [whole(WRITTEN), whole(OTHER)], key=lambda r: r.start
    )


def test_what_a_launch_only_reads_stays() -> None:
    pointers = (
        Pointer("self", TensorView.of(READ), Access.READ),
        Pointer("result", TensorView.of(WRITTEN), Access.WRITE),
    )
    launch = Launch(LaunchKind.ATEN, "aten.add.Tensor", pointers)
    assert state(kernel(0, READ, WRITTEN, launch=0), launches=(launch,)) == [whole(WRITTEN)]


def test_memory_that_nobody_tracks_is_its_whole_allocation() -> None:
    start = OTHER.data_ptr() - 4
    assert state(kernel(0, OTHER), tracked=()) == [ByteRange(start, start + 24)]
    with pytest.raises(NotRerun, match="not tracked"):
        state(kernel(0, READ), tracked=())


def test_exact_ranges_of_copies() -> None:
    node = DeviceNode(
        0, NodeKind.MEMCPY, "memcpy", (), (), (Word(0, 0, "src", READ.data_ptr()),), (), (whole(WRITTEN),)
    )
    assert state(node) == [whole(WRITTEN)]


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (kernel(0, kind=NodeKind.HOST), "node 0 runs host code"),
        (kernel(3, note="arguments cannot be read"), r"where node 3 \(kernel\) writes is not known"),
        (kernel(0, kind=NodeKind.CONDITIONAL), "is not known"),
        (DeviceNode(0, NodeKind.CHILD, "child", inner=(kernel(2, kind=NodeKind.HOST),)), "node 2 runs host code"),
    ],
)
def test_what_cannot_be_put_back(node: DeviceNode, why: str) -> None:
    with pytest.raises(NotRerun, match=why):
        state(node)


def test_room_counts_what_is_asked_for_too() -> None:
    more = (ByteRange(1 << 12, (1 << 12) + 100),)
    assert more[0] in state(kernel(0, WRITTEN), more=more, room=116)
    with pytest.raises(NotRerun, match="no room for copies of the 116 bytes"):
        state(kernel(0, WRITTEN), more=more, room=115)
