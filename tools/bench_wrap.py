"""Times what `shadowgraph wrap` adds to the start of a program: the hook in the child, and the whole command.

Plain and wrapped runs alternate as A B B A, so that a drift of the machine hits both alike. Prints one JSON document
with medians in milliseconds. Targets: 50 ms more for a trivial program, 5 % more for one that imports torch.

    python tools/bench_wrap.py [--rounds 10]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = {"trivial": "pass", "torch": "import torch"}


Times = tuple[float, float]  # milliseconds of wall time, and of processor time with that of children


def timed(words: list[str], env: dict[str, str]) -> Times:
    """What a command takes."""
    began = time.perf_counter()
    with subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    return 1000 * (time.perf_counter() - began), 1000 * (used.ru_utime + used.ru_stime)


def abba(plain: Callable[[], Times], wrapped: Callable[[], Times], rounds: int) -> dict[str, float]:
    """Medians of both, what the second adds, and the spread of the first."""
    plain(), wrapped()  # files into the page cache, byte code onto the disk
    first, second = [], []
    for _ in range(rounds):
        first.append(plain())
        second.append(wrapped())
        second.append(wrapped())
        first.append(plain())
    (base, cpu), (with_us, cpu_with_us) = (tuple(map(statistics.median, zip(*t, strict=True))) for t in (first, second))
    quartiles = statistics.quantiles([wall for wall, _ in first], n=4)
    return {
        "plain_ms": round(base, 1),
        "wrapped_ms": round(with_us, 1),
        "added_ms": round(with_us - base, 1),
        "added_percent": round(100 * (with_us - base) / base, 1),
        "added_cpu_ms": round(cpu_with_us - cpu, 1),
        "added_cpu_percent": round(100 * (cpu_with_us - cpu) / cpu, 1),
        "plain_quartiles_ms": round(quartiles[2] - quartiles[0], 1),
    }


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Each program with the hook alone, as a process below a wrap sees it, and through the whole command."""
    sys.path.insert(0, str(ROOT))
    from shadowgraph.wrap.folder.injection_config import InjectionConfig
    from shadowgraph.wrap.launch.run_child import wrapped_environment

    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        hooked = wrapped_environment(InjectionConfig(folder), env)
        fresh = iter(range(1_000_000))
        for name, code in PROGRAMS.items():
            words = [sys.executable, "-c", code]

            def whole(words: list[str] = words) -> Times:
                run = f"{folder}/run-{next(fresh)}"
                return timed([sys.executable, "-m", "shadowgraph", "wrap", "--run-dir", run, "--", *words], env)

            results[f"{name}, hook"] = abba(lambda w=words: timed(w, env), lambda w=words: timed(w, hooked), rounds)
            results[f"{name}, command"] = abba(lambda w=words: timed(w, env), whole, rounds)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    document = {
        "schema": "shadowgraph.bench_wrap/1",
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "rounds": rounds,
        "results": measure(rounds),
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
