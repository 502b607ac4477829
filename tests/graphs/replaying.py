"""Capture a program once, replay it over changed inputs, and compare every bit with the same program run eagerly."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from shadowgraph.graphs.host.graph import HostGraph, host_graph

State = dict[str, Any]
REPLAYS = 3


@dataclass(frozen=True)
class Program:
    """What is captured.

    Attributes
    ----------
    make
        Builds the state: tensors directly in it are refreshed before each replay, the rest (modules, buffers in
        lists) only changes as the program changes it.
    run
        The captured code; returns any tree of tensors.
    """

    name: str
    make: Callable[[], State]
    run: Callable[[State], Any]


class Programs(list[Program]):
    """A table of programs, filled by a decorator over each program's captured code."""

    def add(self, make: Callable[[], State]) -> Callable[[Callable[[State], Any]], Callable[[State], Any]]:
        def enter(run: Callable[[State], Any]) -> Callable[[State], Any]:
            self.append(Program(run.__name__, make, run))
            return run

        return enter


def leaves(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in a tree of containers, modules and optimisers, gradients included."""
    if isinstance(value, torch.Tensor):
        yield value.detach()
        if value.is_leaf and value.grad is not None:
            yield value.grad
    elif isinstance(value, torch.nn.Module):
        yield from leaves(list(value.parameters()) + list(value.buffers()))
    elif isinstance(value, torch.optim.Optimizer):
        yield from leaves(list(value.state.values()))
    elif isinstance(value, dict):
        yield from leaves(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)


def refresh(state: State) -> None:
    """New values into the same tensors: floats drawn anew, integers and booleans shuffled."""
    for tensor in state.values():
        if isinstance(tensor, torch.Tensor) and not any(s == 0 for s in tensor.stride()):
            with torch.no_grad():
                if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
                    tensor.copy_(torch.randn(tensor.shape, dtype=tensor.dtype))
                else:
                    shuffled = tensor.flatten()[torch.randperm(tensor.numel())]
                    tensor.copy_(shuffled.view(tensor.shape))


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal in every element, with NaN equal to NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    a, b = one.detach(), other.detach()
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def assert_same(found: Any, expected: Any, what: str) -> None:
    pairs = list(zip(leaves(found), leaves(expected), strict=True))
    for index, (one, other) in enumerate(pairs):
        assert same(one, other), f"{what}, tensor {index}: {one} is not {other}"


def clone(state: State) -> State:
    """A deep copy that copies the gradients of parameters too."""
    copied = copy.deepcopy(state)
    for name, value in state.items():
        if isinstance(value, torch.nn.Module):
            for one, other in zip(value.parameters(), copied[name].parameters(), strict=True):
                other.grad = None if one.grad is None else one.grad.clone()
    return copied


def capture(program: Program, state: State) -> tuple[HostGraph, Any]:
    graph = HostGraph()
    with host_graph(graph):
        outputs = program.run(state)
    return graph, outputs


def check(program: Program) -> HostGraph:
    """Capture, replay several times, and compare with eager runs of a deep copy of the state."""
    torch.manual_seed(0)
    state = program.make()
    before = clone(state)
    random_state = torch.get_rng_state()
    graph, outputs = capture(program, state)
    assert_same(state, before, "inputs right after the capture")
    assert torch.equal(torch.get_rng_state(), random_state), "the capture moved the random number generator"
    for replay in range(REPLAYS):
        refresh(state)
        eager_state = clone(state)
        torch.manual_seed(100 + replay)
        expected = program.run(eager_state)
        random_state = torch.get_rng_state()
        torch.manual_seed(100 + replay)
        graph.replay()
        assert_same(outputs, expected, f"outputs of replay {replay}")
        assert_same(state, eager_state, f"inputs after replay {replay}")
        assert torch.equal(torch.get_rng_state(), random_state), "random numbers drawn differ from eager"
    return graph
