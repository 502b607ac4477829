"""Measure what a host graph costs: microseconds an operator for recording and replaying, beside the operator itself.

The program adds 64 x 64 matrices, so little work that our own shows. Recording is measured with the garbage collector
on and off, because the records of a capture make it run; replay plain, with guards, and watched by a listener. Prints
the medians of some rounds.

Then what `shadowgraph wrap` makes of it: a graph of 40 nodes replayed plain and under the settings of `wrap`, in turns,
and the same eager operators plain, under a mode that does nothing, and watched. A watched replay may take twice as long
as a plain one; where it takes longer in most rounds, the exit code is 1.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import Any

import torch

from shadowgraph import session
from shadowgraph.common.options import defaults_of
from shadowgraph.common.settings import Settings
from shadowgraph.graphs.dispatch import thread_modes
from shadowgraph.graphs.dispatch.observer_mode import ObserverMode
from shadowgraph.graphs.events import Listener, listeners
from shadowgraph.graphs.host.graph import HostGraph, host_graph
from shadowgraph.model.guards import GuardPolicy
from shadowgraph.tracking.allocator import host_allocator

Step = Callable[[], object]
Around = Callable[[], AbstractContextManager[object]]
COUNT = 10  # times that a step is taken in each round
NODES, MOST = 40, 2.0  # of the graph that is replayed under `wrap`, and how many times a plain replay that may take


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


class Bare(ObserverMode):
    """The least that any dispatch mode costs."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def unheard() -> Iterator[None]:
    """Replays as without a debugger."""
    heard = list(listeners)
    for listener in heard:
        listeners.remove(listener)
    yield
    for listener in heard:
        listeners.append(listener)


def in_turns(steps: dict[str, tuple[Around, Step]], rounds: int) -> dict[str, list[float]]:
    """Microseconds of each step in each round, in its context, of all before the next round."""
    times: dict[str, list[float]] = {what: [] for what in steps}
    for _ in range(rounds):
        for what, (around, step) in steps.items():
            with around():
                step()
                start = perf_counter()
                for _ in range(COUNT):
                    step()
                times[what].append((perf_counter() - start) / COUNT * 1e6)
    return times


def wrapped(rounds: int) -> float:
    """Print what `wrap` makes of a replay and of an operator; how many times a plain replay a watched one takes."""
    program = chain(NODES)  # holds what the graphs read
    plain = recorded(program)
    options = {**defaults_of("wrap", {}), "backend": "host", "watch_eager": "always"}
    debugger = session.attach(Settings().with_options(**options))
    watched = recorded(program)
    times = in_turns({"plain": (unheard, plain.replay), "watched": (nullcontext, watched.replay)}, rounds)
    ratio = statistics.median(w / p for w, p in zip(times["watched"], times["plain"], strict=True))
    print(
        f"{NODES} nodes replayed: plain {min(times['plain']):.0f} us, under wrap {min(times['watched']):.0f} us "
        f"at best; x {ratio:.2f}, the median of {rounds} rounds"
    )
    x = torch.zeros(16)

    def operator() -> None:
        x.add_(1)

    thread = thread_modes.ThreadMode(lambda args, kwargs: debugger.eager_mode)
    contexts: dict[str, Around] = {"plain": nullcontext, "under a mode": Bare, "watched": lambda: thread}
    eager = in_turns({what: (around, operator) for what, around in contexts.items()}, rounds)
    print("an eager operator: " + ", ".join(f"{what} {min(each):.1f} us" for what, each in eager.items()))
    session.uninstall()
    return ratio


def main() -> int:
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
    listener = Listener()
    listeners.append(listener)
    show("replayed, guarded and watched", guarded.replay)
    listeners.remove(listener)
    host_allocator().policy = None
    return int(wrapped(10 * options.rounds) > MOST)


if __name__ == "__main__":
    raise SystemExit(main())
