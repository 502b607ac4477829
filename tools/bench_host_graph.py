"""Measure what a host graph costs: microseconds an operator for recording and replaying, beside the operator itself.

The program adds 64 x 64 matrices, so little work that our own shows. Recording is measured with the garbage collector
on and off, because the records of a capture make it run; replay plain, with guards, and watched by a listener. Prints
the medians of some rounds; there is no limit to meet, so the exit code is always 0.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Callable
from time import perf_counter

import torch

from shadowgraph.graphs.events import Listener, listeners
from shadowgraph.graphs.host import HostGraph, host_graph
from shadowgraph.tracking.allocator import host_allocator
from shadowgraph.tracking.guards import GuardPolicy

Step = Callable[[], object]


def chain(operators: int) -> Step:
    x, y = torch.randn(64, 64), torch.randn(64, 64)

    def run() -> torch.Tensor:
        z = x
        for _ in range(operators):
            z = x + y
        return z

    return run


def recorded(program: Step) -> HostGraph:
    graph = HostGraph()
    with host_graph(graph):
        program()
    return graph


def microseconds(step: Step, operators: int, rounds: int) -> float:
    """Median over the rounds, for one operator."""
    times = []
    for _ in range(rounds):
        start = perf_counter()
        step()
        times.append(perf_counter() - start)
    return statistics.median(times) / operators * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    program = chain(options.operators)
    recorded(program)  # imports what a first capture imports

    def show(what: str, step: Step) -> None:
        print(f"{what:32} {microseconds(step, options.operators, options.rounds):8.1f} us an operator")

    show("eager", program)
    show("recorded", lambda: recorded(program))
    gc.disable()
    show("recorded, collector off", lambda: recorded(program))
    gc.enable()
    plain = recorded(program)
    show("replayed", plain.replay)
    host_allocator().policy = GuardPolicy(near=512, far=None, budget=1 << 30)
    guarded = recorded(program)
    show("replayed, guarded", guarded.replay)
    listeners.append(Listener())
    show("replayed, guarded and watched", guarded.replay)


if __name__ == "__main__":
    main()
