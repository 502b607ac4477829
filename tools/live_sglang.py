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
  late        flashinfer and EAGLE: 400 short requests, then a batch longer than all before, twice: plain, wrapped, and
              wrapped with the scheduler killed after the first long batch, and with an illegal access there
  small       tokens a second at a fixed batch, tiny model: a plain engine and a wrapped one take turns
  large       the same with about 1.5 billion parameters
  speculative the same with the tiny model and EAGLE
  piecewise   the same with the tiny model and piecewise graphs, which sglang has on by default, for prompts
  two         eagle on two GPUs (TP=2), plain, wrapped
  soak        EAGLE with mixed batches for `--minutes`, wrapped: whether memory of any process grows (`soak_wrap.py`)
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from gpu_evidence import circumstances
from live_abba import EndedError, Player, measured, play

ROOT = Path(__file__).resolve().parent.parent
HOME = Path.home()
CACHES = (HOME / ".cache" / "flashinfer", HOME / ".cache" / "tvm-ffi", HOME / ".triton")
EAGLE = ("--eagle", "--attention", "flashinfer")
FEW = ("--tokens", "24")
TRITON = ("--eagle", "--attention", "triton", "--kv-tokens", "32768")
MANY = (*EAGLE, "--requests", "200", "--tokens", "24", "--kv-tokens", "32768")
TIMED = ("--requests", "2", "--tokens", "448", "--context", "1024", "--batch", "8", "--kv-tokens", "32768", "--told")
# 400 short requests, then twice a batch that is longer than all before it.
LATE = (*EAGLE, "--quiet", "400", "--requests", "2", "--tokens", "8", "--kv-tokens", "32768")
# Texts that are short for the context, so that 0.5.12.post1 survives, and prompts are a good part of a round.
SHORT = ("--requests", "2", "--kv-tokens", "32768", "--told")
TURNS = {
    "small": TIMED,
    "large": (*TIMED, "--large"),
    "speculative": (*EAGLE, *SHORT, "--tokens", "24", "--context", "2048"),
    "piecewise": (*SHORT, "--tokens", "8", "--batch", "8", "--context", "1024", "--piecewise"),
}
WARM = {"small": 6, "large": 6, "speculative": 60, "piecewise": 130}  # rounds until few steps are observed any more
PAIR = ("plain", "wrapped")
ON = (*EAGLE, "--on", "--tokens", "24", "--context", "2048", "--kv-tokens", "32768")


class Step(NamedTuple):
    name: str
    wrapped: bool
    words: tuple[str, ...]


def steps_of(plan: str) -> list[Step]:
    """What a plan runs, in order."""
    return {
        "eagle": [Step("plain", False, (*EAGLE, *FEW)), Step("wrapped", True, (*EAGLE, *FEW))],
        "longer": [Step("plain", False, EAGLE), Step("wrapped", True, EAGLE)],
        "triton": [Step("plain", False, TRITON), Step("wrapped", True, TRITON)],
        "many": [Step("plain", False, MANY), Step("wrapped", True, MANY), Step("plain again", False, MANY)],
        "late": [
            Step("plain", False, LATE),
            Step("wrapped", True, LATE),
            Step("killed", True, (*LATE, "--kill")),
            Step("faulted", True, (*LATE, "--fault")),
        ],
        "two": [Step(name, name == "wrapped", (*EAGLE, *FEW, "--tp", "2")) for name in PAIR],
        **{turns: [Step(name, name == "wrapped", words) for name in PAIR] for turns, words in TURNS.items()},
    }[plan]


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


