"""What our hooks cost the host in a steady step, each against the same call without them, on any machine.

    python tools/bench_steady_hooks.py [--json FILE]

Microseconds of a call after other work has filled the caches, as a server's step does between two hooks: the lower
quartile of many. A loop of the same calls says little, as all is in the caches then. A profile of a live engine, with a
time for each gap between two operators, agreed with what is measured here. What is noted is measured with rows of the
launch log that are written in Python, and then in C++.
"""

from __future__ import annotations

import argparse
import enum
import json
import textwrap
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

import shadowgraph as sg
from shadowgraph.graphs import launch_rows
from shadowgraph.graphs.dispatch import eager, inference_guards
from shadowgraph.graphs.observer.observer import observer
from shadowgraph.graphs.triton import cuda as triton
from shadowgraph.integrations.flashinfer.adapter import Attachment
from shadowgraph.integrations.flashinfer.hooks import Hooks as FlashinferHooks
from shadowgraph.integrations.flashinfer.versions import WRAPPERS
from shadowgraph.integrations.sglang.hooks import Hooks as SglangHooks
from shadowgraph.integrations.vllm.hooks import Hooks as VllmHooks
from shadowgraph.model.launch_log import SharedText
from shadowgraph.model.launch_log_format import RowKind
from shadowgraph.tracking import launch_recording, passing

_CALLS = 600
_FILLED = 4 << 20  # bytes of memory that are read between two calls: more than a core's own caches hold
_PATIENCE = 300.0  # seconds for the compiler


