"""Which node of an earlier graph corresponds to each node of a later one, by the names of kernels alone."""

from __future__ import annotations

import time
from typing import Any

import pytest

from shadowgraph.graphs.cuda.aligned_lines import aligned, family
from shadowgraph.graphs.cuda.capture_watch import Called
from shadowgraph.graphs.cuda.runner_lines import LearntCall, Lines

LAYER = ["norm", "nvjet_hsh_128x64_64x4_1x2", "void rope<float, 8>(float*, int)", "decode", "nvjet_hsh_64x64", "add"]


def test_equal_graphs_correspond_node_by_node() -> None:
    assert aligned(LAYER * 3, LAYER * 3) == list(range(18))
    assert aligned([], []) == []


def test_variants_of_a_kernel_are_the_same() -> None:
    other = ["norm", "nvjet_hsh_256x8_64x4_2x1", "void rope<float, 16>(float*, int)", "decode", "nvjet_hsh_8x8", "add"]
    assert aligned(LAYER * 2, other * 2) == list(range(12))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>(int, F)",
         "at::native::vectorized_elementwise_kernel"),
        ("nvjet_hsh_128x64_64x4_1x2_h_bz_TNT", "nvjet_hsh_x_x_x_h_bz_TNT"),
        ("put", "put"),
        ("128", "128"),
    ],
)  # fmt: skip
def test_the_family_of_a_kernel(name: str, expected: str) -> None:
    assert family(name) == expected


def test_a_kernel_more_or_less_in_each_layer() -> None:
    split = [*LAYER[:4], "reduce", *LAYER[4:]]
    longer = aligned(LAYER * 4, split * 4)
    assert longer is not None
    assert [place for place in longer if place is not None] == list(range(24))
    assert [at for at, place in enumerate(longer) if place is None] == [4, 11, 18, 25]
    shorter = aligned(split * 4, LAYER * 4)
    assert shorter == [at for at in range(28) if at % 7 != 4]


def test_more_layers_at_the_end_are_too_many() -> None:
    assert aligned(LAYER * 4, LAYER * 5) is not None
    assert aligned(LAYER * 4, LAYER * 6) is None


def test_graphs_of_other_programs() -> None:
    assert aligned(LAYER * 4, ["gemm", "softmax", "gemm"] * 8) is None
    assert aligned(LAYER, []) is None
    assert aligned([], LAYER) is None


def test_large_graphs_that_differ_throughout_take_no_time() -> None:
    first, later = [f"{'ab'[at % 2]}x" for at in range(20_000)], [f"{'cd'[at % 2]}x" for at in range(20_000)]
    began = time.process_time()
    assert aligned(first, later) is None
    assert aligned(["x", *first, "y"], ["x", *later, "y"]) is None
    assert time.process_time() - began < 5


# -- what a runner has learnt -----------------------------------------------------------------------------------


def taught(*graphs: tuple[str, list[str], list[Any]]) -> Lines:
    lines = Lines()
    for name, names, owners in graphs:
        lines.learn(name, names, owners)
    return lines


CALL, OTHER = Called("run", "trace of run"), Called("plan", "trace of plan")
OWNERS = [1, 2, CALL, OTHER, 3, None]


def test_nodes_without_an_owner_take_that_of_the_corresponding_node() -> None:
    lines = taught(("graph#1", LAYER, OWNERS))
    filled = lines.fill(LAYER, [11, 12, None, None, 13, None])
    assert filled == [
        11, 12, LearntCall("run", "trace of run", "graph#1"), LearntCall("plan", "trace of plan", "graph#1"), 13, None,
    ]  # fmt: skip
    assert lines.fill(LAYER, [11, 12, 21, 22, 13, 23]) == [11, 12, 21, 22, 13, 23], "an owner of its own stays"


def test_of_several_graphs_the_one_that_is_most_alike_teaches() -> None:
    """A runner that captures a model in pieces."""
    piece = [*LAYER, "gather"]
    lines = taught(("graph#1", LAYER * 2, OWNERS * 2), ("graph#2", piece * 2, [*OWNERS, CALL] * 2))
    nothing: list[None] = [None] * 14
    filled = lines.fill(piece * 2, nothing)
    assert filled is not None
    assert {owner.graph for owner in filled if owner is not None} == {"graph#2"}
    again = lines.fill(LAYER * 2, nothing[:12])
    assert again is not None
    assert {owner.graph for owner in again if owner is not None} == {"graph#1"}


def test_other_kernels_are_not_covered_and_are_to_be_learnt() -> None:
    lines = taught(("graph#1", LAYER, OWNERS))
    lines.wanted = False
    assert lines.knows(6)
    assert not lines.knows(7)
    assert lines.covers(LAYER)
    other = ["gemm", "softmax", "gemm"]
    assert not lines.covers(other)
    assert lines.fill(other, [None, None, None]) is None
    lines.want()
    assert lines.wanted
    for at in range(20):
        lines.learn(f"graph#{at}", [f"{'x' * at}"], [CALL])
    lines.wanted = False
    lines.want()
    assert not lines.wanted, "code whose graphs have nothing in common is not observed in full for ever"
