"""Run what needs a GPU and keep what it printed.

    python tools/gpu_evidence.py [--only tests|bench|kinds|locate|sanitizer] [--out DIR]
    python tools/gpu_evidence.py --only tests --times 3 -- -n 13
    python tools/gpu_evidence.py --repeat 20 tests/cuda/test_cuda_graphs.py tests/cuda/test_cuda_findings.py --workers 6
    python tools/gpu_evidence.py --source

Writes small JSON files: the card, versions, each GPU test with its outcome and the message of each failure, the
benchmarks, and what compute-sanitizer says of the same overflow. In each are the command that makes it again and a hash
of the source that it is of; `--source` prints that of the source at hand.

Tests that run several times are kept after each run. After the first one no run begins that would end after `--limit`:
the same command goes on then, where the file in `--out` is of the same command, source, card and packages.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")
ROOT = Path(__file__).resolve().parent.parent
OUTCOMES = ("passed", "skipped", "failure", "error")  # the worst last
LONGEST_MESSAGE = 4_000
PACKAGES = (
    "torch",
    "triton",
    "cupy-cuda13x",
    "cuda-bindings",
    "numpy",
    "flashinfer-python",
    "sglang",
    "transformers",
    "msgspec",
    "vllm",
)

OVERFLOW = """
import sys, time, torch, triton, triton.language as tl
@triton.jit
def fill(p, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK); tl.store(p + o, o, mask=o < n)
buffers = [torch.zeros(1024, dtype=torch.int32, device='cuda') for _ in range(64)]
def body():
    for b in buffers: b.add_(1)
    fill[(1,)](buffers[7], 1034, BLOCK=2048)
    for b in buffers: b.mul_(2)
body(); torch.cuda.synchronize()
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g): body()
for _ in range(3): g.replay()
torch.cuda.synchronize(); began = time.perf_counter()
for _ in range(20): g.replay()
torch.cuda.synchronize(); print('replay_us', round((time.perf_counter() - began) / 20 * 1e6, 1))
"""
CONTROL = """
import cupy as cp
code = 'extern "C" __global__ void w(unsigned int* p,int n){int i=threadIdx.x+blockIdx.x*blockDim.x; if(i<n) p[i]=i;}'
k = cp.RawKernel(code, 'w')
p = cp.cuda.runtime.malloc(4096); k((9,),(128,),(cp.uint64(p),cp.int32(1034))); cp.cuda.runtime.deviceSynchronize()
print('control done')
"""


def source(root: Path = ROOT) -> str:
    """A short hash of the package's source, by which one sees whether a result is of the code at hand: of every file
    but explanations and what a run leaves behind."""
    digest = hashlib.sha256()
    for path in sorted((root / "shadowgraph").rglob("*")):
        name = path.relative_to(root)
        left_behind = any(part == "__pycache__" or part.startswith(".") for part in name.parts)
        if path.is_file() and not left_behind and path.suffix != ".md":
            digest.update(name.as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def driver_version() -> str:
    """The version of NVIDIA's driver; empty where `nvidia-smi` does not tell."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.splitlines()[0].strip() if said.strip() else ""


def circumstances(command: str) -> dict[str, Any]:
    """The card and the versions that a result depends on."""
    import torch

    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "command": command,
        "card": torch.cuda.get_device_name(),
        "capability": ".".join(map(str, torch.cuda.get_device_capability())),
        "cuda": torch.version.cuda,
        "driver": driver_version(),
        "python": platform.python_version(),
        "packages": found,
        "source": source(),
        "date": time.strftime("%Y-%m-%d"),
    }


