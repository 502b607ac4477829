"""What our hooks cost the host in a steady step, each against the same call without them, on any machine.

    python tools/bench_steady_hooks.py [--json FILE]

Microseconds of processor time of a call, the least of many rounds: other programs on the machine only add to it. What
is noted is measured with rows of the launch log that are written in Python, and then in C++.
"""

from __future__ import annotations

import argparse
import json
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import shadowgraph as sg
from shadowgraph.graphs import launch_rows
from shadowgraph.graphs.dispatch import eager
from shadowgraph.graphs.observer.observer import observer
from shadowgraph.graphs.triton import cuda as triton
from shadowgraph.integrations.flashinfer.hooks import Hooks as FlashinferHooks
from shadowgraph.integrations.flashinfer.planner import ModuleAttribute
from shadowgraph.integrations.flashinfer.versions import WRAPPERS
from shadowgraph.integrations.sglang.hooks import Hooks as SglangHooks
from shadowgraph.tracking import launch_recording, passing

_CALLS, _ROUNDS = 1000, 200
_PATIENCE = 300.0  # seconds for the compiler


def microseconds(call: Callable[[], object]) -> float:
    rounds = timeit.repeat(call, number=_CALLS, repeat=_ROUNDS, timer=time.thread_time)
    return round(min(rounds) / _CALLS * 1e6, 2)


class Kernel:
    """A launcher that launches nothing."""

    def __init__(self) -> None:
        self.fn = prepare

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        pass


def prepare(*_: object) -> None:
    pass


def launches() -> dict[str, float]:
    kernel, given = Kernel(), [torch.zeros(4) for _ in range(3)]
    hooked = triton._wrap_run(Kernel.run)

    def launch(run: Callable[..., object]) -> Callable[[], object]:
        return lambda: run(kernel, *given, 7, grid=(4, 5), warmup=False, BLOCK=64, num_warps=4)

    return {"plain": microseconds(launch(Kernel.run)), "noted": microseconds(launch(hooked))}


def batches(graph: sg.HostGraph, size: int) -> dict[str, float]:
    runner = type("Runner", (), {})()
    runner.capture_bs, runner.graphs = [256], {256: graph}
    batch = SimpleNamespace(
        batch_size=size,
        seq_lens_cpu=torch.arange(size) + 100,
        seq_lens_sum=size * 100,
        rids=[f"request-{number}" for number in range(size)],
        spec_info=None,
    )
    hooks = SglangHooks()
    return {
        "plain": microseconds(lambda: prepare(runner, batch)),
        "noted": microseconds(lambda: hooks.prepare(prepare, runner, batch)),
    }


def plans(debugger: sg.Debugger, graph: sg.HostGraph) -> dict[str, float]:
    module, host = SimpleNamespace(plan=prepare), torch.arange(9, dtype=torch.int32)
    hooks, spaces = FlashinferHooks(), [torch.zeros(64, dtype=torch.uint8) for _ in range(3)]
    wrapper = type("Wrapper", (), {"_cached_module": ModuleAttribute(hooks)})()
    hooks.knows(type(wrapper), WRAPPERS[0])
    wrapper._cached_module, wrapper._paged_kv_indptr_buf = module, torch.zeros(9, dtype=torch.int32)
    debugger.adapter.bind(graph.model, wrapper, "_paged_kv_indptr_buf", wrapper._paged_kv_indptr_buf)
    wrapper._cached_module.plan(*spaces, host, 8)  # its data are kept from here on
    return {
        "plain": microseconds(lambda: module.plan(*spaces, host, 8)),
        "noted": microseconds(lambda: wrapper._cached_module.plan(*spaces, host, 8)),
    }


def rows() -> dict[str, dict[str, float]]:
    """Of the launch log, without what calls it."""
    log = launch_recording.current
    assert log is not None
    calls: dict[str, Callable[[], object]] = {
        "row of a replay": lambda: log.replay_passes(1, 2),
        "row of a batch": lambda: log.batch("3 requests, padded to 4", "; 100, 101, 102 tokens; ids a, b, c", 1, 2),
        "row of a plan": lambda: log.plan("prefill (paged)", ": 3 requests, 5 entries", 1, 2),
    }
    return {name: {"plain": 0.0, "noted": microseconds(call)} for name, call in calls.items()}


def measured() -> dict[str, dict[str, float]]:
    with steady() as (debugger, graph):
        sizes = debugger.adapter.novelty
        return {
            "a size that is known": {"plain": 0.0, "noted": microseconds(lambda: sizes.see("size", 1, 0, 0, 0))},
            **rows(),
            "Triton launch, 3 tensors": launches(),
            **{f"sglang batch of {size}": batches(graph, size) for size in (2, 16, 64, 256)},
            "flashinfer plan": plans(debugger, graph),
        }


def with_rows_in_cpp() -> dict[str, dict[str, float]]:
    """The same where the observer's library writes the rows, as on a device; nothing where it cannot be built."""
    observer.start()
    observer.wait(_PATIENCE)
    observer.stop()
    if launch_rows.note is launch_rows.note_in_python:
        print(f"no rows in C++: {observer.sentence()}")
        return {}
    return measured()


@contextmanager
def steady() -> Iterator[tuple[sg.Debugger, sg.HostGraph]]:
    """A debugger under which everything passes unobserved, and a captured graph."""
    with sg.debug(backend="host") as debugger:
        table, graph = torch.zeros(4), sg.HostGraph()
        with sg.host_graph(graph):
            table.add_(1)
        eager.follow(True)
        passing.let(1 << 30, {graph.model.serial})
        try:
            yield debugger, graph
        finally:
            passing.let(0)
            eager.follow(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measured()
    for name, figures in with_rows_in_cpp().items():
        found[name]["noted, rows in C++"] = figures["noted"]
    for name, figures in found.items():
        plain, *noted = figures.values()
        print(f"{name:28} {plain:6.2f} us plain, {', '.join(f'{each:6.2f}' for each in noted)} us noted")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
