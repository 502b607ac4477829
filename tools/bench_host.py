"""What watching costs on the host backend, as ratios within one run: ABBA order, warmed, medians.

python tools/bench_host.py [--rounds 9] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

import shadowgraph as sg

OPS = 200


def body(x: torch.Tensor) -> None:
    """`OPS` small in-place operators."""
    for _ in range(OPS):
        x.add_(1)


def abba(plain: Callable[[], None], watched: Callable[[], None], rounds: int) -> tuple[float, float]:
    """Median seconds of both, timed in the order A B B A after a warm-up of each."""
    plain()
    watched()
    times: dict[str, list[float]] = {"plain": [], "watched": []}
    for _ in range(rounds):
        for name in ("plain", "watched", "watched", "plain"):
            began = time.perf_counter()
            (plain if name == "plain" else watched)()
            times[name].append(time.perf_counter() - began)
    return statistics.median(times["plain"]), statistics.median(times["watched"])


def in_debugger(run: Callable[[], None]) -> Callable[[], None]:
    def watched() -> None:
        with sg.debug(backend="host"):
            run()

    return watched


def eager(rounds: int) -> tuple[float, float]:
    """Eager operators outside and inside a debugger."""
    x = torch.zeros(64, 64)
    with sg.debug(backend="host") as debugger:
        debugger.pause()
        debugger.resume()
    return abba(lambda: body(x), in_debugger(lambda: body(x)), rounds)


def capture(rounds: int) -> tuple[float, float]:
    """Eager operators against a capture of the same."""
    x = torch.zeros(64, 64)

    def captured() -> None:
        with sg.host_graph(sg.HostGraph()):
            body(x)

    return abba(lambda: body(x), captured, rounds)


def replay(rounds: int) -> tuple[float, float]:
    """Replays of one graph without and with a debugger."""
    x = torch.zeros(64, 64)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        body(x)
    return abba(graph.replay, in_debugger(graph.replay), rounds)


def guards(count: int, rounds: int) -> float:
    """Median seconds of one check over `count` guarded buffers."""
    with sg.debug(backend="host", far_guard=0) as debugger:
        with debugger.guard():
            kept = [torch.zeros(128, dtype=torch.uint8) for _ in range(count)]
        debugger.check()
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            debugger.check()
            times.append(time.perf_counter() - began)
        del kept
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--guards", type=int, default=5000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, run in (("eager operators", eager), ("capture", capture), ("replay", replay)):
        plain, watched = run(args.rounds)
        rows.append(
            {
                "what": name,
                "plain_us_per_op": round(plain / OPS * 1e6, 2),
                "watched_us_per_op": round(watched / OPS * 1e6, 2),
                "ratio": round(watched / plain, 2),
            }
        )
    seconds = guards(args.guards, args.rounds)
    check = {"guarded_buffers": args.guards, "check_ms": round(seconds * 1e3, 2)}
    if args.json:
        print(json.dumps({"rows": rows, "check": check}, indent=1))
        return 0
    for row in rows:
        print("{what:16} {plain_us_per_op:8.2f} us -> {watched_us_per_op:8.2f} us an operator, x {ratio}".format(**row))
    print(f"one check of {args.guards:,} guarded buffers: {check['check_ms']} ms")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
