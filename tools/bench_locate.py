"""What naming a culprit costs on a GPU: probed replays, write sets, reading graphs, attribution; ratios within one run.

python tools/bench_locate.py [--rounds 9] [--json FILE]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import shadowgraph as sg
from shadowgraph.debugger import model_of
from shadowgraph.engines.probing import ProbeTable
from shadowgraph.graphs.cuda.driver import driver, raw_graph
from shadowgraph.graphs.cuda.probes import insert
from shadowgraph.model.probes import Outcome, Probe
from shadowgraph.model.ranges import ByteRange

OTHERS = 128  # guards that are looked at beside the broken one's


def chain(nodes: int) -> tuple[Callable[[], None], list[torch.Tensor]]:
    """As many small kernels, over 64 buffers."""
    buffers = [torch.zeros(1024, dtype=torch.int32, device="cuda") for _ in range(64)]

    def body() -> None:
        for place in range(nodes):
            buffers[place % 64].add_(1)

    return body, buffers


def captured(body: Callable[[], None]) -> torch.cuda.CUDAGraph:
    body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph


def device_us(run: Callable[[], None], rounds: int, count: int) -> float:
    """Median device microseconds of a call."""
    times = []
    run()
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        for _ in range(count):
            run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / count * 1e3)
    return statistics.median(times)


def locate_pass(nodes: int, rounds: int) -> dict[str, Any]:
    """Device time of a probed replay against a plain one, and what the host does around it once."""
    with sg.debug(backend="cuda", locate="off") as debugger:
        with debugger.guard():
            body, buffers = chain(nodes)
        graph = captured(body)
        engine, calls, raw = debugger._backend.engine, driver(), raw_graph(graph)
        ends = [b.data_ptr() + b.nbytes for b in buffers]
        parts = [ByteRange(end, end + 256) for end in ends] + [
            ByteRange(b.data_ptr() - 256, b.data_ptr()) for b in buffers
        ]
        parts = [ByteRange(ends[0], ends[0] + 4096), *parts][: OTHERS + 1]

        def replay() -> None:
            torch._C._CUDAGraph.replay(graph)  # nobody watches: the device's time for the graph alone

        plain = device_us(replay, rounds, 20)
        began = time.perf_counter()
        table = ProbeTable(engine.device, engine.probe_function, parts)
        added = insert(calls, raw, table)
        calls.try_instantiate(raw)
        graph.instantiate()
        ready = time.perf_counter()
        table.take(torch.cuda.current_stream().cuda_stream)
        probed = device_us(replay, rounds, 20)
        assert not len(table.hits()[0]), "no guard is broken"
        ended = time.perf_counter()
        for node in added:
            calls.remove(node)
        graph.instantiate()
        restored = time.perf_counter() - ended
        return {
            "nodes": len(calls.nodes(raw)), "guards": len(parts), "plain_us": round(plain, 1),
            "probed_us": round(probed, 1), "ratio": round(probed / plain, 3), "met": probed <= 3 * plain,
            "host_before_ms": round((ready - began) * 1e3, 2), "host_after_ms": round(restored * 1e3, 2),
        }  # fmt: skip


def write_sets(nodes: int, nbytes: int) -> dict[str, Any]:
    """One replay with a look at `nbytes` of memory after every node, from asking to the outcome."""
    with sg.debug(backend="cuda", locate="off"):
        body, buffers = chain(nodes)
        room = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
        graph = captured(body)
        model, outcomes = model_of(graph), list[Outcome]()
        assert model is not None
        parts = [ByteRange(t.data_ptr(), t.data_ptr() + t.nbytes) for t in (room, *buffers)]
        seconds = []
        for _ in range(3):
            torch.cuda.synchronize()
            began = time.perf_counter()
            model.probe = Probe(tuple(parts), outcomes.append)
            graph.replay()
            seconds.append(time.perf_counter() - began)
        assert all(outcome.refused is None and len(outcome.hits) == nodes for outcome in outcomes)
        median = statistics.median(seconds)
        return {"nodes": nodes, "nbytes": sum(p.nbytes for p in parts), "seconds": round(median, 3), "met": median < 2}


def reading(nodes: int, bound_ms: float) -> dict[str, Any]:
    """From a captured graph to its decoded and attributed nodes, and what keeping the graph takes on the host."""
    with sg.debug(backend="cuda", locate="off"):
        body, _ = chain(nodes)
        graph = captured(body)
        model = model_of(graph)
        assert model is not None
        launches = len(model.nodes)
        began = time.perf_counter()
        found = model.device_nodes
        took = (time.perf_counter() - began) * 1e3
        assert len(found) == nodes == launches
        assert all(node.launch == node.index and node.words for node in found)
        return {"nodes": nodes, "ms": round(took, 2), "us_a_node": round(took / nodes * 1e3, 2), "met": took < bound_ms}


def kept_memory(nodes: int, count: int = 16) -> dict[str, Any]:
    """Resident host memory that a graph's `cudaGraph_t` takes beyond its executable form."""
    body, _ = chain(nodes)
    body()
    used = {}
    for keep in (False, True, False, True):  # the first round fills what the driver keeps for itself
        graphs = []
        before = _resident()
        for _ in range(count):
            graph = torch.cuda.CUDAGraph(keep_graph=keep)
            with torch.cuda.graph(graph):
                body()
            if keep:
                graph.instantiate()
            graphs.append(graph)
        used[keep] = (_resident() - before) / count
        del graphs
    kept = used[True] - used[False]
    return {"nodes": nodes, "bytes_a_graph": round(kept), "bytes_a_node": round(kept / nodes, 1)}


def _resident() -> int:
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def attribution(rounds: int) -> dict[str, Any]:
    """Capture of 1,000 `add_`, plain and watched, in turn."""
    buffer = torch.zeros(1024, device="cuda")

    def capture() -> float:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.cuda.graph(graph):
            for _ in range(1000):
                buffer.add_(1)
        return time.perf_counter() - began

    def watched() -> float:
        with sg.debug(backend="cuda", layout="faithful"):
            return capture()

    runs: dict[str, list[float]] = {"plain": [], "watched": []}
    for name in ("plain", "watched") * 2:
        capture() if name == "plain" else watched()
    for _ in range(rounds):
        for name in ("plain", "watched", "watched", "plain"):
            runs[name].append(capture() if name == "plain" else watched())
    plain, seen = (statistics.median(runs[name]) * 1e3 for name in ("plain", "watched"))
    return {
        "plain_ms": round(plain, 2), "watched_ms": round(seen, 2), "ratio": round(seen / plain, 3),
        "added_us_an_operator": round(seen - plain, 2),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    report: dict[str, Any] = {
        "kept_memory": kept_memory(1000),
        "locate": [locate_pass(nodes, args.rounds) for nodes in (129, 1000)],
        "write_sets": write_sets(1000, 1 << 30),
        "reading": [reading(1000, 50), reading(10_000, 500)],
        "attribution_1000_add": attribution(args.rounds),
    }
    text = json.dumps(report, indent=1)
    print(text)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
