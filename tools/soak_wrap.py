"""Runs a server under `shadowgraph wrap` for a while and measures whether anything grows: memory of every process and
of the supervisor, the run folder. Looks at the status pages all the time, as somebody with Prometheus would, and
switches checking off and on again now and then.

    python tools/soak_wrap.py [--minutes 20] [--json FILE] [-- command ...]

Without a command a program of its own serves on the host: two graphs, inputs refreshed at every step, requests that
allocate, a row behind a buffer broken now and then so that one finding is counted on and on. A command of yours must be
Python and must go on until SIGTERM; `tools/sglang_cpu.py` is one, a real sglang server with requests. Prints one JSON
document; ends with 1 where something grew: where the median of the last third of the samples is more than 2 % and 4 MiB
above that of the third before.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20
_EVERY = 1.0  # seconds between samples
_SWITCH = 30.0  # between turns of the switch
_PATIENCE = 90.0  # for the end


def serve() -> None:
    """The program that serves when no other is given."""
    import random

    import torch

    from shadowgraph import HostGraph, host_graph

    generator = random.Random(1)
    tables = {size: torch.zeros((size, 8), dtype=torch.int32) for size in (2, 4)}
    lengths = {size: torch.zeros(size, dtype=torch.int64) for size in tables}
    graphs = {size: HostGraph() for size in tables}
    outputs = {}
    for size, graph in graphs.items():
        with host_graph(graph):
            outputs[size] = tables[size].sum(1) + lengths[size]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("serving", flush=True)
    step = 0
    while True:
        step += 1
        size = generator.choice((2, 4))
        tables[size].copy_(torch.randint(0, 99, (size, 8), dtype=torch.int32))
        lengths[size].fill_(step)
        if step % 500 == 0:
            ctypes.memset(tables[4].data_ptr() + tables[4].nbytes, 1, 4)
        graphs[size].replay()
        request = torch.full((generator.randrange(1, 4096),), step)  # what a request allocates and drops
        request.add_(outputs[size].max())
        time.sleep(0.002)


def resident(pid: int) -> int:
    """Bytes of memory that a process has; 0 where there is none."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except (OSError, IndexError, ValueError):
        return 0


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def sample(url: str, folder: Path, supervisor: int) -> dict[str, int]:
    """Bytes by what has them."""
    run = json.loads(fetch(url + "json"))["run"]
    pids = [process["pid"] for process in run["processes"] if process["ended"] == "running"]
    fetch(url), fetch(url + "map")
    sizes = {f"process {pid}": resident(pid) for pid in pids}
    stored = sum(file.stat().st_size for file in folder.iterdir() if file.suffix in (".json", ".jsonl"))
    return {**sizes, "supervisor": resident(supervisor), "run folder without dumps": stored}


def soak(command: list[str], seconds: float, replays: bool) -> dict[str, Any]:
    """Run it, sample from its first replay on if it has any, end it by SIGTERM."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        words = [sys.executable, "-m", "shadowgraph", "wrap", "--run-dir", str(folder), "--status", "0", "--quiet"]
        series: dict[str, list[int]] = {}
        metrics, turns = "", 0
        with subprocess.Popen([*words, "--", *command], env=env, stdout=sys.stderr) as wrapped:
            try:
                url = wait_for(folder, "shadowgraph_replays_total 0\n" if replays else None)
                began = turned = time.monotonic()
                while wrapped.poll() is None and time.monotonic() - began < seconds:
                    for name, size in sample(url, folder, wrapped.pid).items():
                        series.setdefault(name, []).append(size)
                    metrics = fetch(url + "metrics")
                    if time.monotonic() - turned > _SWITCH:
                        turned, turns = time.monotonic(), turns + 1
                        verb = "pause" if turns % 2 else "resume"
                        subprocess.run([*words[:3], verb, str(folder)], env=env, check=True, stdout=subprocess.DEVNULL)
                    time.sleep(_EVERY)
            finally:
                wrapped.send_signal(signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):  # what was measured counts all the same
                    wrapped.wait(_PATIENCE)
                if wrapped.returncode is None:
                    wrapped.kill()
        numbers = re.findall(r"^shadowgraph_(\w+?)(?:\{[^}]*\})? (\S+)$", metrics, re.MULTILINE)
        return {
            "command": " ".join([Path(command[0]).name, *command[1:]]),
            "versions": versions(),
            "seconds": round(seconds),
            "exit_code": wrapped.returncode,
            "switch_turned": turns,
            "last_metrics": dict(numbers),
            "sizes": {name: judged(sizes) for name, sizes in series.items() if len(sizes) >= 9},
        }


def versions() -> dict[str, str]:
    """Of Python and of the packages that count."""
    found = {"python": platform.python_version()}
    for name in ("torch", "triton", "sglang"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def wait_for(folder: Path, not_yet: str | None) -> str:
    """Where the status pages are, once they answer and their metrics say `not_yet` no more."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        time.sleep(0.5)
        try:
            url = str(json.loads((folder / "run.json").read_text())["status"])
            metrics = fetch(url + "metrics")
            if not_yet is None or not_yet not in metrics:
                return url
        except (OSError, ValueError, KeyError):
            continue
    raise SystemExit("no process replayed within ten minutes")


def judged(sizes: list[int]) -> dict[str, Any]:
    """Medians in MiB of the thirds of a series, and whether the last is above the second."""
    third = len(sizes) // 3
    first, second, last = (statistics.median(sizes[at * third : (at + 1) * third]) for at in range(3))
    return {
        "samples": len(sizes),
        "first_third_mib": round(first / MIB, 2),
        "second_third_mib": round(second / MIB, 2),
        "last_third_mib": round(last / MIB, 2),
        "largest_mib": round(max(sizes) / MIB, 2),
        "grew": last > 1.02 * second and last - second > 4 * MIB,
    }


def main() -> int:
    """Soak and print."""
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--json", metavar="FILE", help="write the document there too")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(words[:cut])
    if args.serve:
        serve()
    own = [sys.executable, __file__, "--serve"]
    given = words[cut + 1 :]
    found = soak(given or own, 60 * args.minutes, replays=not given)
    text = json.dumps(found, indent=1)
    print(text)
    if args.json:
        Path(args.json).write_text(text + "\n")
    return int(any(judged["grew"] for judged in found["sizes"].values()))


if __name__ == "__main__":
    sys.exit(main())
