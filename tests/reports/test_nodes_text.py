"""Nodes in a REPL, kernel names in little room, culprits in rows."""

from __future__ import annotations

import pytest
from support.finding_samples import BUFFER, CULPRIT, altered, run_of
from support.node_makers import ADD, Model, cuda_nodes

import shadowgraph as sg
from shadowgraph.common.kernel_names import brief
from shadowgraph.model.device_nodes import BLIND, DeviceNode, NodeKind
from shadowgraph.model.findings import Argument, Culprit, Finding, Status
from shadowgraph.model.graphs import Graph
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import Frame
from shadowgraph.render.html.reprs import html_of
from shadowgraph.render.html.tables import listed_table
from shadowgraph.render.text.nodes_text import NodesReport, blind, nodes_text
from shadowgraph.render.text.text import Report
from shadowgraph.views.node_list import Wanted, listed


def rows_of(finding: Finding) -> list[str]:
    """The culprit's rows in a report, up to its stack."""
    lines = str(Report(run_of(finding))).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("  culprit "))
    last = next(i for i, line in enumerate(lines) if i > first and line.startswith(("  launched", "  or ", "  rows")))
    return [line[2:] for line in lines[first:last]]


def located(**facts: object) -> Finding:
    """A finding whose culprit a probed replay showed."""
    known: dict[str, object] = {
        "culprit__kind": "aten",
        "culprit__name": "aten.add_.Tensor",
        "culprit__node": 17,
        "culprit__source": None,
        "culprit__grid": (4, 1, 1),
        "culprit__block": (128, 1, 1),
        "culprit__kernel": ADD,
        "culprit__seen_in": 8,
        "phase": Phase.REPLAY,
    }
    return altered(**{**known, **facts})


# -- kernel names ------------------------------------------------------------------------------------------------------


def test_a_name_that_fits_is_whole() -> None:
    assert brief(ADD, len(ADD)) == ADD


@pytest.mark.parametrize("width", [8, 20, 47, 60, 90, 110, 120, len(ADD) - 1])
def test_a_long_name_fits_and_keeps_what_tells_most(width: int) -> None:
    said = brief(ADD, width)
    assert 0 < len(said) <= width
    assert ("vectorized_elementwise_kernel" in said) == (width >= 47)


@pytest.mark.parametrize(
    ("name", "width", "said"),
    [
        ("void f<int>(int*, long)", 12, "void f<int>"),
        ("void f<int, g<long> >(int*)", 20, "f<int, g<long> >"),
        ("void f<int, g<long> >(int*)", 15, "f<int, g<...> >"),
        ("void f<int, g<long> >(int*)", 10, "f<...>"),
        ("void a::(anonymous namespace)::f(int*, (lambda)(int))", 40, "void a::(anonymous namespace)::f"),
        ("void h<(char)1, &A::operator-> >(int)", 12, "h<...>"),
        ("abcdefghijklmnop", 10, "abc...mnop"),
        ("abcdefghijklmnop", 1, "ab...nop"),
        ("(((((((((((((((((", 9, "(((...((("),
    ],
)
def test_what_goes_first(name: str, width: int, said: str) -> None:
    assert brief(name, width) == said


# -- a live graph ------------------------------------------------------------------------------------------------------


def test_a_live_graph_with_names() -> None:
    with sg.debug() as debugger:
        model = Model(debugger)
        (graph,) = debugger.graphs
        start = model.table.data_ptr()

        def named(address: int) -> tuple[str, int] | None:
            return ("the table", address - start) if start <= address < start + 32 else None

        lines = nodes_text(graph, named).splitlines()
        assert lines[0].startswith("graph#")
        assert ": 2 nodes, 0 replays" in lines[0]
        assert lines[1].split()[:3] == ["0", "kernel", "aten.mul.Tensor"]
        assert "node_makers.py:" in lines[1]
        assert "self -> the table + 0; 1 word to memory that is not tracked" in lines[1]
        assert "the table" not in nodes_text(graph)
        only = nodes_text(graph, named, Wanted(kernel="ADD_"))
        assert ": 2 nodes, 1 shown, 0 replays" in only
        assert "aten.mul" not in only


