"""What is left of a CUDA graph when only its first nodes may run, over a driver that is played on the host."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from shadowgraph.graphs.cuda import prefixes as cuda_prefixes
from shadowgraph.graphs.cuda.prefixes import Copied, Disabled, must_not_run_alone
from shadowgraph.graphs.prefixes import Changed, search
from shadowgraph.graphs.rerunning import NotRerun

KERNEL, MEMSET, HOST, CHILD, EMPTY, WAIT, RECORD, CONDITIONAL = 0, 2, 3, 4, 5, 6, 7, 13


class Played:
    """A driver with one graph, handle 1, and its copies; and the memory that launches change."""

    def __init__(self, kinds: list[int], edges: list[tuple[int, int]], guilty: int) -> None:
        self.graphs: dict[int, dict[int, int]] = {1: {10 + place: kind for place, kind in enumerate(kinds)}}
        self.joined: dict[int, set[tuple[int, int]]] = {1: {(10 + a, 10 + b) for a, b in edges}}
        self.guilty = 10 + guilty
        self.disabled: set[int] = set()
        self.launched: list[list[int]] = []
        self.runnable: dict[int, int] = {}
        self.changed_now = False
        self._next = 1000

    def every_node(self, graph: int) -> list[int]:
        return self.nodes(graph)

    def nodes(self, graph: int) -> list[int]:
        return list(self.graphs[graph])

    def edges(self, graph: int) -> list[tuple[int, int]]:
        return sorted(self.joined[graph])

    def kind(self, node: int) -> int:
        return next(nodes[node] for nodes in self.graphs.values() if node in nodes)

    def clone(self, graph: int) -> int:
        self._next += 1000
        self.graphs[self._next] = {node + self._next: kind for node, kind in self.graphs[graph].items()}
        self.joined[self._next] = {(a + self._next, b + self._next) for a, b in self.joined[graph]}
        return self._next

    def in_copy(self, node: int, copy: int) -> int:
        assert node + copy in self.graphs[copy]
        return node + copy

    def remove(self, node: int) -> None:
        (graph,) = (graph for graph, nodes in self.graphs.items() if node in nodes)
        assert graph != 1, "the program's graph stays as it is"
        del self.graphs[graph][node]
        self.joined[graph] = {pair for pair in self.joined[graph] if node not in pair}

    def add_edges(self, graph: int, pairs: list[tuple[int, int]]) -> None:
        assert not self.joined[graph] & set(pairs), "none may exist"
        self.joined[graph] |= set(pairs)

    def instantiate(self, graph: int) -> int:
        self.runnable[graph + 1] = graph
        return graph + 1

    def launch(self, executable: int, stream: int) -> None:
        assert stream == 77
        graph = self.runnable.get(executable, 1)
        ran, waits = [], self.joined[graph]
        left = dict(self.graphs[graph])
        while left:  # in whatever order the edges allow, the latest node first
            node = max(n for n in left if not any(b == n and a in left for a, b in waits))
            del left[node]
            if graph != 1 or node not in self.disabled:
                ran.append(node - graph + 1 if graph != 1 else node)
        self.launched.append([node - 1 if graph != 1 else node for node in ran])
        self.changed_now = self.guilty in self.launched[-1]

    def destroy_graph(self, graph: int) -> None:
        del self.graphs[graph], self.joined[graph]

    def destroy_executable(self, executable: int) -> None:
        del self.runnable[executable]

    def enable(self, executable: int, node: int, on: bool) -> None:
        assert executable == 5
        assert self.kind(node) in (KERNEL, MEMSET)
        (self.disabled.discard if on else self.disabled.add)(node)

    def is_enabled(self, executable: int, node: int) -> bool:
        return node not in self.disabled


class Memory:
    """One target, which only the guilty node changes."""

    def __init__(self, played: Played) -> None:
        self.played, self.restored = played, 0

    def restore(self) -> None:
        self.restored += 1
        self.played.changed_now = False

    def changed(self) -> list[Changed | None]:
        return [Changed(0, 3, 4) if self.played.changed_now else None]


@pytest.fixture(autouse=True)
def no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_prefixes, "relaxed_capture", nullcontext)


def copied(kinds: list[int], edges: list[tuple[int, int]], guilty: int) -> tuple[Played, Any]:
    played = Played(kinds, edges, guilty)
    return played, Copied(played, 1, lambda: 77, Memory(played))  # type: ignore[arg-type]


FORK = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)]


@pytest.mark.parametrize("guilty", range(5))
def test_copies_run_the_first_nodes_in_order(guilty: int) -> None:
    played, runner = copied([KERNEL, MEMSET, CHILD, EMPTY, KERNEL], FORK, guilty)
    before = dict(played.graphs[1]), set(played.joined[1])
    hits, how, left = search(runner, [9])
    assert [(hit.node, hit.part) for hit in hits] == [(guilty, 9)]
    assert (how.nodes, how.how, how.runs, left) == (5, "removed", len(played.launched), 0)
    for ran in played.launched:
        assert ran == list(range(10, 10 + len(ran))), "branches one after the other, nothing that comes later"
    assert (played.graphs, played.joined, played.runnable) == ({1: before[0]}, {1: before[1]}, {}), "all is let go"


def test_what_waits_for_others_is_taken_out_and_its_order_kept() -> None:
    kinds = [KERNEL, WAIT, KERNEL, RECORD, KERNEL]
    played, runner = copied(kinds, [(0, 1), (1, 2), (2, 3), (3, 4)], 4)
    ((hit,), how, _) = search(runner, [0])
    assert (hit.node, how.nodes) == (4, 3)
    assert max(played.launched, key=len) == [10, 12, 14]
    assert all(ran == [10, 12, 14][: len(ran)] for ran in played.launched)


def test_conditional_nodes_are_not_run_in_part() -> None:
    with pytest.raises(NotRerun, match="conditional"):
        copied([KERNEL, CONDITIONAL], [(0, 1)], 0)


def disabled(kinds: list[int], guilty: int) -> tuple[Played, Any, Memory]:
    played = Played(kinds, [(place, place + 1) for place in range(len(kinds) - 1)], guilty)
    memory = Memory(played)
    return played, Disabled(played, 1, 5, lambda: 77, memory), memory  # type: ignore[arg-type]


@pytest.mark.parametrize("guilty", [0, 2, 5])
def test_nodes_are_disabled_and_enabled_again(guilty: int) -> None:
    alloc, free = 10, 11
    kinds = [MEMSET, alloc, KERNEL, KERNEL, free, KERNEL, EMPTY]
    played, runner, memory = disabled(kinds, guilty)
    hits, how, _ = search(runner, [0])
    assert [hit.node for hit in hits] == [guilty]
    assert (how.nodes, how.how) == (4, "disabled")
    assert memory.restored == how.runs == len(played.launched)
    assert all({11, 14, 16} <= set(ran) for ran in played.launched), "what cannot be disabled runs"
    assert {10, 12, 13, 15} <= set(max(played.launched, key=len))
    runner.close()
    assert played.disabled == set()


@pytest.mark.parametrize("kind", [HOST, CHILD, WAIT, CONDITIONAL])
def test_what_cannot_be_disabled_and_must_not_run(kind: int) -> None:
    with pytest.raises(NotRerun, match="cannot be disabled"):
        disabled([KERNEL, kind], 0)


def test_what_the_program_disabled_stays_so() -> None:
    played = Played([KERNEL, KERNEL], [(0, 1)], 0)
    played.disabled.add(11)
    with pytest.raises(NotRerun, match="nodes are disabled"):
        Disabled(played, 1, 5, lambda: 77, Memory(played))  # type: ignore[arg-type]
    assert played.disabled == {11}


def test_a_graph_that_others_take_part_in_does_not_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert must_not_run_alone(["void at::native::add(int*)", "fill"]) is None
    for name in ("ncclDevKernel_AllReduce_Sum_bf16", "void vllm::cross_device_all_reduce<2>()", "nvshmemi_put"):
        assert must_not_run_alone(["fill", name]) is not None
    for world, alone in ((1, True), (2, False)):
        monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
        monkeypatch.setattr("torch.distributed.get_world_size", lambda world=world: world)
        assert (must_not_run_alone(["fill"]) is None) == alone
