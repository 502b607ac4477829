"""Which node of an earlier graph corresponds to each node of a later one, by the names of kernels alone."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from shadowgraph.graphs.cuda import runner_lines
from shadowgraph.graphs.cuda.aligned_lines import aligned, common, families, family
from shadowgraph.graphs.cuda.capture_watch import Called
from shadowgraph.graphs.cuda.runner_lines import GraphLines, LearntCall, Lines
from shadowgraph.graphs.observer.recording import Recording
from shadowgraph.model.graphs import Graph

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


def test_a_kernel_more_in_each_of_many_layers_takes_no_time() -> None:
    split = [*LAYER[:4], "reduce", *LAYER[4:]]
    began = time.process_time()
    places = aligned(LAYER * 500, split * 500)
    assert time.process_time() - began < 5
    assert places is not None
    assert [place for place in places if place is not None] == list(range(3000))


def test_graphs_with_the_same_kernels_in_another_order() -> None:
    """As many of each are no proof; places tell the truth."""
    first, later = [*"abcdefghij"], [*"fghijabcde"]
    assert common(families(first), families(later)) == 10
    assert aligned(first, later) is None
    swapped = aligned([*"abcdefghij"], [*"abcdfeghij"])
    assert swapped is not None
    assert sum(place is not None for place in swapped) == 9
    assert all("abcdefghij"[place] == "abcdfeghij"[at] for at, place in enumerate(swapped) if place is not None)


@pytest.mark.parametrize("seed", range(20))
def test_alignments_are_as_long_as_can_be(seed: int) -> None:
    pick = random.Random(seed)
    first = [pick.choice("abcd") for _ in range(40)]
    later = [each for each in first if pick.random() > 0.1]
    for _ in range(3):
        later.insert(pick.randrange(len(later) + 1), pick.choice("abcd"))
    longest = [[0] * (len(later) + 1) for _ in range(len(first) + 1)]
    for i, one in enumerate(first):
        for j, other in enumerate(later):
            longest[i + 1][j + 1] = longest[i][j] + 1 if one == other else max(longest[i][j + 1], longest[i + 1][j])
    places = aligned(first, later)
    assert places is not None
    found = [place for place in places if place is not None]
    assert found == sorted(set(found))
    assert all(first[place] == later[at] for at, place in enumerate(places) if place is not None)
    assert len(found) == longest[-1][-1]


GEMMS = [f"void cutlass::device_kernel<Gemm{each}>(Params)" for each in "ABC"]


def test_kernels_that_differ_in_template_arguments_do_not_stand_for_each_other() -> None:
    """Two operations that one template makes, launched in another order."""
    first = [*LAYER, GEMMS[0], "put", GEMMS[1], *LAYER]
    later = [*LAYER, GEMMS[1], "put", GEMMS[0], *LAYER]
    places = aligned(first, later)
    assert places is not None
    assert all(place is None or first[place] == later[at] for at, place in enumerate(places))
    assert places[:6] + places[9:] == [*range(6), *range(9, 15)]


def test_kernels_in_another_order_of_which_one_graph_has_more() -> None:
    first = [*LAYER * 2, GEMMS[0], GEMMS[0], GEMMS[1], *LAYER]
    later = [*LAYER * 2, GEMMS[1], GEMMS[1], GEMMS[0], *LAYER]
    places = aligned(first, later)
    assert places is not None
    assert all(place is None or first[place] == later[at] for at, place in enumerate(places))


def test_a_variant_that_the_other_graph_has_at_another_place_too() -> None:
    """For a smaller batch the library chooses another GEMM for one of two operations."""
    first, later = [*LAYER, GEMMS[0], "put", GEMMS[0]], [*LAYER, GEMMS[2], "put", GEMMS[0]]
    assert aligned(first * 8, later * 8) == list(range(72))


def test_a_name_is_no_family() -> None:
    """`decode` itself, of which both graphs have one, is no variant of its templates."""
    first, later = [*LAYER, *LAYER, "decode<1>"], [*LAYER, "decode<2>", *LAYER]
    places = aligned(first, later)
    assert places is not None
    assert places[:6] == [*range(6)]
    assert places[7:] == [*range(6, 12)]


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


def test_a_capture_compares_numbers_of_kernels_and_aligns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a capture the program waits: which node is which is found when a line is asked for."""
    lines = taught(("graph#1", LAYER * 4, OWNERS * 4))
    monkeypatch.setattr(runner_lines, "aligned", None)
    assert lines.covers(LAYER[::-1] * 4), "as many of each"
    assert not lines.covers(["softmax"] * 24)


def learning(owners: list[Any]) -> tuple[Graph, GraphLines, list[int]]:
    """A graph with lines of its runner, and whether it forgot those of its operators."""
    forgot, recording = list[int](), Recording.empty()
    recording.forget_learnt = lambda: not forgot.append(1)  # type: ignore[func-returns-value, method-assign]
    lines = taught(("graph#1", LAYER * 4, owners * 4))
    lines.wanted = False
    return Graph(2, "graph#2"), GraphLines(lines, recording), forgot


def test_kernels_of_operators_that_differ_are_no_evidence_against_their_lines() -> None:
    """Another size, another kernel; those that C functions launched are the same."""
    model, lines, forgot = learning(OWNERS)
    names = [each.replace("norm", "reduce").replace("add", "tanh") for each in LAYER] * 4
    owners = [11, 12, None, None, 13, None] * 4
    names[5::6] = LAYER[5:6] * 4
    names[1::6] = ["gemv"] * 4
    assert lines.fill(model, names, owners) == owners
    assert (model.unlearnt, lines.runner.wanted, forgot) == (True, True, [])


def test_other_kernels_of_c_functions_refute_the_lines_of_operators_too() -> None:
    model, lines, forgot = learning(OWNERS)
    names, owners = [*LAYER[:2], "prefill", "combine", LAYER[4], "add"] * 4, [11, 12, None, None, 13, None] * 4
    assert lines.fill(model, names, owners) == owners
    assert (model.unlearnt, lines.runner.wanted, forgot) == (True, True, [1])