@contextmanager
def surroundings() -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder of their own for the programs of a step, and an environment in which sglang finds the adapter."""
    with tempfile.TemporaryDirectory() as folder:
        entry = Path(folder, "entry")
        entry.mkdir()
        write_entry_points(entry)
        path = os.pathsep.join([str(ROOT), str(entry), os.environ.get("PYTHONPATH", "")])
        yield Path(folder), {**os.environ, "PYTHONPATH": path}


def run_folder(step: Step, out: Path) -> Path:
    return out / f"run-{step.name.replace(' ', '-')}-{time.time_ns()}"


def log_of(step: Step, out: Path) -> Path:
    return out / f"{step.name.replace(' ', '-')}.log"


def ran(step: Step, out: Path, options: list[str], limit: float) -> dict[str, Any]:
    """Run one step: what the program printed, how long it took, and what the run folder holds."""
    with surroundings() as (folder, environment):
        run = run_folder(step, out)
        command = command_of(step, folder / "models", run, options)
        began = time.perf_counter()
        with log_of(step, out).open("w") as log:
            program = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, process_group=0)
            try:
                code: int | str = program.wait(limit)
            except subprocess.TimeoutExpired:
                code = f"ended after {limit:.0f} s"
            with suppress(ProcessLookupError):  # the engine's own processes must not stay on the GPU
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
        wall = time.perf_counter() - began
    lines = log_of(step, out).read_text(errors="replace").splitlines()
    said, part, quiet = (latest(lines, word) for word in ("LIVE ", "PART ", "QUIET "))
    found = {"step": step.name, "words": list(step.words), "code": code, "wall_s": round(wall, 1), "said": said}
    found |= {"until_then": part} if said is None else {}
    found |= {"quiet": quiet} if quiet is not None else {}
    return {**found, **(summary(run) if step.wrapped else {})}


def soaked(out: Path, minutes: float) -> dict[str, Any]:
    """A wrapped engine that serves for so long: what its memory did, and the requests."""
    with surroundings() as (folder, environment):
        program = [sys.executable, str(ROOT / "tools" / "live_engine.py"), "--models", str(folder / "models"), *ON]
        words = [sys.executable, str(ROOT / "tools" / "soak_wrap.py"), "--minutes", str(minutes), "--json", "soak.json"]
        with (out / "soak.log").open("w") as log:
            subprocess.run([*words, "--", *program], cwd=folder, env=environment, stdout=log, stderr=log, check=False)
        found: dict[str, Any] = json.loads((folder / "soak.json").read_text())
    served = latest((out / "soak.log").read_text(errors="replace").splitlines(), "SERVED ")
    return {**found, "command": " ".join(["tools/live_engine.py", *ON]), **(served or {})}


def took_turns(
    steps: list[Step], out: Path, options: list[str], limit: float, blocks: int, warm: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Two engines that start at the same time and then take turns: what each said, and the tokens a second."""
    runs = [run_folder(step, out) for step in steps]
    with surroundings() as (folder, environment), ExitStack() as stack:
        plain, wrapped = players = [
            stack.enter_context(
                Player(command_of(step, folder / "models", run, options), environment, folder, log_of(step, out), limit)
            )
            for step, run in zip(steps, runs, strict=True)
        ]
        for player in players:
            player.heard("UP ")
        print("both are up", flush=True)
        played, same = play(plain, wrapped, blocks, warm)
        ended = [player.end() for player in players]
    kept = [
        {"step": step.name, "words": list(step.words), "code": code, "wall_s": wall, "said": said}
        | (summary(run) if step.wrapped else {})
        for step, run, (said, code, wall) in zip(steps, runs, ended, strict=True)
    ]
    return kept, {**measured(played), "same_tokens": same, "rounds": [list(block) for block in played]}


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
        "replays": report.get("replays"),
        "last_checks": [each["last_check"] for each in report["run"]["processes"] if each.get("last_check")],
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


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", choices=("eagle", "longer", "triton", "many", "late", *TURNS, "two", "soak"))
    parser.add_argument("--out", type=Path, required=True, help="folder for results, logs, run folders and caches")
    parser.add_argument("--caches", type=Path, help="caches.txz of an earlier run")
    parser.add_argument("--steps", help="only these of the plan's steps, such as plain,wrapped")
    parser.add_argument("--together", action="store_true", help="run the steps at the same time, on one GPU")
    parser.add_argument("--blocks", type=int, default=24, help="of engines in turn: plain, wrapped, wrapped, plain")
    parser.add_argument("--minutes", type=float, default=8, help="of the soak (default: %(default)s)")
    parser.add_argument("--until", type=float, default=3600, help="begin no step after this many seconds")
    parser.add_argument("--limit", type=float, default=420, help="end a step after this many seconds")
    parser.add_argument("wrap", nargs="*", help="options for `shadowgraph wrap`, after --")
    told = sys.argv[1:]
    own = told.index("--") if "--" in told else len(told)  # argparse wants positional arguments side by side
    options = parser.parse_args(told[:own])
    if options.wrap:
        parser.error(f"what is {' '.join(options.wrap)}? Options for `shadowgraph wrap` come after --")
    options.wrap = told[own + 1 :]
    return options


def results(options: argparse.Namespace, steps: list[Step]) -> Iterator[dict[str, Any]]:
    """What each step gave, as it comes."""
    if options.together:
        with ThreadPoolExecutor(len(steps)) as pool:
            running = [pool.submit(ran, step, options.out, options.wrap, options.limit) for step in steps]
            for done in as_completed(running):
                yield done.result()
        return
    began = time.perf_counter()
    for step in steps:
        if time.perf_counter() - began > options.until:
            print(f"no time left for: {step.name}; run this again")
            return
        yield ran(step, options.out, options.wrap, options.limit)


def main() -> int:
    options = read_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # no engine stays behind, stopped
    options.out.mkdir(parents=True, exist_ok=True)
    if options.caches is not None:
        restore_caches(options.caches, HOME)
    path = options.out / f"live_{options.plan}.json"
    together, wrap = ["--together"] if options.together else [], ["--", *options.wrap] if options.wrap else []
    command = " ".join(["tools/live_sglang.py", options.plan, "--out DIR", *together, *wrap])

    def keep(steps: list[dict[str, Any]], **more: Any) -> None:
        path.write_text(json.dumps({**circumstances(command), "steps": steps, **more}, indent=1) + "\n")
        if not options.together and not (options.out / "caches.txz").exists():  # else others compile still
            save_caches(options.out / "caches.txz", HOME)

    if options.plan == "soak":
        path.write_text(json.dumps({**circumstances(command), **soaked(options.out, options.minutes)}, indent=1) + "\n")
        return 0
    if options.plan in TURNS:
        try:
            steps, warm = steps_of(options.plan), WARM[options.plan]
            kept, speed = took_turns(steps, options.out, options.wrap, options.limit, options.blocks, warm)
        except EndedError as error:
            print(f"live_sglang: {error}", file=sys.stderr)
            return 1
        keep(kept, throughput=speed)
        print(json.dumps(speed))
        return 0 if all(each["code"] == 0 for each in kept) else 1
    kept = json.loads(path.read_text())["steps"] if path.exists() else []
    over = {each["step"] for each in kept if each["said"]}
    wanted = options.steps.split(",") if options.steps else None
    steps = [s for s in steps_of(options.plan) if s.name not in over and (wanted is None or s.name in wanted)]
    for result in results(options, steps):
        print(json.dumps(result), flush=True)
        kept = [*(each for each in kept if each["step"] != result["step"]), result]
        keep(kept)
    return 0 if all(each["said"] for each in kept) else 1


if __name__ == "__main__":
    sys.exit(main())