@pytest.mark.parametrize("width", [60, 100, 160])
def test_lines_are_folded_to_a_width(width: int) -> None:
    with sg.debug() as debugger:
        model = Model(debugger)
        (graph,) = debugger.graphs
        graph.build_device_later(lambda: cuda_nodes(model))
        lines = nodes_text(graph, width=width).splitlines()
        whole = nodes_text(graph).splitlines()
    assert max(map(len, lines)) <= width or width == 60  # a path may be longer than that
    assert all(line == line.rstrip() for line in lines)
    assert len(whole) == 11, "a node a line"
    assert any(ADD in line for line in whole)
    assert not any(ADD in line for line in lines if width < len(ADD))
    assert [line.split()[0] for line in whole[1:]] == ["0", "1", "2", "3", "4", "4.0", "4.1", "5", "6", "7"]


def test_a_graph_whose_nodes_are_not_known_says_so() -> None:
    graph = Graph(3, "decode")
    graph.unread = "the graph was gone"
    assert nodes_text(graph) == ("decode: 0 nodes, 0 replays\n  its device nodes are not known: the graph was gone\n")


def blind_graph() -> Graph:
    """Two kernels of which nobody could read the arguments, and a copy."""
    reason = f"{BLIND}: cuFuncGetName: CUDA_ERROR_ILLEGAL_ADDRESS (700)"
    copied = ByteRange(4096, 4160)
    nodes = (
        DeviceNode(0, NodeKind.KERNEL, "a kernel without a name", grid=(2, 1, 1), note=reason),
        DeviceNode(1, NodeKind.MEMCPY, "memcpy", reads=(copied,), writes=(copied,), after=(0,)),
        DeviceNode(2, NodeKind.KERNEL, "a kernel without a name", grid=(4, 1, 1), note=reason, after=(1,)),
    )
    graph = Graph(3, "decode")
    graph.build_device_later(lambda: nodes)
    return graph


def test_why_arguments_cannot_be_read_is_told_once() -> None:
    said = nodes_text(blind_graph(), lambda _: ("table", 0)).splitlines()
    assert said[0] == "decode: 3 nodes, 0 replays"
    assert said[1] == (
        "  2 nodes that no buffer leads to: arguments cannot be read: cuFuncGetName: CUDA_ERROR_ILLEGAL_ADDRESS (700)"
    )
    assert [line for line in said[2:] if "cannot" in line] == []
    assert said[2].split() == ["0", "kernel", "a", "kernel", "without", "a", "name", "grid", "2x1x1"]


def test_a_filter_by_buffer_says_which_nodes_it_cannot_judge() -> None:
    wanted = Wanted(memory=[ByteRange(4096, 8192)])
    made = listed(blind_graph(), wanted=wanted)
    assert [node.place for node in made.nodes] == ["1"]
    assert [each.nodes for each in made.blind] == [2]
    assert "  2 nodes that no buffer leads to: " in nodes_text(blind_graph(), wanted=wanted)
    assert listed_table(made).blind == tuple(blind(made))
    assert "".join(f'<p class="warn">{line}</p>' for line in blind(made)) in html_of(NodesReport([made]))


def test_other_notes_stay_at_their_nodes() -> None:
    graph = Graph(3, "decode")
    graph.build_device_later(lambda: (DeviceNode(0, NodeKind.CHILD, "child graph", note="its inside is not read: x"),))
    assert listed(graph).blind == ()
    assert "its inside is not read: x" in nodes_text(graph).splitlines()[1]


