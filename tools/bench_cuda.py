"""What watching costs on a GPU: ratios within one run against the same graphs unwatched, in turn, warmed, medians.

python tools/bench_cuda.py [--rounds 9] [--replays 100] [--replay-only] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

import shadowgraph as sg
from shadowgraph.engines.cupy_engine import CupyEngine
from shadowgraph.graphs.dispatch.observer_mode import ObserverMode
from shadowgraph.graphs.observer.observer import observer
from shadowgraph.model.guards import Guard, Side
from shadowgraph.model.ranges import ByteRange
from shadowgraph.monitor.sampling import observation
from shadowgraph.tracking import passing

Run = Callable[[], None]
Guarded = Callable[[], AbstractContextManager[None]]  # whose allocations are guarded
Make = Callable[[Guarded], Any]
PLAIN, PLACED, WATCHED = "plain", "placed", "watched"


def timed(run: Run, replays: int) -> tuple[float, float, float]:
    """Device, host and wall microseconds a call, over `replays` calls."""
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    began = time.perf_counter()
    begin.record()
    for _ in range(replays):
        run()
    end.record()
    host = time.perf_counter() - began
    torch.cuda.synchronize()
    wall = time.perf_counter() - began
    return begin.elapsed_time(end) / replays * 1e3, host / replays * 1e6, wall / replays * 1e6


def in_turn(runs: dict[str, Run], rounds: int, replays: int) -> dict[str, float]:
    """Medians of all runs, and what each adds to the first one, timed in one order and in the other after a warm-up."""
    names = list(runs)
    for run in runs.values():
        for _ in range(10):
            run()
    seen: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in (*names, *reversed(names)):
            seen[name].append(timed(runs[name], replays))
    out = {}
    for at, what in enumerate(("device", "host", "wall")):
        out |= compared({name: [row[at] for row in seen[name]] for name in names}, what)
    out["wall_ratio"] = round(out["wall_watched_us"] / out["wall_plain_us"], 4)
    return out


def one_by_one(runs: dict[str, Run], rounds: int) -> dict[str, float]:
    """The same on the device, for long replays: one at a time, queued behind each other. A card that is short of power
    changes its clock within milliseconds, so that runs are compared that are close to each other."""
    names = list(runs)
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in names}
    for at in range(rounds):
        for name in names if at % 2 else reversed(names):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            runs[name]()
            end.record()
            events[name].append((begin, end))
        if at % 20 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return compared({n: [a.elapsed_time(b) * 1e3 for a, b in each] for n, each in events.items()}, "device")


def compared(times: dict[str, list[float]], what: str) -> dict[str, float]:
    """Medians of some runs, and of what the others took more than the plain one beside them."""
    out = {f"{what}_{name}_us": round(statistics.median(row), 2) for name, row in times.items()}
    for name, said in ((PLACED, f"{what}_placed_added_us"), (WATCHED, f"{what}_added_us")):
        more = (x - y for x, y in zip(times[name], times[PLAIN], strict=True))
        out[said] = round(statistics.median(more), 2)
    return out


def idle_host(run: Run, replays: int) -> float:
    """Median host microseconds of a call while the device is idle before each."""
    times = []
    for _ in range(replays):
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


@contextmanager
def busy_thread() -> Iterator[None]:
    """A Python thread that always wants the interpreter's lock."""
    ends = threading.Event()

    def spin() -> None:
        while not ends.is_set():
            sum(range(200))

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def beside_busy_thread(checks: int = 200) -> dict[str, Any]:
    """Host time of one launch of a check, and of a replay plain and watched, while another thread is busy."""
    captured_plain, kept_plain = small_nodes(nullcontext)
    plain = partial(torch.cuda.CUDAGraph.replay, captured_plain)
    with sg.debug(backend="cuda", layout="isolate") as debugger:
        graph, kept = small_nodes(debugger.guard)
        graph.replay()
        engine, guards = debugger._work.context.engine, debugger._work.guards()
        with busy_thread():
            rows = {
                "check": host_times(lambda: engine.check("timed", guards), checks),
                "replay_plain": host_times(plain, checks),
                "replay_watched": host_times(graph.replay, checks),
            }
        engine.poll(wait=True)
        del kept, kept_plain
    return {name: {"mean_us": round(mean, 1), "p99_us": round(late, 1)} for name, (mean, late) in rows.items()}


