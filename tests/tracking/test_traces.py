"""Gathered stacks say what `current_stack` says at the same place."""

from __future__ import annotations

from shadowgraph.model.stacks import Stack, current_stack
from shadowgraph.tracking.traces import Trace, gather, stacks_of


def both() -> tuple[Trace, Stack]:
    return gather(), current_stack()


def deeper(depth: int) -> tuple[Trace, Stack]:
    return deeper(depth - 1) if depth else both()


def test_a_gathered_stack_is_the_stack() -> None:
    trace, stack = deeper(3)
    (gathered,) = stacks_of([trace], 12)
    assert [frame.function for frame in gathered][:5] == ["both", "deeper", "deeper", "deeper", "deeper"]
    assert gathered == stack[: len(gathered)]
    assert len(gathered) == len(stack)


def test_the_line_is_that_of_the_call_and_not_of_a_later_one() -> None:
    traces = [gather(), gather()]
    traces.append(gather())
    lines = [stack[0].line for stack in stacks_of(traces, 1)]
    assert lines[0] == lines[1] == lines[2] - 1


def test_no_more_frames_than_asked_for() -> None:
    assert [len(stack) for stack in stacks_of([deeper(5)[0], deeper(4)[0]], 4)] == [4, 4]


def test_frames_of_ours_and_of_torch_are_left_out() -> None:
    import torch

    from shadowgraph.graphs.dispatch.observer_mode import ObserverMode

    seen: list[Trace] = []

    class Looking(ObserverMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(gather())
            return func(*args, **(kwargs or {}))

    with Looking():
        torch.nn.functional.softmax(torch.zeros(3), dim=0)
    assert all(stack[0].file == __file__ for stack in stacks_of(seen, 3))
    assert all("site-packages/torch" not in frame.file for stack in stacks_of(seen, 30) for frame in stack)


def test_a_trace_that_is_missing_has_an_empty_stack() -> None:
    trace, stack = deeper(1)
    first, second, third = stacks_of([None, trace, None], 3)
    assert (first, second, third) == ((), stack[:3], ())
    assert stacks_of([None], 3) == [()]
    assert stacks_of([], 3) == []
