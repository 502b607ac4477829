"""Every operator of torch gives the same bits watched as plainly, and a host graph gives those of eager work."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import shadowgraph as sg
from shadowgraph.graphs.events import Listener, listeners
from shadowgraph.model.graphs import Launch

pytest.importorskip("expecttest", reason="torch's operator database needs it")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from operator_samples import Image, Program, images, op_db, plainly, programs, seed

# What was found to differ once, and an even sample of the rest.
KNOWN = {
    *("prod", "cumprod", "norm", "linalg.norm", "linalg.cond", "linalg.svdvals", "linalg.eigvalsh"),
    *("linalg.matrix_rank", "nn.functional.silu", "nn.functional.mish", "nn.functional.channel_shuffle"),
}
EVERY = 24

Watched = Callable[[Program], list[Image]]


class Passing(TorchDispatchMode):
    """The control: any mode, which torch sees."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def few() -> Iterator[Any]:
    return (each for at, each in enumerate(op_db()) if at % EVERY == 0 or each.name in KNOWN)


def compared(run: Watched, chosen: Iterator[Program]) -> tuple[int, list[str]]:
    """How many programs ran, and which of them made other bits than plainly."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count, apart = 0, []
        for program in chosen:
            with torch._C._DisableTorchDispatch():  # a mode that is on for the whole test
                plain = plainly(program)
            if plain is None:
                continue
            count += 1
            try:
                made = run(program)
            except sg.CaptureError:
                continue  # reads the host's memory, or is shaped by it
            if made != plain:
                apart.append(program.name)
    return count, apart


def eagerly(options: dict[str, Any], chosen: Iterator[Program]) -> tuple[int, list[str]]:
    def run(program: Program) -> list[Image]:
        with sg.debug(backend="host", **options) as debugger:
            made = program.run()
        assert not debugger.facts().faults, program.name
        return made

    return compared(run, chosen)


def replayed(program: Program) -> list[Image]:
    """What one replay of a captured operator makes, with the inputs after it."""
    seed()
    inputs, work = program.make()
    graph = sg.HostGraph()
    with torch.no_grad(), sg.host_graph(graph):
        made = work()
    seed()
    graph.replay()
    return images((made, inputs))


def forward(chosen: Iterator[Program]) -> Iterator[Program]:
    return (program for program in chosen if program.kind in ("forward", "inplace"))


FENCED = {"fence": f"in:{__name__}:eagerly.<locals>.run"}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"guard_eager": "all", "layout": "faithful"}, FENCED])
def test_operators_watched_eagerly(options: dict[str, Any]) -> None:
    count, apart = eagerly(options, programs(few(), samples=1))
    assert count > 80
    assert apart == []


@pytest.mark.slow
def test_operators_in_a_host_graph() -> None:
    count, apart = compared(replayed, forward(programs(few(), samples=2)))
    assert count > 80
    assert apart == []


@pytest.mark.slow
def test_every_second_operator_watched_eagerly() -> None:
    """All of them run where operators are noted in C++ (`observer/test_kernels.py`)."""
    count, apart = eagerly({}, programs((each for at, each in enumerate(op_db()) if at % 2), samples=1))
    assert count > 350
    assert apart == []


@pytest.mark.slow
def test_every_operator_in_a_host_graph() -> None:
    count, apart = compared(replayed, forward(programs(samples=1)))
    assert count > 350
    assert apart == []


@pytest.mark.slow
def test_any_other_mode_changes_some() -> None:
    def below_a_mode(program: Program) -> list[Image]:
        with Passing():
            return program.run()

    _, apart = compared(below_a_mode, programs((each for each in op_db() if each.name in KNOWN), samples=8))
    names = {name.split("/")[0] for name in apart}
    assert {"linalg.svdvals", "linalg.matrix_rank", "prod"} <= names, "else the tests above show nothing"


# -- what goes with it ---------------------------------------------------------------------------------------------


class Launches(Listener):
    """Names of the operators that were told to have written tracked memory."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def launch_ran(self, launch: Launch, stores: Any) -> None:
        self.names.append(launch.name)


@pytest.fixture
def launches() -> Iterator[list[str]]:
    heard = Launches()
    listeners.append(heard)
    yield heard.names
    listeners.remove(heard)


def test_the_operator_is_seen_whole(launches: list[str]) -> None:
    with sg.debug(backend="host") as debugger:
        with debugger.guard():
            out = torch.zeros((), dtype=torch.int64)
        debugger.protect(out)
        torch.linalg.matrix_rank(torch.eye(5), out=out)
        assert out.item() == 5
    assert launches == ["aten.linalg_matrix_rank.atol_rtol_tensor_out"]


def test_the_operator_is_one_node_of_a_graph() -> None:
    x = torch.randn(5, 5)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        out = torch.linalg.svdvals(x)
    x.copy_(torch.eye(5) * 3)
    graph.replay()
    assert out.tolist() == [3] * 5
    assert [node.launch.name for node in graph.model.nodes] == ["aten.linalg_svdvals.default"]


def test_a_formula_that_raises_leaves_the_mode_on() -> None:
    def refuse(grad: torch.Tensor) -> None:
        raise ValueError("refused")

    with sg.debug(backend="host"):
        before = torch._C._len_torch_dispatch_stack()
        x = torch.arange(1.0, 4.0, requires_grad=True)
        product = x.prod()
        product.grad_fn.next_functions[0][0].register_prehook(lambda grads: refuse(grads[0]))
        with pytest.raises(ValueError, match="refused"):
            product.backward()
        assert torch._C._len_torch_dispatch_stack() == before == 1


def test_operators_of_a_backward_pass_are_seen(launches: list[str]) -> None:
    with sg.debug(backend="host") as debugger:
        with debugger.guard():
            table = torch.ones(4)
        debugger.protect(table)
        x = torch.arange(1.0, 5.0, requires_grad=True)
        x.grad = table
        (x * 3).prod().backward()
    assert launches == ["aten.add_.Tensor"], "the gradient is added to the table after the product's own formula"


def test_kernels_are_made_into_a_graph_and_not_their_decompositions() -> None:
    grad, x = torch.ones(4), torch.arange(4.0)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        torch.ops.aten.silu_backward(grad, x)
        torch.ops.aten.mish_backward(grad, x)
        torch.ops.aten.native_channel_shuffle(x.view(1, 4, 1, 1), 2)
    names = [node.launch.name for node in graph.model.nodes]
    assert names == ["aten.silu_backward.default", "aten.mish_backward.default", "aten.native_channel_shuffle.default"]