def host_times(run: Run, count: int) -> tuple[float, float]:
    """Mean and 99th percentile of a call's host microseconds, the device idle before each."""
    times = []
    for _ in range(count):
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        times.append((time.perf_counter() - began) * 1e6)
    return statistics.mean(times), sorted(times)[int(0.99 * count)]


def replay_cost(
    make: Make, rounds: int, replays: int, guards: int = 0, shadows: int = 0, singly: int = 0, **options: Any
) -> dict[str, Any]:
    """Replays of one graph that was captured without a debugger, and of its twin under one, through `replay` each.
    ``placed`` is the same graph over guarded buffers, without checks: where a buffer lies makes a difference as well.

    Parameters
    ----------
    guards
        Guards that stand at least, of buffers that no graph uses.
    shadows
        Declared buffers of 64 KiB, which the graph's checks compare across each replay.
    singly
        Rounds in which replays are timed one by one on the device.
    **options
        Of the debugger. With ``watch_eager="sampled"`` launches pass unobserved while it is timed, as they do on a
        server after its first replays.
    """
    replay = torch.cuda.CUDAGraph.replay  # torch's own method, unpatched
    captured_plain, kept_plain = make(nullcontext)
    plain = partial(replay, captured_plain)
    how: dict[str, Any] = {"backend": "cuda", "layout": "isolate", "near_guard": 128, **options}
    with sg.debug(**{**how, "checks": "launches"}) as debugger:
        captured_placed, kept_placed = make(debugger.guard)
    with sg.debug(**how) as debugger:
        graph, kept = make(debugger.guard)
        with debugger.guard():
            more = [torch.zeros(32, device="cuda") for _ in range(max(0, guards - 128) // 2)]
            declared = [torch.zeros(16 << 10, dtype=torch.int32, device="cuda") for _ in range(shadows)]
        for buffer in declared:
            debugger.protect(buffer)
        for _ in range(200):
            graph.replay()
        assert passing.on is (options.get("watch_eager") == "sampled")
        runs = {PLAIN: plain, PLACED: partial(replay, captured_placed), WATCHED: graph.replay}
        cost: dict[str, Any] = in_turn(runs, rounds, replays)
        if singly:
            cost |= one_by_one(runs, singly)
        cost["host_idle_plain_us"] = round(idle_host(plain, 300), 2)
        cost["host_idle_watched_us"] = round(idle_host(graph.replay, 300), 2)
        cost["guards"] = len(debugger._work._standing.now())
        cost["shadowed_bytes"] = shadowed(debugger)
        cost["findings"] = len(debugger.check())
        cost["coverage"] = debugger.coverage().sentence()
        del kept, kept_plain, kept_placed, more, declared
    return cost


def shadowed(debugger: sg.Debugger) -> int:
    """Bytes that check nodes compare across a replay, of all graphs."""
    engine = debugger._work.context.engine
    assert isinstance(engine, CupyEngine)
    return sum(part.where.nbytes for table in engine.shadows._tables.values() for part in table.parts)


def replay_costs(rounds: int, replays: int) -> dict[str, Any]:
    """Of small and large nodes, with few and many guards, with nodes and with launches that check, in both states."""
    with ExitStack() as undo:
        for name, value in (("QUIET", 64), ("PERIOD", 10**9), ("LOOKS_APART", (10**8, 10**8))):
            undo.callback(setattr, observation, name, getattr(observation, name))
            setattr(observation, name, value)
        steady: dict[str, Any] = {"watch_eager": "sampled"}
        return {
            "small_nodes": replay_cost(small_nodes, rounds, replays),
            "small_nodes_steady": replay_cost(small_nodes, rounds, replays, **steady),
            "small_nodes_steady_20000_guards": replay_cost(small_nodes, rounds, replays, 20_000, **steady),
            "small_nodes_steady_4_shadows": replay_cost(small_nodes, rounds, replays, shadows=4, **steady),
            "small_nodes_launches": replay_cost(small_nodes, rounds, replays, checks="launches"),
            "gpu_bound_steady": replay_cost(gpu_bound, rounds, 20, singly=300, **steady),
        }


def small_nodes(guarded: Guarded) -> Any:
    """129 nodes of 4 KiB each: all launch overhead."""
    with guarded():
        buffers = [torch.zeros(1024, dtype=torch.int32, device="cuda") for _ in range(64)]

    def body() -> None:
        for buffer in buffers:
            buffer.add_(1)
        buffers[7].add_(1)
        for buffer in buffers:
            buffer.mul_(2)

    return captured(body), buffers


def gpu_bound(guarded: Guarded) -> Any:
    """Over a millisecond of matrix products."""
    with guarded():
        a = [torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        out = torch.zeros(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def body() -> None:
        for _ in range(8):
            torch.mm(a[0], a[1], out=out)

    return captured(body), (a, out)


def captured(body: Run) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        body()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph


def many_guards(count: int, near: int, stride: int, rounds: int, copy: float) -> dict[str, Any]:
    """One check launch over `count` guards at a stride, against the bound of 10 us and 60 % of copy bandwidth."""
    engine = CupyEngine()
    room = torch.empty(count * stride + near, dtype=torch.uint8, device="cuda")
    starts = [room.data_ptr() + i * stride for i in range(count)]
    guards = tuple(
        Guard(None, Side.AFTER, ByteRange(a, a + near), ByteRange(a, a + near))  # type: ignore[arg-type]
        for a in starts
    )
    if stride <= near * 4:
        engine.write_canaries((ByteRange(room.data_ptr(), room.data_ptr() + room.numel()),))
    else:
        for guard in guards:
            engine.write_canaries((guard.whole,))
    engine.check("warm", guards)
    assert engine.poll(wait=True) == [], "armed guards are intact"
    device = queued(lambda: engine.check("timed", guards), rounds, 50)
    engine.poll(wait=True)
    bound = 10 + count * near / (0.6 * copy) * 1e6
    return {
        "guards": count,
        "near_bytes": near,
        "stride": stride,
        "device_us": round(device, 2),
        "bound_us": round(bound, 2),
        "met": device <= bound,
    }


def copy_bandwidth(nbytes: int = 1 << 30) -> float:
    """Bytes read plus bytes written a second of a device-to-device copy."""
    a, b = (torch.empty(nbytes, dtype=torch.uint8, device="cuda") for _ in range(2))
    device, _, _ = timed(lambda: b.copy_(a), 20)
    return 2 * nbytes / (device / 1e6)


def queued(run: Run, rounds: int, count: int = 20) -> float:
    """Median device microseconds of a call, launched behind a sleep so that the device runs them back to back."""
    times = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(2_000_000)
        begin.record()
        for _ in range(count):
            run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / count * 1e3)
    return statistics.median(times)


def diffs(nbytes: int, rounds: int) -> dict[str, Any]:
    """One comparison of a range with its shadow against a plain copy of as many bytes, both reads counted."""
    engine = CupyEngine()
    room = torch.empty(nbytes, dtype=torch.uint8, device="cuda").random_()
    twin = torch.empty_like(room)
    shadow = engine.shadow([("key", ByteRange(room.data_ptr(), room.data_ptr() + nbytes))])
    engine.check("take", (), take=shadow)
    engine.check("warm", (), compare=shadow)
    assert engine.poll(wait=True) == [], "nothing changed"
    device = queued(lambda: engine.check("timed", (), compare=shadow), rounds)
    engine.poll(wait=True)
    plain = queued(lambda: twin.copy_(room), rounds)
    return {
        "nbytes": nbytes,
        "diff_us": round(device, 1),
        "copy_us": round(plain, 1),
        "of_copy": round(plain / device, 3),
        "met": plain >= 0.6 * device,
    }


def capture_cost(rounds: int) -> dict[str, Any]:
    """Capture of a decode step of a language model, plain and watched, in turn."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=1024, hidden_size=512, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=8, max_position_embeddings=256,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval().cuda().bfloat16()
    cache = transformers.StaticCache(config=config, max_cache_len=128)
    token = torch.full((1, 1), 7, device="cuda")
    position = torch.zeros(1, dtype=torch.int64, device="cuda")
    mask = torch.zeros(1, 1, 1, 128, dtype=torch.bool, device="cuda")

    def step() -> torch.Tensor:
        with torch.no_grad():
            out = model(
                token, attention_mask=mask, position_ids=position[None], past_key_values=cache, cache_position=position,
                use_cache=True,
            )  # fmt: skip
        logits: torch.Tensor = out.logits
        return logits

    def capture() -> tuple[float, torch.cuda.CUDAGraph]:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.cuda.graph(graph):
            step()
        torch.cuda.synchronize()
        return time.perf_counter() - began, graph

    def watched(layout: str, later: bool = False, **options: Any) -> tuple[float, float, int]:
        with sg.debug(backend="cuda", layout=layout, **options) as debugger:
            if options:
                assert observer.wait(600), observer.sentence()
            for _ in range(1 + later):  # by one line: the second is a later graph of the same runner
                seconds, graph = capture()
            began = time.perf_counter()
            graph.replay()
            torch.cuda.synchronize()
            first = time.perf_counter() - began
            nodes = debugger.graphs[-1].nodes
            assert {bool(node.launch.learnt_from) for node in nodes} == ({True, False} if later else {False})
            return seconds, first, len(nodes)

    class Bare(ObserverMode):
        """The least that a Python dispatch mode costs: it does nothing."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **kwargs) if kwargs else func(*args)

    def bare() -> float:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.cuda.graph(graph), Bare():
            step()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    def run(name: str) -> tuple[float, float, int]:
        layout, _, place = name.partition("_")
        if place:
            return watched(layout, place == "later", operators="observer", capture_lines="learnt")
        if layout in ("isolate", "faithful"):
            return watched(layout)
        return (bare() if name == "bare" else capture()[0]), 0.0, 0

    bounds = {"bare": 1.5, "isolate": 1.5, "faithful": 1.5}
    for layout in ("isolate", "faithful"):
        bounds |= {f"{layout}_first": 2.2, f"{layout}_later": 1.3}
    order = ("plain", *bounds)
    seen: dict[str, list[tuple[float, float, int]]] = {name: [] for name in order}
    for _ in range(2):
        step()
        for name in order:
            run(name)
    for _ in range(rounds):
        for name in (*order, *reversed(order)):
            seen[name].append(run(name))
    plain = statistics.median(row[0] for row in seen["plain"])
    report: dict[str, Any] = {"plain_ms": round(plain * 1e3, 2), "launches": seen["isolate"][0][2]}
    for name in order[1:]:
        taken = statistics.median(row[0] for row in seen[name])
        ratio = taken / plain
        report[name] = {"ms": round(taken * 1e3, 2), "ratio": round(ratio, 3), "met": ratio <= bounds[name]}
    for name in order[2:]:
        report[name]["first_replay_ms"] = round(statistics.median(row[1] for row in seen[name]) * 1e3, 2)
    return report


def memory_added() -> list[dict[str, Any]]:
    """Bytes that a guarded static buffer takes beyond what was asked for, by size."""
    rows = []
    with sg.debug(backend="cuda") as debugger:
        for nbytes in (16, 4096, 65536, 1 << 20, 16 << 20, 256 << 20):
            before = debugger._policy.used
            with debugger.guard():
                kept = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
            rows.append({"nbytes": nbytes, "guard_bytes": debugger._policy.used - before})
            del kept
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--replays", type=int, default=100)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--replay-only", action="store_true", help="only what a replay costs")
    parser.add_argument("--capture-only", action="store_true", help="only what a capture costs")
    args = parser.parse_args()
    if args.capture_only:
        return _told({"capture": capture_cost(args.rounds)}, args.json)
    if args.replay_only:
        costs = replay_costs(args.rounds, args.replays)
        return _told({**costs, "beside_busy_thread": beside_busy_thread()}, args.json)
    copy = copy_bandwidth()
    report: dict[str, Any] = {
        "card": torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
        "copy_tb_per_s": round(copy / 1e12, 3),
        **replay_costs(args.rounds, args.replays),
        "gpu_bound": replay_cost(gpu_bound, args.rounds, 20, singly=300),
        "beside_busy_thread": beside_busy_thread(),
        "guards": [
            many_guards(20_000, 128, 128, args.rounds, copy),
            many_guards(20_000, sg.Settings().near_guard, 512, args.rounds, copy),
            many_guards(20_000, 128, 2 << 20, args.rounds, copy),
        ],
        "diffs": [diffs(n, args.rounds) for n in (1 << 20, 64 << 20, 1 << 30)],
        "capture": capture_cost(args.rounds),
        "memory_by_size": memory_added(),
    }
    return _told(report, args.json)


def _told(report: dict[str, Any], path: str | None) -> int:
    """Print a report, and write it where that is asked for."""
    text = json.dumps(report, indent=1)
    print(text)
    if path:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
