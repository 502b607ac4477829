"""A mode that only looks changes nothing of what torch.compile compiles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounter
from torch.utils._python_dispatch import TorchDispatchMode

from shadowgraph.graphs.cuda.capture import CaptureMode
from shadowgraph.graphs.dispatch.eager import EagerMode
from shadowgraph.graphs.dispatch.observer_mode import ObserverMode

seen: list[str] = []


def note(func: Any) -> None:
    seen.append(str(func))
    torch.zeros(3) + 1  # what a mode does besides must not be compiled either


class Looking(ObserverMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        note(func)
        return func(*args, **(kwargs or {}))


class Compiled(TorchDispatchMode):
    """The control: a mode whose frames dynamo may compile."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        note(func)
        return func(*args, **(kwargs or {}))


def compiled(mode: TorchDispatchMode | None) -> tuple[int, int, float]:
    """Frames and operators that are compiled for a function with a graph break and eager operators, and its result."""
    torch._dynamo.reset()
    counter = CompileCounter()

    @torch.compile(backend=counter)
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        z = y * 2
        return torch.sort(z)[0].sum() + torch.nonzero(z).sum()

    x = torch.arange(8.0)
    if mode is None:
        results = [program(x), program(x)]
    else:
        with mode:
            results = [program(x), program(x)]
    assert results[0] == results[1]
    return counter.frame_count, counter.op_count, float(results[0])


@pytest.fixture(autouse=True)
def clean() -> Any:
    seen.clear()
    yield
    torch._dynamo.reset()


def test_what_is_compiled_stays_the_same() -> None:
    plain = compiled(None)
    assert plain[0] >= 2, "the function must break its graph"
    assert compiled(Looking()) == plain
    assert seen, "the mode must see what the compiled function runs"
    assert compiled(None) == plain, "and nothing of it stays"


def test_a_mode_that_is_not_left_alone_is_compiled_itself() -> None:
    plain = compiled(None)
    assert compiled(Compiled())[0] > plain[0], "else the test above shows nothing"


@pytest.mark.parametrize("mode", [EagerMode, CaptureMode])
def test_ours_need_no_wrapper(mode: type[ObserverMode]) -> None:
    assert mode._skipped
    assert not hasattr(mode.__torch_dispatch__, "_torchdynamo_disable")


def test_higher_order_operators_pass() -> None:
    from torch._higher_order_ops.wrap import wrap

    with Looking():
        result = wrap(lambda t: t + 1, torch.zeros(2))
    assert result.tolist() == [1, 1]
