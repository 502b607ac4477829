"""Operators whose body is in Python, as a capture's mode notes them; the host's tensors play those of a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shadowgraph.graphs.cuda import capture
from shadowgraph.graphs.cuda.capture import CaptureMode
from shadowgraph.graphs.cuda.node_attribution import Marks, Newest
from shadowgraph.graphs.dispatch import tensors
from shadowgraph.model.buffers import Ledger
from shadowgraph.model.graphs import Access, Graph

OPERATORS = torch.library.Library("shadowgraph_bodies", "DEF")
OPERATORS.define("attend(Tensor query, Tensor(a!) output, bool past) -> ()")
OPERATORS.define("made(Tensor query) -> Tensor")
OPERATORS.define("outer(Tensor query, Tensor(a!) output) -> ()")
OPERATORS.define("number(int count) -> Tensor")
TABLE = torch.tensor([2, 0, 1])  # read by the body, and no argument


class PlayedMarks(Marks):
    """Marks of a capture in which each launch makes one node, newest last."""

    def __init__(self) -> None:
        self.log, self.open, self._last, self._blind, self.nodes = [], [], (), False, 0

    def newest(self) -> Newest:
        return (self.nodes,) if self.nodes else ()


marks: list[PlayedMarks | None] = [None]


def attend(query: torch.Tensor, output: torch.Tensor, past: bool) -> None:
    output.copy_(query.index_select(0, TABLE))
    if past and marks[0] is not None:
        marks[0].nodes += 1  # a kernel that was launched past the dispatcher


OPERATORS.impl("attend", attend, "CompositeExplicitAutograd")
OPERATORS.impl("made", lambda query: query * 2, "CompositeExplicitAutograd")
OPERATORS.impl("number", lambda count: torch.zeros(count), "CompositeExplicitAutograd")


@torch.library.impl(OPERATORS, "outer", "CompositeExplicitAutograd")
def outer(query: torch.Tensor, output: torch.Tensor) -> None:
    torch.ops.shadowgraph_bodies.attend(query, output, False)
    output.add_(1)


@pytest.fixture(autouse=True, params=[False, True], ids=["unmarked", "marked"])
def played(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(capture, "is_plain", lambda tensor, device="cpu": tensors.is_plain(tensor))
    monkeypatch.setattr(capture, "_CUDA_KERNEL", torch._C.DispatchKeySet(torch._C.DispatchKey.CPU))
    marks[0] = PlayedMarks() if request.param else None
    yield
    marks[0] = None


def noted(body: Callable[[], Any], isolate: bool = False) -> Graph:
    """The graph of a capture in which a body ran."""
    graph = Graph(5, "graph#5")
    mode = CaptureMode(graph, Ledger(), isolate, marks[0])
    mode.begin()
    try:
        body()
    finally:
        mode.end()
        mode.finish()
        mode.drop()
    return graph


def names(graph: Graph) -> list[str]:
    return [node.launch.name for node in graph.nodes]


@pytest.mark.parametrize("isolate", [False, True])
def test_what_the_body_calls_is_noted_with_what_it_reads(isolate: bool) -> None:
    query, output = torch.arange(3.0), torch.zeros(3)
    graph = noted(lambda: torch.ops.shadowgraph_bodies.attend(query, output, False), isolate)
    inside = ["aten.index_select.default", "aten.copy_.default"]
    # Without marks it is not known whether the body launches something else.
    assert names(graph) == (inside if marks[0] is not None else [*inside, "shadowgraph_bodies.attend.default"])
    read = [pointer for pointer in graph.nodes[0].launch.pointers if pointer.view.address == TABLE.data_ptr()]
    assert [pointer.access for pointer in read] == [Access.READ]
    assert TABLE.data_ptr() in {buffer.start for buffer in graph.inputs.values()}
    assert output.tolist() == [2.0, 0.0, 1.0]


def test_the_operator_itself_is_noted_where_its_body_launches_past_the_dispatcher() -> None:
    query, output = torch.arange(3.0), torch.zeros(3)
    graph = noted(lambda: torch.ops.shadowgraph_bodies.attend(query, output, True))
    assert names(graph)[-1] == "shadowgraph_bodies.attend.default"
    written = [pointer.view.address for pointer in graph.nodes[-1].launch.pointers if pointer.access is not Access.READ]
    assert written == [output.data_ptr()]


def test_bodies_in_bodies() -> None:
    query, output = torch.arange(3.0), torch.zeros(3)
    graph = noted(lambda: torch.ops.shadowgraph_bodies.outer(query, output))
    own = [name for name in names(graph) if name.startswith("aten.")]
    assert own == ["aten.index_select.default", "aten.copy_.default", "aten.add_.Tensor"]
    assert output.tolist() == [3.0, 1.0, 2.0]


def test_what_the_body_returns_was_allocated_in_the_capture() -> None:
    query = torch.arange(3.0)
    results: list[torch.Tensor] = []
    graph = noted(lambda: results.append(torch.ops.shadowgraph_bodies.made(query)))
    assert names(graph)[0] == "aten.mul.Tensor"
    assert results[0].tolist() == [0.0, 2.0, 4.0]
    (allocation, *_) = graph.allocations
    assert allocation.where.start == results[0].data_ptr()


def test_an_error_of_the_body_reaches_the_program_and_later_operators_are_noted() -> None:
    query, output = torch.arange(3.0), torch.zeros(4)

    def body() -> None:
        with pytest.raises(RuntimeError):
            torch.ops.shadowgraph_bodies.attend(query, output, False)
        output.add_(1)

    assert names(noted(body))[-1] == "aten.add_.Tensor"


def test_one_that_takes_no_tensor_is_noted_whole() -> None:
    assert names(noted(lambda: torch.ops.shadowgraph_bodies.number(3))) == ["shadowgraph_bodies.number.default"]


def test_a_negated_view_is_resolved_for_the_body() -> None:
    query = torch.arange(3.0) * 1j
    results: list[torch.Tensor] = []
    graph = noted(lambda: results.append(torch.ops.shadowgraph_bodies.made(query.conj().imag)))
    assert "aten.mul.Tensor" in names(graph)
    assert results[0].tolist() == [0.0, -2.0, -4.0]


class Replacing(TorchDispatchMode):
    """A mode of the program that has its own result for an operator."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] * 10 if func is torch.ops.shadowgraph_bodies.made.default else func(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    """One with memory, that has its own result for an operator."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
            return torch.full((3,), 7.0) if "made" in str(func) else func(*args, **(kwargs or {}))


@pytest.mark.parametrize("outside", [False, True])
def test_a_mode_of_the_program_takes_the_operator_as_without_the_capture(outside: bool) -> None:
    results: list[torch.Tensor] = []
    query = torch.ones(3)

    def body() -> None:
        with nullcontext() if outside else Replacing():
            results.append(torch.ops.shadowgraph_bodies.made(query))

    with Replacing() if outside else nullcontext():
        noted(body)
    assert results[0].tolist() == [10.0, 10.0, 10.0]


def test_a_subclass_takes_the_operator_as_without_the_capture() -> None:
    results: list[torch.Tensor] = []
    query = torch.Tensor._make_subclass(Subclass, torch.ones(3))
    noted(lambda: results.append(torch.ops.shadowgraph_bodies.made(query)))
    assert results[0].tolist() == [7.0, 7.0, 7.0]


def test_what_a_body_launched_is_its_own_where_the_driver_could_not_tell() -> None:
    query, output = torch.arange(3.0), torch.zeros(3)
    told = marks[0]

    def body() -> None:
        torch.ops.shadowgraph_bodies.attend(query, output, True)

    if told is not None:
        told._blind = True  # at the next mark
    assert names(noted(body))[-1] == "shadowgraph_bodies.attend.default"
