"""What runs inside of operators: conversions of autocast, hooks of autograd, a capture in an operator."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from observer.recording_bench import CapturingDriver, recorded
from observer.test_capture_recorder import Noted, anonymous, told

from shadowgraph.graphs.dispatch.tensors import tensors_in
from shadowgraph.graphs.observer.library import Library
from shadowgraph.graphs.observer.recording import Recording

Program = Callable[[torch.Tensor, torch.Tensor], object]
CLASSES = torch.arange(4)


def cast(x: torch.Tensor, w: torch.Tensor) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        h = torch.mm(x, w)
        h = torch.nn.functional.linear(x, w)
        torch.cat([h, x.to(torch.bfloat16), h.float()])
        torch.nn.functional.layer_norm(h.softmax(-1), (4,)).pow(2).mean()


def train(x: torch.Tensor, w: torch.Tensor) -> None:
    h = torch.nn.functional.linear(x, w).relu()
    torch.nn.functional.cross_entropy(torch.mm(h, w), CLASSES).backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        w.sub_(w.grad, alpha=0.1)


def train_cast(x: torch.Tensor, w: torch.Tensor) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        loss = torch.nn.functional.linear(torch.mm(x, w), w).float().square().mean()
    loss.backward()  # type: ignore[no-untyped-call]


class NotedInputs(Noted):
    """With the storages that no operator made, and the program's line at each operator."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        self.lines: list[int] = []
        self.made, self.inputs = set[int](), set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = len(self.told)
        results = super().__torch_dispatch__(func, types, args, kwargs)
        self.lines += [line_in(self.program)] * (len(self.told) - before)
        given = {each.untyped_storage().data_ptr() for each in tensors_in((args, kwargs))}
        self.inputs |= given - self.made
        self.made |= {each.untyped_storage().data_ptr() for each in tensors_in(results)} - given
        return results


def line_in(program: Program) -> int:
    """The line of a program that runs; 0 where autograd runs."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not program.__code__:  # type: ignore[attr-defined]
        frame = frame.f_back
    return frame.f_lineno if frame is not None else 0


@pytest.mark.parametrize("program", [cast, train, train_cast])
def test_the_same_launches_inputs_and_lines_as_a_dispatch_mode(library: Library, program: Program) -> None:
    x = torch.arange(16.0).reshape(4, 4).contiguous()
    w = torch.eye(4).requires_grad_()
    w.grad = grad = torch.zeros(4, 4)  # else autograd takes a tensor for it if the mode has no other reference
    known = {each.data_ptr() for each in (x, w, grad, CLASSES)}
    mode = NotedInputs(program)
    with mode:
        program(x, w)
    expected = anonymous(mode.told, x)
    assert mode.inputs <= known, "invalid: the program was given no others"
    driver = CapturingDriver()
    with driver.recording(library) as recorder:
        program(x, w)
    made = recorder.recording()
    assert anonymous(told(made), x) == expected
    assert {tensor.storage for tensor, _ in recorder.inputs()} == mode.inputs
    recorder.release()
    assert lines_in(made, program) == mode.lines


def lines_in(made: Recording, program: Program) -> list[int]:
    """The line of the program that each launch has; 0 for none."""
    name = program.__name__  # type: ignore[attr-defined]
    return [next((f.line for f in n.launch.stack if f.function == name), 0) for n in made.nodes()]


@pytest.mark.parametrize("keep", [True, False])
def test_what_a_hook_makes_inside_of_an_operator_is_no_input(library: Library, keep: bool) -> None:
    x, w, driver = torch.ones(4, 4), torch.eye(4).requires_grad_(), CapturingDriver()

    def body() -> None:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t + 0, lambda t: t):
            loss = torch.mm(x, w).sum()
        loss.backward()  # type: ignore[no-untyped-call]

    with driver.recording(library, keep) as recorder:
        body()
    gc.collect()
    assert {tensor.storage for tensor, _ in recorder.inputs()} == {x.data_ptr(), w.data_ptr()}
    recorder.release()


def test_operators_that_a_body_in_python_calls_are_recorded_in_its_place(library: Library) -> None:
    """As attention of vLLM, which is one operator: what it is given itself is the least of what it reads. With guards
    in the pool the tensors that it makes are kept, as the program's own."""
    scratch: list[Any] = []
    operators = torch.library.Library("shadowgraph_callees", "DEF")
    operators.define("scratching(Tensor x) -> Tensor")

    def scratching(x: torch.Tensor) -> torch.Tensor:
        own = x + 1
        scratch.append(own.untyped_storage()._weak_ref())
        return own * 2

    operators.impl("scratching", scratching, "CPU")
    given = torch.ones(4)
    with CapturingDriver().recording(library) as recorder:
        torch.ops.shadowgraph_callees.scratching(given)
    assert [node.launch.name for node in recorder.recording().nodes()] == ["aten.add.Tensor", "aten.mul.Tensor"]
    assert not torch.UntypedStorage._expired(scratch[0])
    recorder.release()
    assert torch.UntypedStorage._expired(scratch[0])
    torch.UntypedStorage._free_weak_ref(scratch[0])


def test_a_capture_inside_of_an_operator_is_recorded(library: Library) -> None:
    inner: list[str] = []
    operators = torch.library.Library("shadowgraph_capturing", "DEF")
    operators.define("capturing(Tensor x) -> Tensor")

    def capturing(x: torch.Tensor) -> torch.Tensor:
        made = recorded(library, lambda: (x + 1) * 2)
        inner.extend(node.launch.name for node in made.nodes())
        return x.clone()

    operators.impl("capturing", capturing, "CPU")
    x = torch.ones(4)
    outer = recorded(library, lambda: (torch.ops.shadowgraph_capturing.capturing(x), x.add_(1)))
    assert inner == ["aten.add.Tensor", "aten.mul.Tensor"]
    assert [node.launch.name for node in outer.nodes()] == ["aten.clone.default", "aten.add_.Tensor"]
