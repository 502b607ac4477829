"""What each kind of finding costs an observed step: microseconds in its checks' hooks, beside the step without us.

    python tools/bench_kinds.py [--backend host|cuda] [--steps 300] [--json FILE]

The step is that of a decode loop: inputs of a batch are refreshed and padded, an index pointer is computed, a graph
replays, its output is read. All operators are observed, as in the first replays of a server and in the windows of its
steady state; replays that pass cost no check anything. A hook's own time includes what it asks of the engine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import FunctionType, GeneratorType
from typing import Any

import torch

import shadowgraph as sg
from shadowgraph.checks.base import Check
from shadowgraph.checks.kinds import kinds

_BATCH, _INPUTS, _WARM = 8, 10, 20
# All methods of the base class: a check is called by these alone. Its properties only say which of them are wanted.
HOOKS = tuple(name for name, each in vars(Check).items() if isinstance(each, FunctionType) and not name.startswith("_"))


class Step:
    """A decode step over static inputs."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.inputs = [torch.zeros(_BATCH, dtype=torch.int64, device=device) for _ in range(_INPUTS)]
        self.indptr = torch.zeros(_BATCH + 1, dtype=torch.int64, device=device)
        self.table = torch.arange(4096.0, device=device).view(64, 64)
        self.graph: Any = torch.cuda.CUDAGraph() if device == "cuda" else sg.HostGraph()
        with self._capturing():
            rows = self.table[self.inputs[0].clamp(0, 63)]
            self.output = rows.sum(1) + sum(self.inputs[1:]) + self.indptr[1:]

    def _capturing(self) -> AbstractContextManager[Any]:
        return torch.cuda.graph(self.graph) if self.device == "cuda" else sg.host_graph(self.graph)

    def run(self, number: int) -> None:
        count = 1 + number % _BATCH
        fresh = torch.full((count,), number % 64, device=self.device)
        for tensor in self.inputs:
            tensor[:count].copy_(fresh)
            tensor[count:].zero_()
        self.indptr[1:].copy_(self.inputs[1].cumsum(0))
        self.graph.replay()
        self.output[:count].tolist()


def microseconds(step: Step, steps: int) -> float:
    """The median of a step."""
    times = []
    for number in range(_WARM + steps):
        began = time.perf_counter()
        step.run(number)
        times.append(time.perf_counter() - began)
    return statistics.median(times[_WARM:]) * 1e6


def watch(checks: dict[str, list[Check]], spent: Counter[str]) -> None:
    """Have every hook that a check overrides note its time under the check's kind; of hooks that call others, once."""
    inside = False

    def timed(code: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside:
                return hook(*args, **kwargs)
            inside, began = True, time.perf_counter_ns()
            try:
                result = hook(*args, **kwargs)
                return list(result) if isinstance(result, GeneratorType) else result  # its work comes as it is iterated
            finally:
                inside = False
                spent[code] += time.perf_counter_ns() - began

        return call

    for code, each in checks.items():
        for check in each:
            for name in HOOKS:
                if getattr(type(check), name) is not getattr(Check, name):
                    setattr(check, name, timed(code, getattr(check, name)))


def measure(backend: str, steps: int) -> dict[str, Any]:
    """The plain step, the observed one, and each kind's part of it."""
    device = "cuda" if backend == "cuda" else "cpu"
    plain = microseconds(Step(device), steps)
    with sg.debug(backend=backend, watch_eager="always") as debugger:
        with debugger.guard():
            step = Step(device)
        debugger.name("step", step)
        made = {kind.code: {type(check) for check in kind.make_checks(debugger.monitor.context)} for kind in kinds()}
        checks = {code: [c for c in debugger.monitor.checks.all if type(c) in each] for code, each in made.items()}
        for number in range(_WARM):
            step.run(number)
        spent: Counter[str] = Counter()
        watch(checks, spent)
        observed = microseconds(step, steps)
        found = [finding.code for finding in (*debugger.findings, *debugger.notes)]
    by_kind = {code: round(spent[code] / (steps + _WARM) / 1e3, 2) for code in sorted(checks)}
    return {
        "backend": backend,
        "steps": steps,
        "plain_us": round(plain, 1),
        "observed_us": round(observed, 1),
        "ratio": round(observed / plain, 2),
        "kinds_us": by_kind,
        "found": found,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("host", "cuda"), default="host")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    measured = measure(options.backend, options.steps)
    text = json.dumps(measured, indent=1)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n")
    return 1 if measured["found"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
