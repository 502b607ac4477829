"""Modes that come and go inside of `torch.inference_mode`, whose end restores dispatch keys."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from shadowgraph.graphs.dispatch import inference_guards
from shadowgraph.graphs.dispatch.observer_mode import ObserverMode


class Seeing(ObserverMode):
    """Counts operators."""

    seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        return func(*args, **(kwargs or {}))


BLOCKS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "on": torch.inference_mode,
    "off": lambda: torch.inference_mode(False),
    "none": nullcontext,
}


@pytest.mark.parametrize("inner", BLOCKS)
@pytest.mark.parametrize("outer", BLOCKS)
def test_a_mode_that_leaves_inside(outer: str, inner: str) -> None:
    mode = Seeing()
    mode.__enter__()  # type: ignore[no-untyped-call]
    with BLOCKS[outer](), BLOCKS[inner]():
        torch.zeros(2)
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        seen = mode.seen
        assert torch.empty(2).numel() == 2
    assert torch.from_numpy(np.arange(3)).tolist() == [0, 1, 2]  # an operator without tensors
    assert torch.zeros(2).tolist() == [0, 0]
    assert 0 < seen == mode.seen


@pytest.mark.parametrize("outer", BLOCKS)
def test_a_mode_that_comes_back_inside(outer: str) -> None:
    mode = Seeing()
    with BLOCKS[outer]():
        mode.__enter__()  # type: ignore[no-untyped-call]
    try:
        seen = mode.seen
        torch.zeros(2)
        assert mode.seen > seen
    finally:
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    assert torch.from_numpy(np.arange(3)).tolist() == [0, 1, 2]


def test_as_a_decorator_and_by_dynamos_functions() -> None:
    mode = Seeing()

    @torch.inference_mode()
    def step() -> None:
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    mode.__enter__()  # type: ignore[no-untyped-call]
    step()
    assert torch.from_numpy(np.arange(2)).tolist() == [0, 1]
    mode.__enter__()  # type: ignore[no-untyped-call]
    guard = torch.autograd.grad_mode._enter_inference_mode(True)
    mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    torch.autograd.grad_mode._exit_inference_mode(guard)
    assert torch.from_numpy(np.arange(2)).tolist() == [0, 1]


def test_modes_of_the_program_stay_seen() -> None:
    with Seeing() as mode, torch.inference_mode():
        torch.zeros(2)
    with Seeing() as other:
        torch.zeros(2)
    assert (mode.seen > 0, other.seen > 0) == (True, True)
    assert torch._C._len_torch_dispatch_stack() == 0
    assert not torch._C._dispatch_tls_is_dispatch_key_included("Python")


def test_a_patch_that_the_program_lays_over_it_stays() -> None:
    guard: Any = torch._C._InferenceMode
    inference_guards.uninstall()
    before, ended = guard.__exit__, 0
    inference_guards.install()
    below = guard.__exit__

    def leave(guard: Any, *given: Any) -> Any:
        nonlocal ended
        ended += 1
        return below(guard, *given)

    try:
        guard.__exit__ = leave
        inference_guards.uninstall()
        with torch.inference_mode():
            torch.zeros(2)
        assert (guard.__exit__, ended) == (leave, 1)
        test_a_mode_that_leaves_inside("on", "on")
        assert ended == 3
    finally:
        inference_guards.uninstall()
        guard.__exit__ = before
    assert torch.from_numpy(np.arange(3)).tolist() == [0, 1, 2]