class Runs:
    """Runs of pytest over GPU tests, kept in a file as each ends.

    Parameters
    ----------
    path
        The file; runs in it that are of the same command, source, card and packages count.
    command
        What makes the file again, as one types it.
    words
        What pytest is given besides.
    times
        How many runs there are to be.
    at_once
        How many of them run beside each other.
    """

    def __init__(self, path: Path, command: str, words: list[str], times: int, at_once: int = 1) -> None:
        self._path, self._words, self._times, self._at_once = path, words, times, at_once
        self._about = circumstances(command)
        before = json.loads(path.read_text()) if path.exists() else {}
        same = all(before.get(key) == self._about[key] for key in self._about if key not in ("date", "command"))
        same = same and _without_times(before["command"]) == _without_times(command)
        same = same and len(before.get("runs", ())) < times  # complete ones are made anew
        self._runs: list[dict[str, Any]] = before.get("runs", []) if same else []
        self._rows: dict[str, dict[str, Any]] = {row["test"]: row for row in before["tests"]} if self._runs else {}

    def go_on(self, limit: float) -> int:
        """Run once, and until there are enough or another one would end after so many seconds; 0 when all passed."""
        began, longest = time.perf_counter(), max((run["seconds"] for run in self._runs), default=0.0)
        first = True
        while len(self._runs) < self._times and (first or time.perf_counter() - began + longest < limit):
            first = False
            beside = min(self._at_once, self._times - len(self._runs))
            with ThreadPoolExecutor(beside) as pool:
                finished = list(pool.map(lambda _: timed(run_pytest, self._words), range(beside)))
            for seconds, (code, rows) in finished:
                longest = max(longest, seconds)
                if not rows:
                    print("pytest ended before it wrote its results; this run is not kept")
                    return code or 1
                self._keep(rows, round(seconds, 1), code)
        if len(self._runs) < self._times:
            print(f"{len(self._runs)} of {self._times} runs; the same command goes on")
        return int(any(run["exit_code"] for run in self._runs))

    def _keep(self, rows: list[dict[str, Any]], seconds: float, code: int) -> None:
        counts = Counter(row["outcome"] for row in rows)
        run = {**{kind: counts[kind] for kind in OUTCOMES}, "seconds": seconds, "exit_code": code}
        self._runs.append(run)
        for row in rows:
            self._merge(row, len(self._runs))
        total = Counter(row["outcome"] for row in self._rows.values())
        counted = {kind: total[kind] for kind in OUTCOMES}
        write(
            self._path,
            {**self._about, "asked": self._times, **counted, "runs": self._runs, "tests": [*self._rows.values()]},
        )

    def _merge(self, row: dict[str, Any], number: int) -> None:
        """A test's row: its worst outcome of all runs, and the message of each run in which it failed."""
        before = self._rows.get(row["test"], row)
        message = row.pop("message", None)
        failures = before.get("failures", [])
        if message is not None:
            failures = [*failures, {"run": number, "message": message}]
        worst = max(before["outcome"], row["outcome"], key=OUTCOMES.index)
        self._rows[row["test"]] = {**row, "outcome": worst, **({"failures": failures} if failures else {})}


def _without_times(command: str) -> str:
    """A command without the number of runs: earlier ones count when more are asked for."""
    return re.sub(r" --(times|repeat|at-once) \d+", "", command)


def timed(call: Callable[..., Result], *args: Any) -> tuple[float, Result]:
    """How many seconds a call takes, and what it returns."""
    started = time.perf_counter()
    result = call(*args)
    return time.perf_counter() - started, result


def run_pytest(words: list[str]) -> tuple[int, list[dict[str, Any]]]:
    """Run every test that carries the marker ``gpu``: pytest's exit code, and a row for each test."""
    with tempfile.TemporaryDirectory() as folder:
        xml = Path(folder) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", f"--junitxml={xml}"]
        code = subprocess.run([*command, *words], cwd=ROOT).returncode
        return code, rows_of(xml) if xml.exists() else []


def rows_of(xml: Path) -> list[dict[str, Any]]:
    """Each test of a JUnit file: name, outcome, seconds, what it recorded, and the message of a failure."""
    rows = []
    for case in ElementTree.parse(xml).getroot().iter("testcase"):
        outcome = next((kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), "passed")
        name = f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}"
        row: dict[str, Any] = {"test": name, "outcome": outcome, "seconds": round(float(case.get("time", 0)), 2)}
        told = {each.get("name", ""): each.get("value") for each in case.iter("property")}
        if outcome in ("failure", "error"):
            row["message"] = "\n".join(filter(None, (message_of(each) for each in case if each.tag in OUTCOMES)))
        rows.append({**row, **({"said": told} if told else {})})
    return rows


def message_of(element: ElementTree.Element, longest: int = LONGEST_MESSAGE) -> str:
    """What pytest said of a failure, its error and its end where it is long, without this machine's paths."""
    error, text = element.get("message") or "", element.text or ""
    said = text if len(text) <= longest else f"{error[: longest // 4]}\n...\n{text[-longest:]}"
    return re.sub(r"(/[\w.+-]+)+/(site-packages|shadowgraph)/", r"\2/", (said or error).replace(f"{ROOT}/", ""))


