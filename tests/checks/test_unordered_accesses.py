"""Which bytes a write and a graph's reads are taken to have in common, from made-up launches."""

from __future__ import annotations

import pytest

from shadowgraph.checks.unordered_access.accesses import meeting, reads_of, writes_of
from shadowgraph.model.graphs import Graph, Node
from shadowgraph.model.kernel_code import KernelCode, Use
from shadowgraph.model.launches import Access, Launch, LaunchKind, Pointer
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.writes import write_of

BASE = 0x10000
ALL = (0, 64)
LEFT, RIGHT = (0, 32), (32, 64)


class Code(KernelCode):
    """The code of a kernel that uses each argument in one way."""

    def __init__(self, use: Use | None) -> None:
        super().__init__(lambda: None, ())
        self.all = use

    def use(self, argument: str) -> Use | None:
        return self.all


def view(part: tuple[int, int]) -> TensorView:
    start, stop = part
    return TensorView(BASE + start * 4, BASE, 256, (stop - start,), (1,), "int32", 4, "cuda:0")


def operator(name: str, access: Access, part: tuple[int, int]) -> Launch:
    return Launch(LaunchKind.ATEN, name, (Pointer("self", view(part), access),))


def kernel(use: Use | None, part: tuple[int, int]) -> Launch:
    return Launch(LaunchKind.TRITON, "kernel", (Pointer("p", view(part), Access.UNKNOWN),), code=Code(use))


WHOLE, PARTIAL = Use(True, True, True), Use(True, True, False)


def copy(part: tuple[int, int]) -> Launch:
    return operator("aten.copy_.default", Access.WRITE, part)


def put(part: tuple[int, int]) -> Launch:
    return operator("aten.index_put_.default", Access.READ_WRITE, part)


def add(part: tuple[int, int]) -> Launch:
    return operator("aten.add.Tensor", Access.READ, part)


def gather(part: tuple[int, int]) -> Launch:
    return operator("aten.gather.default", Access.READ, part)


def met(write: Launch, *nodes: Launch) -> list[tuple[tuple[int, int], bool]]:
    """The elements in common, and whether that is certain."""
    graph = Graph(1, "graph", [Node(place, launch) for place, launch in enumerate(nodes)])
    found = [meeting(each, read) for each in writes_of(write_of(write, None)) for read in reads_of(graph, each.given)]
    return [
        (((part.start - BASE) // 4, (part.stop - BASE) // 4), sure)
        for pair in found
        if pair is not None
        for ranges, sure in (pair,)
        for part in ranges
    ]


def test_operators_access_all_of_their_arguments() -> None:
    assert met(copy(ALL), add(ALL)) == [(ALL, True)]
    assert met(copy(ALL), add(LEFT)) == [(LEFT, True)]
    assert met(copy(RIGHT), add(ALL)) == [(RIGHT, True)]
    assert met(copy(RIGHT), add(LEFT)) == []


@pytest.mark.parametrize("partial", [put, lambda part: kernel(WHOLE, part), lambda part: kernel(PARTIAL, part)])
def test_a_part_of_what_is_read_in_full(partial: object) -> None:
    assert callable(partial)
    assert met(partial(ALL), add(ALL)) == [(ALL, False)]
    assert met(partial(RIGHT), add(ALL)) == [(RIGHT, False)]
    assert met(partial(ALL), add(LEFT)) == [], "it may write the other half alone"


@pytest.mark.parametrize("partial", [gather, lambda part: kernel(WHOLE, part), lambda part: kernel(PARTIAL, part)])
def test_a_part_of_what_is_written_in_full(partial: object) -> None:
    assert callable(partial)
    assert met(copy(ALL), partial(ALL)) == [(ALL, False)]
    assert met(copy(ALL), partial(LEFT)) == [(LEFT, False)]
    assert met(copy(LEFT), partial(ALL)) == [], "it may read the other half alone"


@pytest.mark.parametrize("argument", ["index", "indices", "indices[1]", "mask"])
def test_indices_are_read_in_full(argument: str) -> None:
    pointers = (Pointer("self", view(LEFT), Access.READ), Pointer(argument, view(RIGHT), Access.READ))
    lookup = Launch(LaunchKind.ATEN, "aten.index_select.default", pointers)
    assert met(copy((40, 64)), lookup) == [((40, 64), True)]
    assert met(copy((0, 8)), lookup) == []


def test_two_kernels_only_where_both_are_likely_to_access_everything() -> None:
    assert met(kernel(WHOLE, ALL), kernel(WHOLE, ALL)) == [(ALL, False)]
    assert met(kernel(WHOLE, LEFT), kernel(WHOLE, ALL)) == [(LEFT, False)]
    assert met(kernel(WHOLE, (0, 40)), kernel(WHOLE, RIGHT)) == []
    assert met(kernel(PARTIAL, ALL), kernel(WHOLE, ALL)) == []
    assert met(kernel(WHOLE, ALL), kernel(PARTIAL, ALL)) == []
    assert met(put(ALL), gather(ALL)) == []
    assert met(put(ALL), kernel(PARTIAL, ALL)) == []


def test_kernels_write_what_their_code_stores_to() -> None:
    assert met(kernel(Use(loads=True), ALL), add(ALL)) == [], "it only reads"
    assert met(kernel(None, ALL), add(ALL)) == [], "what it does is not known"
    assert met(copy(ALL), kernel(Use(stores=True), ALL)) == [], "the graph only writes"
    assert met(copy(ALL), kernel(None, ALL)) == [(ALL, False)]


def test_operators_of_libraries_may_use_streams_of_their_own() -> None:
    assert met(operator("library.fill.default", Access.WRITE, ALL), add(ALL)) == []
    assert met(copy(ALL), operator("library.attention.default", Access.READ, ALL)) == [(ALL, False)]


def test_what_the_graph_overwrites_before_it_reads() -> None:
    assert met(copy(ALL), copy(LEFT), add(ALL)) == [(RIGHT, True)]
    assert met(copy(ALL), copy(ALL), add(ALL)) == []
    assert met(copy(ALL), kernel(Use(stores=True), ALL), add(ALL)) == [(ALL, True)], "it may leave some as they were"
    assert met(copy(ALL), operator("aten.add_.Tensor", Access.READ_WRITE, ALL)) == [(ALL, True)]


def test_compiled_code_names_what_it_writes() -> None:
    pointers = (Pointer("in_ptr0", view(LEFT), Access.READ), Pointer("out_ptr0", view(RIGHT), Access.WRITE))
    assert met(Launch(LaunchKind.TRITON, "triton_poi", pointers), add(ALL)) == [(RIGHT, False)]
