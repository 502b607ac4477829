"""`RecordedCapture` and `CaptureLines` on host memory, with a driver that answers as a test tells it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from observer.recording_bench import CapturingDriver

from shadowgraph.graphs.cuda import capture as cuda_capture
from shadowgraph.graphs.cuda import capture_lines
from shadowgraph.graphs.cuda.capture import CaptureMode
from shadowgraph.graphs.cuda.capture_lines import CaptureLines
from shadowgraph.graphs.cuda.capture_watch import Called, CaptureTracer
from shadowgraph.graphs.cuda.recorded_capture import RecordedCapture
from shadowgraph.graphs.cuda.runner_lines import GraphLines, LearntCall, Lines
from shadowgraph.graphs.observer import building
from shadowgraph.graphs.observer.library import Library
from shadowgraph.graphs.observer.observer import OperatorObserver
from shadowgraph.graphs.observer.recorder import CaptureRecorder
from shadowgraph.graphs.observer.recording import Recording, Taught
from shadowgraph.model.buffers import Ledger, Role
from shadowgraph.model.graphs import Graph, Launch, LaunchKind
from shadowgraph.model.launches import Access, Pointer
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.foreign import track_foreign
from shadowgraph.tracking.traces import gather


class Bench:
    """Captures of one runner.

    Attributes
    ----------
    lines
        What the runner has learnt.
    """

    def __init__(self, library: Library) -> None:
        self.library, self.ledger, self.lines = library, Ledger(), Lines()
        self.driver = CapturingDriver()
        self.serial = 0

    def capture(self, body: Callable[[], object], keep: bool = False) -> tuple[Graph, RecordedCapture]:
        self.serial += 1
        self.driver.nodes = 0
        model = Graph(self.serial, f"graph#{self.serial}")
        recorder = CaptureRecorder(
            self.library, 7, torch.device("cpu"), self.driver.question, keep, self.lines.taught
        )  # fmt: skip
        mode = RecordedCapture(recorder, model, self.ledger, self.lines)
        cuda_capture.enter(mode)
        try:
            body()
        finally:
            cuda_capture.leave(mode)
        mode.finish()
        if mode.taught is not None:
            self.lines.teach(mode.taught)
        self.lines.wanted = False
        return model, mode


@pytest.fixture
def bench(library: Library) -> Bench:
    return Bench(library)


def test_the_model_has_launches_inputs_and_results(bench: Bench) -> None:
    x, held, kept = torch.ones(4), [torch.ones(8)], list[torch.Tensor]()
    known, start = track_foreign(bench.ledger, x), held[0].data_ptr()
    model, mode = bench.capture(lambda: kept.append(x.add_(held[0][:4]).mul(2)))
    assert [(node.index, node.launch.name) for node in model.nodes] == [(0, "aten.add_.Tensor"), (1, "aten.mul.Tensor")]
    assert known in model.inputs.values(), "the ledger's own entry"
    (found,) = [buffer for buffer in model.inputs.values() if buffer is not known]
    assert (found.start, found.nbytes, found.shape, found.role) == (start, 32, (8,), Role.FOREIGN)
    assert dict(mode.made)[kept[0].data_ptr()][:2] == (torch.float32, (4,))
    assert (cuda_capture.current(), mode.traced) == (None, True)
    held.clear()
    assert not found.alive


def test_an_input_that_is_gone_by_the_end_is_known_as_gone(bench: Bench) -> None:
    x = torch.ones(4)
    held = [torch.ones(8), torch.ones(16)]
    known = track_foreign(bench.ledger, held[0])
    start = held[1].data_ptr()

    def body() -> None:
        x.add_(held[0][:4]).add_(held[1][:4])
        held.clear()

    model, _ = bench.capture(body)
    assert (known in model.inputs.values(), known.alive) == (True, False)
    (gone,) = [buffer for buffer in model.inputs.values() if buffer.start == start]
    assert (gone.alive, gone.nbytes, gone.role) == (False, 64, Role.FOREIGN)


def test_a_triton_launch_stands_between_operators(bench: Bench) -> None:
    x = torch.ones(4)
    buffer = track_foreign(bench.ledger, x)
    launch = Launch(LaunchKind.TRITON, "put", (Pointer("out", TensorView.of(x), Access.UNKNOWN),))

    def body() -> None:
        y = torch.zeros(2)
        y.add_(1)
        mode = cuda_capture.current()
        assert mode is not None
        with mode.triton(launch):
            bench.driver.nodes += 1
        y.add_(1)

    model, mode = bench.capture(body)
    assert [node.launch.name for node in model.nodes][-3:] == ["aten.add_.Tensor", "put", "aten.add_.Tensor"]
    assert model.inputs == {buffer.serial: buffer}
    ((newest, owner),) = mode.origin.log
    assert (newest, model.nodes[mode.origin.launches[owner]].launch) == ((1,), launch)


def test_only_a_runners_first_capture_has_a_tracer_and_later_ones_its_lines(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[object] = []
    monkeypatch.setattr(CaptureTracer, "begin", lambda self: began.append(self))
    x = torch.ones(4)

    def body() -> None:
        for _ in range(10):
            x.add_(1)
            x.mul_(2)

    (first, _), (later, _) = (bench.capture(body) for _ in range(2))
    assert len(began) == 1
    assert [node.launch.stack[0] for node in later.nodes] == [node.launch.stack[0] for node in first.nodes]
    assert {node.launch.learnt_from for node in first.nodes} == {""}
    assert {node.launch.learnt_from for node in later.nodes} == {"", "graph#1"}


def test_a_capture_that_is_dropped_leaves_nothing(bench: Bench) -> None:
    x = torch.ones(4)
    with pytest.raises(ValueError, match="the program's own"):
        bench.capture(lambda: (x.add_(1), raises()))
    assert cuda_capture.current() is None
    model, _ = bench.capture(lambda: x.add_(1))
    assert len(model.nodes) == 1


def raises() -> None:
    raise ValueError("the program's own")


# -- which captures are recorded --------------------------------------------------------------------------------


class Marks:
    """Of a stream that does not capture: the recorder refuses."""

    device, graph, with_edges = 0, 7, False

    def __init__(self) -> None:
        self.driver = CapturingDriver()
        self.ask = self.driver._ask


def observer(library: Library | None) -> OperatorObserver:
    made = OperatorObserver()
    made._library, made._wanted = library, True
    return made


@pytest.mark.parametrize(("learnt", "compiled", "counted"), [(False, True, 0), (True, False, 1)])
def test_a_dispatch_mode_notes_where_it_is_wanted_or_nothing_is_compiled(
    library: Library, learnt: bool, compiled: bool, counted: int
) -> None:
    notes = observer(library if compiled else None)
    made = CaptureLines(learnt, notes).begin(Graph(1, "graph#1"), Ledger(), False, Marks())  # type: ignore[arg-type]
    assert isinstance(made, CaptureMode)
    assert notes.captures_by_mode == counted


def test_the_report_says_so() -> None:
    notes = OperatorObserver(lambda: raises_build())
    notes.start()
    assert not notes.wait(60)
    lines = CaptureLines(True, notes)
    for _ in range(2):
        lines.begin(Graph(1, "graph#1"), Ledger(), False, None)
    said = notes.sentence()
    assert said is not None
    assert said.endswith("no observer in C++ (no compiler); 2 captures went through a dispatch mode, which is slower")


def raises_build() -> Any:
    raise building.BuildError("no compiler")


def test_a_recorder_that_refuses_costs_no_capture(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    notes, marks = observer(library), Marks()
    marks.driver.graph = 0
    monkeypatch.setattr(capture_lines.torch, "device", lambda *_: torch.empty(0).device)
    made = CaptureLines(True, notes).begin(Graph(1, "graph#1"), Ledger(), False, marks)  # type: ignore[arg-type]
    assert isinstance(made, CaptureMode)
    assert notes.captures_by_mode == 1


# -- nodes that C functions launched ----------------------------------------------------------------------------


class Nodes:
    """A driver with graphs as lists of kernels' names, each node after the one before."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def nodes(self, graph: int) -> list[int]:
        return list(range(1, len(self.names) + 1))

    def edges(self, graph: int) -> list[tuple[int, int]]:
        return [(node, node + 1) for node in range(1, len(self.names))]

    def kind(self, node: int) -> int:
        return 0

    def kernel_of(self, node: int) -> str:
        return self.names[node - 1]


