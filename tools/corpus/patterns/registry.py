"""The patterns by name, and what several of them need."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from corpus.env import Env, ProbeDone, Skip, seed_all
from corpus.sources import Made

_PROGRAMS: dict[str, Made] = {}
Pattern = Callable[[Env, str], None]


def pattern(*choices: str, eager: bool = False) -> Callable[[Pattern], Pattern]:
    """Enter a program for each choice; `eager`: its replays may be compared with eager work."""

    def add(function: Pattern) -> Pattern:
        for choice in choices:
            name = f"{function.__name__}-{choice}"
            _PROGRAMS[name] = Made(lambda env, choice=choice: function(env, choice), eager)  # type: ignore[misc]
        return function

    return add


def ids() -> list[str]:
    return [f"patterns/{name}" for name in _PROGRAMS]


def program(pid: str) -> Made:
    """A program: ``patterns/NAME-CHOICE``."""
    return _PROGRAMS[pid.split("/", 1)[1]]


def mlp(env: Env, width: int = 16, out: int = 16) -> nn.Module:
    """A small guarded model."""
    seed_all(21)
    with env.guarded():
        return nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, out)).to(env.device)


def cuda_only(env: Env, captures_itself: bool = False) -> None:
    """Skip on the host; a program that captures by calls of torch's own has nothing to be probed."""
    if not env.cuda:
        raise Skip("for CUDA only")
    if captures_itself and env.kind == "probe":
        raise ProbeDone
