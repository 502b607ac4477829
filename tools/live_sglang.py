"""A live sglang engine on a GPU, plain and under `shadowgraph wrap`, one step after another, each kept at once.

    python tools/live_sglang.py eagle --out DIR [--caches FILE] [--until SECONDS]

`tools/pack_gpu.py` packs the sglang that it needs; its head says how to unpack it. Steps that DIR holds already are
not run again, so a run that was cut short goes on where it stopped. What is compiled on first use goes into
DIR/caches.txz after the first step; give that file to `--caches` to begin with it.

Plans:
  eagle       flashinfer, EAGLE topk 8, two requests of 100 tokens, as many new ones as 0.5.12.post1 survives: plain,
              wrapped
  longer      the same with more new tokens, which that version does not survive
  triton      with the triton backend
  many        flashinfer and EAGLE with 200 requests of mixed lengths: plain twice, wrapped
  small       tokens a second at a fixed batch, tiny model: plain, wrapped, wrapped, plain
  large       the same with about 1.5 billion parameters
  two         eagle on two GPUs (TP=2), wrapped
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from gpu_evidence import circumstances

ROOT = Path(__file__).resolve().parent.parent
HOME = Path.home()
CACHES = (HOME / ".cache" / "flashinfer", HOME / ".cache" / "tvm-ffi", HOME / ".triton")
EAGLE = ("--eagle", "--attention", "flashinfer")
FEW = ("--tokens", "24")
TRITON = ("--eagle", "--attention", "triton")
TIMED = ("--requests", "2", "--tokens", "128", "--context", "512", "--batch", "8", "--rounds", "12")
UNSTEADY = 5  # rounds in which a wrapped engine is watched all the time: 128 steps each, and 512 are
PAIRS = ("plain", "wrapped", "wrapped again", "plain again")


class Step(NamedTuple):
    name: str
    wrapped: bool
    words: tuple[str, ...]


def steps_of(plan: str) -> list[Step]:
    """What a plan runs, in order."""
    if plan in ("small", "large"):
        words = (*TIMED, *(("--large",) if plan == "large" else ()))
        return [Step(name, name.startswith("wrapped"), words) for name in PAIRS]
    many = ("--requests", "200", "--tokens", "24")
    return {
        "eagle": [Step("plain", False, (*EAGLE, *FEW)), Step("wrapped", True, (*EAGLE, *FEW))],
        "longer": [Step("plain", False, EAGLE), Step("wrapped", True, EAGLE)],
        "triton": [Step("plain", False, TRITON), Step("wrapped", True, TRITON)],
        "many": [
            Step("plain", False, (*EAGLE, *many)),
            Step("wrapped", True, (*EAGLE, *many)),
            Step("plain again", False, (*EAGLE, *many)),
        ],
        "two": [Step("wrapped", True, (*EAGLE, "--tp", "2"))],
    }[plan]


def throughput(steps: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Tokens a second once all is steady, wrapped against plain, and how far plain runs are from each other, and the
    rounds within one: a difference below that says nothing."""
    found: dict[bool, list[float]] = {False: [], True: []}
    spread = 0.0
    for step in steps:
        rates = (step["said"] or {}).get("tokens_per_s", [])[UNSTEADY:]
        if rates:
            is_wrapped = step["step"].startswith("wrapped")
            found[is_wrapped].append(statistics.median(rates))
            spread = spread if is_wrapped else max(spread, max(rates) / min(rates) - 1)
    if not found[False] or not found[True]:
        return None
    plain, wrapped = (statistics.mean(found[which]) for which in (False, True))
    noise = max(found[False]) / min(found[False]) - 1 if len(found[False]) > 1 else None
    return {
        "plain": found[False],
        "wrapped": found[True],
        "ratio": round(wrapped / plain, 3),
        "noise_of_plain": None if noise is None else round(noise, 3),
        "spread_of_plain_rounds": round(spread, 3),
    }