def ended(
    lines: CaptureLines, runner: Lines, names: list[str], model: Graph, monkeypatch: pytest.MonkeyPatch, **capture: Any
) -> GraphLines | None:
    """A capture of these kernels has ended."""
    monkeypatch.setattr(capture_lines, "driver", lambda: Nodes(names))
    monkeypatch.setattr(capture_lines, "raw_graph", lambda graph: 7)
    made: Any = RecordedCapture.__new__(RecordedCapture)
    made.lines, made.traced = runner, runner.wanted
    made.marks = SimpleNamespace(strays=capture.get("strays", 0), called=capture.get("called", []))
    made.origin, made.taught = Recording.empty(), capture.get("taught")
    vars(made.origin)["log"] = capture.get("log", [])
    return lines.ended(None, model, made)


NAMES = ["norm", "gemm", "decode", "gemm", "add"]


def test_nodes_of_a_later_graph_take_the_lines_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, runner = CaptureLines(True, OperatorObserver()), Lines()
    call = Called("run", gather())
    log = [((2,), 1), ((3,), call), ((5,), 2)]
    first, later = Graph(1, "graph#1"), Graph(2, "graph#2")
    assert ended(lines, runner, NAMES, first, monkeypatch, called=[call], log=log) is None
    assert not runner.wanted
    assert ended(lines, runner, NAMES, Graph(3, "graph#3"), monkeypatch) is None, "all of its nodes have owners"
    taught = ended(lines, runner, NAMES, later, monkeypatch, strays=1)
    assert taught is not None
    assert taught.runner is runner
    assert not later.unlearnt
    filled = taught.fill(later, NAMES, [1, 1, None, 2, 2])
    assert filled == [1, 1, LearntCall("run", call.trace, "graph#1"), 2, 2]