def tests(out: Path, words: list[str], times: int, limit: float) -> int:
    """The whole of the GPU tests, as often as asked."""
    said = ["tools/gpu_evidence.py", "--only", "tests", *(["--times", str(times)] if times > 1 else [])]
    command = " ".join([*said, *(["--", *words] if words else [])])
    return Runs(out / "gpu_tests.json", command, words, times).go_on(limit)


def repeats(out: Path, files: list[str], times: int, workers: int, at_once: int, limit: float) -> int:
    """Some files of GPU tests, over and over."""
    said = ["tools/gpu_evidence.py", "--repeat", str(times), *files, "--workers", str(workers)]
    command = " ".join([*said, *(["--at-once", str(at_once)] if at_once > 1 else [])])
    return Runs(out / "gpu_repeats.json", command, [*files, "-n", str(workers)], times, at_once).go_on(limit)


def bench(out: Path, name: str = "bench_cuda", what: str = "bench", words: tuple[str, ...] = ()) -> int:
    """A benchmark's own JSON, with the circumstances."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.json"
        command = [sys.executable, f"tools/{name}.py", *words, "--json", str(path)]
        code = subprocess.run(command, cwd=ROOT).returncode
        if path.exists():
            body = json.loads(path.read_text())
            write(out / f"{name}.json", {**circumstances(f"tools/gpu_evidence.py --only {what}"), **body})
    return code


def sanitizer(out: Path) -> int:
    """The same overflow in a replay: plain, under compute-sanitizer, and with its positive control."""
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("overflow.py", OVERFLOW), ("control.py", CONTROL)):
            Path(folder, name).write_text(text)
        memcheck = ["compute-sanitizer", "--tool", "memcheck", "--print-limit", "2"]
        for what, prefix, script, environment in (
            ("plain", [], "overflow.py", {}),
            ("memcheck", memcheck, "overflow.py", {}),
            ("memcheck, padding 65536", [*memcheck, "--padding", "65536"], "overflow.py", {}),
            ("memcheck, no caching allocator", memcheck, "overflow.py", {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}),
            ("memcheck, positive control on cudaMalloc", memcheck, "control.py", {}),
        ):
            done = subprocess.run(
                [*prefix, sys.executable, script], cwd=folder, env={**os.environ, **environment}, capture_output=True,
                text=True, timeout=150,
            )  # fmt: skip
            text = done.stdout + done.stderr
            took, errors = re.search(r"replay_us ([\d.]+)", text), re.search(r"ERROR SUMMARY: (\d+)", text)
            runs.append(
                {
                    "run": what,
                    "replay_us": float(took.group(1)) if took else None,
                    "errors": int(errors.group(1)) if errors else None,
                    "invalid_writes_named": text.count("Invalid __global__ write"),
                }
            )
    write(out / "compute_sanitizer.json", {**circumstances("tools/gpu_evidence.py --only sanitizer"), "runs": runs})
    return 0


def write(path: Path, body: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, indent=1) + "\n")
    print(f"{path.name} written")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("tests", "bench", "kinds", "locate", "sanitizer"))
    parser.add_argument("--source", action="store_true", help="only print the hash of the source at hand")
    parser.add_argument("--out", type=Path, default=ROOT / "tools" / "evidence")
    parser.add_argument("--times", type=int, default=1, help="how often the tests run")
    parser.add_argument("--repeat", type=int, default=0, metavar="N", help="run the given files N times, nothing else")
    parser.add_argument("--workers", type=int, default=6, help="processes of a repeated run (default: %(default)s)")
    parser.add_argument("--at-once", type=int, default=1, help="repeated runs beside each other (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=540, help="seconds of one call (default: %(default)s)")
    parser.add_argument("pytest", nargs="*", help="further words for pytest, after --; files to repeat")
    args = parser.parse_args()
    if args.source:
        print(source())
        return 0
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    if args.repeat:
        return repeats(args.out, args.pytest, args.repeat, args.workers, args.at_once, args.limit)
    code = 0
    if args.only in (None, "tests"):
        code = tests(args.out, args.pytest, args.times, args.limit)
    if args.only in (None, "bench"):
        code = bench(args.out) or code
    if args.only in (None, "kinds"):
        code = bench(args.out, "bench_kinds", "kinds", ("--backend", "cuda")) or code
    if args.only in (None, "locate"):
        code = bench(args.out, "bench_locate", "locate") or code
    if args.only in (None, "sanitizer"):
        code = sanitizer(args.out) or code
    return code


if __name__ == "__main__":
    sys.exit(main())