def write_entry_points(folder: Path) -> None:
    """Let sglang find the adapter where shadowgraph runs from its sources and is not installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [line for group, each in groups for line in (f"[{group}]", *(f"{n} = {v}" for n, v in each.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def command_of(step: Step, models: Path, run: Path, options: list[str]) -> list[str]:
    program = [sys.executable, str(ROOT / "tools" / "live_engine.py"), "--models", str(models), *step.words]
    if not step.wrapped:
        return program
    return [sys.executable, "-m", "shadowgraph", "wrap", "--run-dir", str(run), *options, "--", *program]


def ran(step: Step, out: Path, options: list[str], limit: float) -> dict[str, Any]:
    """Run one step: what the program printed, how long it took, and what the run folder holds."""
    slug = step.name.replace(" ", "-")
    with tempfile.TemporaryDirectory() as folder:
        entry, run = Path(folder, "entry"), out / f"run-{slug}-{time.time_ns()}"
        entry.mkdir()
        write_entry_points(entry)
        path = os.pathsep.join([str(ROOT), str(entry), os.environ.get("PYTHONPATH", "")])
        command = command_of(step, Path(folder, "models"), run, options)
        began = time.perf_counter()
        with (out / f"{slug}.log").open("w") as log:
            environment = {**os.environ, "PYTHONPATH": path}
            program = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, process_group=0)
            try:
                code: int | str = program.wait(limit)
            except subprocess.TimeoutExpired:
                code = f"ended after {limit:.0f} s"
            with suppress(ProcessLookupError):  # the engine's own processes must not stay on the GPU
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
        wall = time.perf_counter() - began
    lines = (out / f"{slug}.log").read_text(errors="replace").splitlines()
    said, part = (latest(lines, word) for word in ("LIVE ", "PART "))
    found = {"step": step.name, "words": list(step.words), "code": code, "wall_s": round(wall, 1), "said": said}
    found |= {"until_then": part} if said is None else {}
    return {**found, **(summary(run) if step.wrapped else {})}


def latest(lines: list[str], word: str) -> dict[str, Any] | None:
    """The last line of data that the program printed behind a word."""
    found: dict[str, Any] | None = None
    for line in lines:
        if line.startswith(word):
            with suppress(ValueError):  # it was ended in the middle of it
                found = json.loads(line.removeprefix(word))
    return found


def summary(run: Path) -> dict[str, Any]:
    """Of a run folder: each finding in a line of data, and the last line of the report."""
    done = subprocess.run(
        [sys.executable, "-m", "shadowgraph", "report", str(run), "--json"], cwd=ROOT, capture_output=True, text=True
    )
    try:
        report = json.loads(done.stdout)
    except ValueError:
        return {"report": done.stderr.strip()[-300:]}
    kept = ("code", "message", "severity", "confidence", "phase", "graph", "replay", "bytes", "batch", "occurrences")
    return {
        "findings": [{key: each.get(key) for key in kept} | places(each) for each in report.get("findings", ())],
        "notes": [each.get("message") for each in report.get("notes", ())],
        "coverage": report.get("coverage"),
    }


def places(finding: dict[str, Any]) -> dict[str, Any]:
    """The buffer, and the line that did it."""
    culprit, buffer = finding.get("culprit") or {}, finding.get("buffer") or {}
    stack = culprit.get("stack") or []
    line = f"{'/'.join(Path(stack[0]['file']).parts[-4:])}:{stack[0]['line']}" if stack else None
    return {
        "buffer": {key: buffer.get(key) for key in ("name", "dtype", "shape", "nbytes")},
        "culprit": {"name": culprit.get("name"), "status": culprit.get("status"), "line": line},
    }


def save_caches(path: Path, home: Path, folders: Iterable[Path] = CACHES) -> None:
    """Keep what was compiled. Times are cut to whole seconds: ninja noted them finer than an archive keeps them, and
    builds again what is newer than its note."""

    def cut(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime = (home / member.name).stat().st_mtime_ns // 10**9
        return member

    with tarfile.open(path, "w:xz") as archive:
        for folder in folders:
            if folder.exists():
                archive.add(folder, str(folder.relative_to(home)), filter=cut)


def restore_caches(path: Path, home: Path) -> None:
    """Put back what was compiled."""
    with tarfile.open(path) as archive:
        archive.extractall(home, filter="data")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", choices=("eagle", "longer", "triton", "many", "small", "large", "two"))
    parser.add_argument("--out", type=Path, required=True, help="folder for results, logs, run folders and caches")
    parser.add_argument("--caches", type=Path, help="caches.txz of an earlier run")
    parser.add_argument("--steps", help="only these of the plan's steps, such as plain,wrapped")
    parser.add_argument("--until", type=float, default=3600, help="begin no step after this many seconds")
    parser.add_argument("--limit", type=float, default=420, help="end a step after this many seconds")
    parser.add_argument("wrap", nargs="*", help="options for `shadowgraph wrap`, after --")
    options = parser.parse_args()
    began = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.caches is not None:
        restore_caches(options.caches, HOME)
    path = options.out / f"live_{options.plan}.json"
    kept = json.loads(path.read_text())["steps"] if path.exists() else []
    wanted = options.steps.split(",") if options.steps else None
    for step in steps_of(options.plan):
        if wanted is not None and step.name not in wanted:
            continue
        if any(each["step"] == step.name and each["said"] for each in kept):
            continue
        if time.perf_counter() - began > options.until:
            print(f"no time left for: {step.name}; run this again")
            break
        result = ran(step, options.out, options.wrap, options.limit)
        print(json.dumps(result), flush=True)
        kept = [*(each for each in kept if each["step"] != step.name), result]
        command = f"tools/live_sglang.py {options.plan} --out DIR" + (" -- " if options.wrap else "")
        speed = throughput(kept)
        body = {**circumstances(command + " ".join(options.wrap)), "steps": kept}
        body |= {"throughput": speed} if speed is not None else {}
        path.write_text(json.dumps(body, indent=1) + "\n")
        if not (options.out / "caches.txz").exists():
            save_caches(options.out / "caches.txz", HOME)
    speed = throughput(kept)
    if speed is not None:
        print(json.dumps({"throughput": speed}))
    return 0 if all(each["said"] for each in kept) else 1


if __name__ == "__main__":
    sys.exit(main())