def test_other_kernels_have_the_next_capture_observed_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, runner, other = CaptureLines(True, OperatorObserver()), Lines(), ["softmax"] * 7
    call = Called("run", gather())
    ended(lines, runner, NAMES, Graph(1, "graph#1"), monkeypatch, called=[call], log=[((5,), call)])
    strange = Graph(2, "graph#2")
    ended(lines, runner, other, strange, monkeypatch, strays=1)
    assert (strange.unlearnt, runner.wanted) == (True, True)
    ended(lines, runner, other, Graph(3, "graph#3"), monkeypatch, called=[call], log=[((7,), call)])
    last = Graph(4, "graph#4")
    ended(lines, runner, other, last, monkeypatch, strays=1)
    assert (last.unlearnt, runner.wanted) == (False, False)


def test_runners_are_told_apart_by_the_lines_that_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = CaptureLines(True, OperatorObserver())
    found = [lines._lines() for _ in range(2)]
    assert found[0] is found[1]
    assert lines._lines() is not found[0]


def test_only_a_capture_with_the_kernels_that_were_expected_teaches(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, runner = CaptureLines(True, OperatorObserver()), Lines()
    call, own = Called("run", gather()), [Taught((ctypes.c_uint64 * 0)(), {}, {}) for _ in range(3)]
    facts = {"called": [call], "log": [((5,), call)]}
    ended(lines, runner, NAMES, Graph(1, "graph#1"), monkeypatch, taught=own[0], **facts)
    ended(lines, runner, NAMES, Graph(2, "graph#2"), monkeypatch, strays=1, taught=own[1])
    ended(lines, runner, ["softmax"] * 7, Graph(3, "graph#3"), monkeypatch, strays=1, taught=own[2])
    assert runner.taught == tuple(own[:2])


def test_what_a_graph_has_taught_is_forgotten_when_its_kernels_turn_out_to_be_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many nodes are taken for the same ones until a line is asked for."""
    lines, runner = CaptureLines(True, OperatorObserver()), Lines()
    call, own = Called("run", gather()), [Taught((ctypes.c_uint64 * 0)(), {}, {}) for _ in range(2)]
    facts = {"called": [call], "log": [((5,), call)]}
    ended(lines, runner, NAMES, Graph(1, "graph#1"), monkeypatch, taught=own[0], **facts)
    model, others = Graph(2, "graph#2"), ["softmax"] * 5
    taken = ended(lines, runner, others, model, monkeypatch, strays=1, taught=own[1])
    assert (taken is not None, len(runner.taught)) == (True, 2)
    taken.fill(model, others, [None] * 5)  # type: ignore[union-attr]
    assert [each is own[0] for each in runner.taught] == [True]