def test_what_a_launch_did_is_marked_at_each_of_its_nodes() -> None:
    with sg.debug() as debugger:
        model = Model(debugger)
        (graph,) = debugger.graphs
        graph.build_device_later(lambda: cuda_nodes(model))
        launch = altered(graph=graph.name, culprit=Culprit(Status.CANDIDATE, "aten", "aten.mul", 0), candidates=())
        node = altered(
            graph=graph.name, id=2, culprit=Culprit(Status.CONFIRMED, "kernel", "x", 0, seen_in=4), candidates=()
        )
        other = altered(graph="another", id=3, culprit=Culprit(Status.CONFIRMED, "kernel", "x", 5, seen_in=4))
        marked = {
            each.place: [(b.finding, str(b.status)) for b in each.culprit_of]
            for each in listed(graph, findings=(launch, node, other)).nodes
            if each.culprit_of
        }
    assert marked == {"0": [(2, "confirmed")], "1": [(1, "candidate")], "2": [(1, "candidate")]}


def test_a_file_is_matched_by_whole_parts_of_its_path() -> None:
    with sg.debug() as debugger:
        model = Model(debugger)
        (graph,) = debugger.graphs
        graph.build_device_later(lambda: cuda_nodes(model))

        def places(file: str, line: int | None = None) -> list[str]:
            return [node.place for node in listed(graph, wanted=Wanted(file=file, line=line)).nodes]

        assert places("model.py") == places("app/model.py", 33) == places("./app/model.py") == ["4", "4.0", "4.1", "5"]
        assert places("server.py", 7) == ["4", "4.0", "4.1", "5"], "what it called counts"
        assert places("odel.py") == places("model.py", 34) == places("other/model.py") == []
        assert [n.place for n in listed(graph, wanted=Wanted(kind=NodeKind.ALLOC)).nodes] == ["4.0"]


# -- the culprit in a report -------------------------------------------------------------------------------------------


def test_a_located_culprit_with_the_argument_that_led_there() -> None:
    led = Argument(2, 16, "out", 0x7F0000001200, "draft.kv_indices", 512)
    others = (Argument(0, 0, "self", 0x1000, "model.weights", 0), Argument(3, 0, "", 0x2000, sureness="medium"))
    finding = located(culprit__arguments=(others[0], led, others[1]), culprit__led_by=led)
    assert rows_of(finding) == [
        "culprit    aten.add_.Tensor, node 17, grid 4x1x1, block 128x1x1 (confirmed)",
        "kernel     at::native::vectorized_elementwise_kernel<...>",
        "seen in    replay 8, run node by node",
        "led by     argument 2, byte 16 (out) points at draft.kv_indices + 512",
        "arguments  argument 0 (self) points at model.weights + 0",
        "           argument 3 points at 0x2000, not tracked (medium sureness)",
    ]
    assert "(node 17) wrote 48 bytes" in finding.message


def test_no_argument_points_near() -> None:
    finding = located(culprit__arguments=(Argument(0, 0, "self", 0x1000, "model.weights", 0),))
    assert "led by     no argument points near" in rows_of(finding)
    assert not any("led by" in row for row in rows_of(located())), "not known is not the same"


@pytest.mark.parametrize("count", [6, 7, 30])
def test_further_arguments_are_cut_and_counted(count: int) -> None:
    arguments = tuple(Argument(i, 0, "", 0x1000 + i, "model.weights", i) for i in range(count))
    rows = rows_of(located(culprit__arguments=arguments, culprit__led_by=None))
    assert sum("points at model.weights" in row for row in rows) == 6
    assert (rows[-1] == f"           ... and {count - 6} more") == (count > 6)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"culprit__status": Status.NOT_REPRODUCED}, "block 128x1x1 (not reproduced in replay 8)"),
        ({"culprit__status": Status.NOT_REPRODUCED, "culprit__seen_in": None}, "block 128x1x1 (not reproduced)"),
        ({"culprit__stack": (), "culprit__line": 5}, "block 128x1x1 at /srv/app/draft.py:5 (confirmed)"),
        ({"culprit__kind": "kernel", "culprit__name": "fill"}, "kernel fill, node 17, grid"),
        ({"culprit__kind": None, "culprit__name": "fill"}, "culprit    fill, node 17, grid"),
    ],
)
def test_how_sure_it_is_and_where(facts: dict[str, object], said: str) -> None:
    rows = rows_of(located(**facts))
    assert said in rows[0]
    again = facts.get("culprit__status") is not Status.NOT_REPRODUCED
    assert any(row.startswith("seen in") for row in rows) == again


