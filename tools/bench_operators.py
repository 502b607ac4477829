"""What noting operators costs: microseconds that a call of each takes longer with the observer in C++, and for
comparison under a dispatch mode that does nothing. Configurations take turns; the least of many blocks counts.

python tools/bench_operators.py [--rounds 200] [--calls 500]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shadowgraph.graphs.observer.observer import OperatorObserver

PLAIN, OBSERVER, MODE = "plain", "observer", "dispatch mode"


class Idle(TorchDispatchMode):
    """Hands every operator on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **kwargs) if kwargs else func(*args)


def operators() -> dict[str, Callable[[], object]]:
    x, y, table = torch.zeros(16), torch.ones(16), torch.zeros(64, 64)
    index, values = torch.arange(4), torch.ones(4, 64)
    many, others = [torch.zeros(16) for _ in range(10)], [torch.ones(16) for _ in range(10)]
    return {
        "copy_": lambda: x.copy_(y),
        "fill_": lambda: x.fill_(1),
        "add": lambda: torch.add(x, y),
        "index_put_": lambda: table.index_put_((index,), values),
        "add_(tensor)": lambda: x.add_(y),
        "add_(1), which calls others": lambda: x.add_(1),
        "view": lambda: x.view(4, 4),
        "_foreach_copy_ of 10": lambda: torch._foreach_copy_(many, others),
    }


def block(run: Callable[[], object], calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - began) / calls * 1e6


def measured(
    run: Callable[[], object], ways: dict[str, Callable[[], AbstractContextManager[Any]]], options: Any
) -> Any:
    """The least time of a call in each way."""
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(options.rounds):
        for name, way in ways.items():
            with way():
                run()
                least[name] = min(least[name], block(run, options.calls))
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--calls", type=int, default=500)
    options = parser.parse_args()
    torch.set_num_threads(1)
    observer = OperatorObserver()
    observer.start()
    if not observer.wait(900):
        raise SystemExit(observer.sentence())
    observer.stop()

    @contextmanager
    def observing() -> Any:
        observer.start()
        yield
        observer.stop()

    ways = {PLAIN: nullcontext, OBSERVER: observing, MODE: Idle}
    rows = {}
    for name, run in operators().items():
        least = measured(run, ways, options)
        added = {f"{way} adds": round(least[way] - least[PLAIN], 3) for way in (OBSERVER, MODE)}
        rows[name] = {PLAIN: round(least[PLAIN], 3), **added}
    latest = min(block(observer.latest_sequence, 1000) for _ in range(options.rounds))
    made = {"torch": torch.__version__, "cores": os.cpu_count(), "rounds": options.rounds, "calls": options.calls}
    print(json.dumps({**made, "microseconds": rows, "latest_sequence": round(latest, 3)}, indent=1))


if __name__ == "__main__":
    main()
