"""Run what needs a GPU and keep what it printed.

    python tools/gpu_evidence.py [--only tests|bench|locate|sanitizer] [--out DIR]
    python tools/gpu_evidence.py --source

Writes small JSON files: the card, versions, each GPU test with its outcome, the benchmarks, and what compute-sanitizer
says of the same overflow. In each are the command that makes it again and a hash of the source that it is of;
`--source` prints that of the source at hand.
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
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "triton", "cupy-cuda13x", "cuda-bindings", "numpy", "flashinfer-python", "sglang", "transformers")

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


def source() -> str:
    """A short hash of the package's source, by which one sees whether a result is of the code at hand."""
    digest = hashlib.sha256()
    for path in sorted([*(ROOT / "shadowgraph").rglob("*.py"), *(ROOT / "shadowgraph").rglob("*.cu")]):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


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
        "python": platform.python_version(),
        "packages": found,
        "source": source(),
        "date": time.strftime("%Y-%m-%d"),
    }


def tests(out: Path, words: list[str]) -> int:
    """Every test that carries the marker ``gpu``."""
    with tempfile.TemporaryDirectory() as folder:
        xml = Path(folder) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", f"--junitxml={xml}"]
        code = subprocess.run([*command, *words], cwd=ROOT).returncode
        rows = []
        if not xml.exists():
            print("pytest ended before it wrote its results; nothing is kept")
            return code or 1
        for case in ElementTree.parse(xml).getroot().iter("testcase"):
            outcome = next((kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), "passed")
            name = f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}"
            row: dict[str, Any] = {"test": name, "outcome": outcome, "seconds": round(float(case.get("time", 0)), 2)}
            told = {each.get("name", ""): each.get("value") for each in case.iter("property")}
            rows.append({**row, **({"said": told} if told else {})})
    counts = {kind: sum(row["outcome"] == kind for row in rows) for kind in ("passed", "failure", "error", "skipped")}
    said = " ".join(["tools/gpu_evidence.py --only tests", *(["--", *words] if words else [])])
    write(out / "gpu_tests.json", {**circumstances(said), **counts, "tests": rows})
    return code


def bench(out: Path, name: str = "bench_cuda", what: str = "bench") -> int:
    """A benchmark's own JSON, with the circumstances."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.json"
        code = subprocess.run([sys.executable, f"tools/{name}.py", "--json", str(path)], cwd=ROOT).returncode
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
    parser.add_argument("--only", choices=("tests", "bench", "locate", "sanitizer"))
    parser.add_argument("--source", action="store_true", help="only print the hash of the source at hand")
    parser.add_argument("--out", type=Path, default=ROOT / "tools" / "evidence")
    parser.add_argument("pytest", nargs="*", help="further words for pytest, after --")
    args = parser.parse_args()
    if args.source:
        print(source())
        return 0
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    code = 0
    if args.only in (None, "tests"):
        code = tests(args.out, args.pytest)
    if args.only in (None, "bench"):
        code = bench(args.out) or code
    if args.only in (None, "locate"):
        code = bench(args.out, "bench_locate", "locate") or code
    if args.only in (None, "sanitizer"):
        code = sanitizer(args.out) or code
    return code


if __name__ == "__main__":
    sys.exit(main())
