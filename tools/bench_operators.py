"""What noting operators costs: microseconds that a call of each takes longer with the observer in C++, once it is
stopped, and for comparison under a dispatch mode that does nothing.

    python tools/bench_operators.py [--rounds 100] [--calls 500]

A process that has the observer and one that has not take turns, as its kernels stay; the least of many blocks counts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shadowgraph.graphs.observer.observer import OperatorObserver

PLAIN, OBSERVER, STOPPED, MODE = "plain", "observer", "stopped", "dispatch mode"
Least = dict[str, float]


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
        "zeros": lambda: torch.zeros(16),
        "_foreach_copy_ of 10": lambda: torch._foreach_copy_(many, others),
    }


def block(run: Callable[[], object], calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - began) / calls * 1e6


def round_of(calls: int) -> Least:
    """A block of each operator."""
    found = {}
    for name, run in operators().items():
        run()
        found[name] = block(run, calls)
    return found


def work(orders: Connection, calls: int) -> None:
    """A process of the two: a round in the way that is asked for."""
    torch.set_num_threads(1)
    observer = OperatorObserver()
    for way in iter(orders.recv, None):
        if way == OBSERVER:
            observer.start()
            if not observer.wait(900):
                raise SystemExit(observer.sentence())
        if way == MODE:
            with Idle():
                orders.send(round_of(calls))
        else:
            orders.send(round_of(calls))
        observer.stop()


@contextmanager
def process(calls: int) -> Iterator[Connection]:
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    worker = context.Process(target=work, args=(theirs, calls))
    worker.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.send(None)
        worker.join()


def measured(rounds: int, calls: int) -> dict[str, Least]:
    """By way and operator, the least time of a call."""
    with ExitStack() as stack:
        without, watched = (stack.enter_context(process(calls)) for _ in range(2))
        turns = {PLAIN: without, OBSERVER: watched, STOPPED: watched, MODE: without}
        least: dict[str, Least] = {way: {} for way in turns}
        for _ in range(rounds):
            for way, orders in turns.items():
                orders.send(way)
                for name, took in orders.recv().items():
                    least[way][name] = min(least[way].get(name, took), took)
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--calls", type=int, default=500)
    options = parser.parse_args()
    least = measured(options.rounds, options.calls)
    rows = {
        name: {PLAIN: round(plain, 3)}
        | {f"{way} adds": round(least[way][name] - plain, 3) for way in (OBSERVER, STOPPED, MODE)}
        for name, plain in least[PLAIN].items()
    }
    made = {"torch": torch.__version__, "cores": os.cpu_count(), "rounds": options.rounds, "calls": options.calls}
    print(json.dumps({**made, "microseconds": rows}, indent=1))


if __name__ == "__main__":
    main()