def test_a_kernel_that_nobody_launched_is_told_in_short_and_in_a_row_of_its_own() -> None:
    finding = located(culprit__kind="kernel", culprit__name=ADD, culprit__kernel=None)
    rows = rows_of(finding)
    assert rows[0].startswith("culprit    kernel at::native::vectorized_elementwise_kernel<...>, node 17,")
    assert len(finding.message) < 220
    assert ADD not in finding.message
    named = located(culprit__kind="kernel", culprit__name="fill", culprit__kernel=None)
    assert not any(row.startswith("kernel") for row in rows_of(named)), "the name says it"


def test_candidates_say_their_line() -> None:
    frame = Frame("/srv/app/a.py", 3, "f")
    other = Culprit(Status.CANDIDATE, "aten", "aten.copy_", 4, frame.file, frame.line, (frame,))
    assert "\n  or         aten.copy_, node 4 at /srv/app/a.py:3 (candidate)\n" in str(
        Report(run_of(altered(candidates=(other,))))
    )


def test_rows_stay_within_100_columns() -> None:
    led = Argument(2, 16, "out", BUFFER.address, BUFFER.name, 512)
    finding = located(culprit__arguments=(led,) * 2, culprit__led_by=led)
    assert max(len(row) for row in rows_of(finding)) <= 98
    eager = rows_of(altered(culprit=CULPRIT))
    assert eager == ["culprit    triton fill_indices, grid 3x2, defined at /srv/app/kernels.py:12 (confirmed)"]


# -- edges -------------------------------------------------------------------------------------------------------------


def test_edges_are_said_where_a_node_does_not_follow_the_one_before() -> None:
    with sg.debug() as debugger:
        model = Model(debugger)
        (graph,) = debugger.graphs
        assert "after" not in nodes_text(graph), "one after the other"
        graph.build_device_later(lambda: cuda_nodes(model))
        whole, folded = nodes_text(graph).splitlines(), nodes_text(graph, width=100)
    said = {line.split()[0]: line.partition("  after ")[2].split("  ")[0] for line in whole[1:]}
    assert said == {
        "0": "", "1": "", "2": "", "3": "1", "4": "1", "4.0": "", "4.1": "", "5": "2, 3, 4", "6": "no other",
        "7": "5, 6",
    }  # fmt: skip
    assert folded.count("after ") == 5


def test_edges_inside_and_many_of_them() -> None:
    inner = (
        DeviceNode(0, NodeKind.EMPTY, "empty"),
        DeviceNode(1, NodeKind.EMPTY, "empty"),
        DeviceNode(2, NodeKind.EMPTY, "empty", after=(0, 1)),
    )
    ten = tuple(DeviceNode(index, NodeKind.EMPTY, "empty") for index in range(10))
    last = DeviceNode(10, NodeKind.CHILD, "3 nodes", inner=inner, after=tuple(range(10)))
    graph = Graph(3, "decode")
    graph.build_device_later(lambda: (*ten, last))
    lines = {line.split()[0]: line for line in nodes_text(graph).splitlines()[1:]}
    assert "after 0, 1, 2, 3, 4, 5, 6, 7 and 2 more" in lines["10"]
    assert "after no other" in lines["10.1"]
    assert "after 10.0, 10.1" in lines["10.2"]
    assert "after" not in lines["0"] + lines["10.0"]