def microseconds(call: Callable[[], object]) -> float:
    memory, tensor, times = np.zeros(_FILLED // 8), torch.zeros(4), []
    for _ in range(_CALLS):
        memory.sum()
        json.loads(json.dumps({"a": [1, 2, {"b": "x"}]}, indent=1))
        textwrap.fill("some more words " * 3, 10)
        tensor.add(tensor).mul(2).sum().item()
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return round(sorted(times)[_CALLS // 4] * 1e6, 2)


class Kernel:
    """A launcher that launches nothing."""

    def __init__(self) -> None:
        self.fn = prepare

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        pass


def prepare(*_: object) -> None:
    pass


def launches() -> dict[str, float]:
    given = [torch.zeros(4) for _ in range(3)]
    hooked = type("Hooked", (Kernel,), {"run": triton._wrap_run(Kernel.run)})

    def launch(kernel: Kernel) -> Callable[[], object]:
        # As Triton calls its launcher.
        launched = lambda *args, **kwargs: kernel.run(*args, grid=(4, 5), warmup=False, **kwargs)  # noqa: E731
        return lambda: launched(*given, 7, BLOCK=64, num_warps=4)

    return {"plain": microseconds(launch(Kernel())), "noted": microseconds(launch(hooked()))}


def server(graph: sg.HostGraph, size: int, spec_info: object = None) -> tuple[object, SimpleNamespace]:
    """A graph runner of sglang's, and a batch of a size."""
    runner = type("Runner", (), {})()
    runner.capture_bs, runner.graphs = [256], {256: graph}
    batch = SimpleNamespace(
        batch_size=size,
        seq_lens_cpu=torch.arange(size) + 100,
        seq_lens_sum=size * 100,
        rids=[f"request-{number}" for number in range(size)],
        spec_info=spec_info,
    )
    return runner, batch


def batches(graph: sg.HostGraph, size: int) -> dict[str, float]:
    hooks, (runner, batch) = SglangHooks(), server(graph, size)
    return {
        "plain": microseconds(lambda: prepare(runner, batch)),
        "noted": microseconds(lambda: hooks.prepare(prepare, runner, batch)),
    }


def drafts(graph: sg.HostGraph, size: int) -> dict[str, float]:
    """A draft step: `prepare_and_replay` around a method that calls another one, hooked by `before_replay`."""
    hooks, accepted = SglangHooks(), SimpleNamespace(num_accept_tokens_cpu=[2] * size)
    runner, batch = server(graph, size, accepted)

    def plain(runner: object, batch: object) -> None:
        prepare(runner)

    def hooked(runner: object, batch: object) -> None:
        hooks.before_replay(runner)
        prepare(runner)

    return {
        "plain": microseconds(lambda: plain(runner, batch)),
        "noted": microseconds(lambda: hooks.prepare_and_replay(hooked, runner, batch)),
    }


class Descriptor(NamedTuple):
    """Of vLLM's batches."""

    num_tokens: int
    num_reqs: int


class Mode(enum.Enum):
    """Of vLLM's steps."""

    FULL = 2


class VllmRunner:
    """What the adapter uses of a runner of vLLM's in a step, and its methods that are patched."""

    calculate_kv_scales, uniform_decode_query_len = False, 1

    def __init__(self, graph: sg.HostGraph, size: int) -> None:
        entry = SimpleNamespace(cudagraph=graph)
        self.model = SimpleNamespace(concrete_cudagraph_entries={Descriptor(256, 256): entry})
        self.input_batch = SimpleNamespace(
            num_reqs=size,
            req_ids=[f"request-{number}" for number in range(size)],
            num_computed_tokens_cpu=np.full(256, 100, dtype=np.int32),
        )
        self.scheduled = SimpleNamespace(total_num_scheduled_tokens=size)
        self.counts = np.ones(size, dtype=np.int32)

    def execute_model(self) -> None:
        self._prepare_inputs(self.scheduled, self.counts)
        self._determine_batch_execution_and_padding()
        self._model_forward()

    def _prepare_inputs(self, scheduled: object, counts: object) -> None:
        pass

    def _determine_batch_execution_and_padding(self) -> tuple[Mode, Descriptor, bool]:
        return Mode.FULL, Descriptor(256, 256), False

    def _model_forward(self) -> None:
        pass

    def sample_tokens(self) -> None:
        pass

    def get_output(self) -> None:
        pass

    def step(self) -> None:
        self.execute_model()
        self.sample_tokens()
        self.get_output()


def vllm_steps(graph: sg.HostGraph, size: int) -> dict[str, float]:
    """A step of vLLM's, with all methods of its runner that are patched."""
    hooks = VllmHooks()
    names = {
        "execute_model": hooks.execute,
        "_prepare_inputs": hooks.prepare,
        "_determine_batch_execution_and_padding": hooks.dispatch,
        "_model_forward": hooks.forward,
        "sample_tokens": hooks.sample,
        "get_output": hooks.output,
    }
    hooked = type("Hooked", (VllmRunner,), {name: hook(getattr(VllmRunner, name)) for name, hook in names.items()})
    plain, noted = VllmRunner(graph, size), hooked(graph, size)
    hooks._followed = weakref.ref(noted)
    found = {"plain": microseconds(plain.step), "noted": microseconds(noted.step)}
    if not hooks.batches.of_serial(graph.model.serial, 1):
        raise SystemExit("bench_steady_hooks: vLLM's step is invalid: no batch was noted")
    hooks.forget()
    return found


def inference_blocks() -> dict[str, float]:
    """A block of torch's inference mode, of which vLLM's step has four."""

    def block() -> None:
        with torch.inference_mode():
            pass

    inference_guards.uninstall()
    plain = microseconds(block)
    inference_guards.install()
    return {"plain": plain, "noted": microseconds(block)}


def plans(debugger: sg.Debugger, graph: sg.HostGraph) -> dict[str, dict[str, float]]:
    """A plan through a wrapper's module, and its parts."""
    module, host = SimpleNamespace(plan=prepare), torch.arange(9, dtype=torch.int32)
    attachment, spaces = Attachment(FlashinferHooks()), [torch.zeros(64, dtype=torch.uint8) for _ in range(3)]

    def plan(wrapper: Any) -> None:
        wrapper._cached_module.plan(*spaces, host, 8)

    wrapper, plain = type("Wrapper", (), {"plan": prepare})(), SimpleNamespace(_cached_module=module)
    whole = type("Whole", (), {"plan": plan})()
    attachment.hang((type(each), WRAPPERS[0]) for each in (wrapper, whole))
    for each in (wrapper, whole):
        each._cached_module, each._paged_kv_indptr_buf = module, torch.zeros(9, dtype=torch.int32)
        debugger.adapter.bind(graph.model, each, "_paged_kv_indptr_buf", each._paged_kv_indptr_buf)
        plan(each)  # its data are kept from here on
    held = wrapper._cached_module
    pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "flashinfer attribute": (lambda: plain._cached_module, lambda: wrapper._cached_module),
        "flashinfer planner": (lambda: module.plan(*spaces, host, 8), lambda: held.plan(*spaces, host, 8)),
        "flashinfer hook around plan": (lambda: prepare(wrapper), lambda: wrapper.plan()),
        "flashinfer plan, all three": (lambda: plan(plain), lambda: whole.plan()),
    }
    found = {
        name: {"plain": microseconds(without), "noted": microseconds(noted)} for name, (without, noted) in pairs.items()
    }
    attachment.take_down()
    return found


def rows() -> dict[str, dict[str, float]]:
    """Of the launch log, without what calls it."""
    log = launch_recording.current
    assert log is not None
    said = SharedText(RowKind.BATCH, "\0 requests, padded to \0", "; \0 tokens; ids a, b, c")
    calls: dict[str, Callable[[], object]] = {
        "row of a replay": lambda: log.replay_passes(1, 2),
        "row of a batch": lambda: log.note_shared(said, 1, 2, (3, 4, 100, 101, 102)),
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
            "sglang draft step of 2": drafts(graph, 2),
            **{f"vLLM step of {size}": vllm_steps(graph, size) for size in (2, 64, 256)},
            "inference mode": inference_blocks(),
            **plans(debugger, graph),
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
