"""Runs of a live server's engine on a GPU, plain and under `shadowgraph wrap`, each kept at once as evidence.

Here is what does not depend on the server: a step's command and surroundings, what it printed, what its run folder
holds, two engines that take turns, compiled caches, and the JSON file that a plan's results go into. Called by
`tools/live_sglang.py` and `tools/live_vllm.py`, which have the plans.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gpu_evidence import circumstances
from live_abba import Player, measured, play

ROOT = Path(__file__).resolve().parent.parent
HOME = Path.home()
PAIR = ("plain", "wrapped")


@dataclass(frozen=True)
class Server:
    """A server whose engine is run.

    Attributes
    ----------
    tool
        The program with its plans, by which messages and evidence name it.
    engine
        File of the engine program, beside this one.
    evidence
        What names of its evidence begin with.
    caches
        Folders below the home folder in which it keeps what it compiles.
    """

    tool: str
    engine: str
    evidence: str
    caches: tuple[Path, ...]


class Step(NamedTuple):
    """One run of the engine program, with its words, plain or wrapped."""

    name: str
    wrapped: bool
    words: tuple[str, ...]


def write_entry_points(folder: Path) -> None:
    """Let a server find its adapter where shadowgraph runs from its sources and is not installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [line for group, each in groups for line in (f"[{group}]", *(f"{n} = {v}" for n, v in each.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def command_of(server: Server, step: Step, models: Path, run: Path, options: list[str]) -> list[str]:
    """The engine program's command line, plain or wrapped with these options."""
    program = [sys.executable, str(ROOT / "tools" / server.engine), "--models", str(models), *step.words]
    if not step.wrapped:
        return program
    return [sys.executable, "-m", "shadowgraph", "wrap", "--run-dir", str(run), *options, "--", *program]


@contextmanager
def surroundings() -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder of their own for the programs of a step, and an environment in which the server finds its adapter."""
    with tempfile.TemporaryDirectory() as folder:
        entry = Path(folder, "entry")
        entry.mkdir()
        write_entry_points(entry)
        path = os.pathsep.join([str(ROOT), str(entry), os.environ.get("PYTHONPATH", "")])
        yield Path(folder), {**os.environ, "PYTHONPATH": path}


def run_folder(step: Step, out: Path) -> Path:
    """A new one for each run of a step."""
    return out / f"run-{step.name.replace(' ', '-')}-{time.time_ns()}"


def log_of(step: Step, out: Path) -> Path:
    """What the step printed last time."""
    return out / f"{step.name.replace(' ', '-')}.log"


def ran(server: Server, step: Step, out: Path, options: list[str], limit: float) -> dict[str, Any]:
    """Run one step: what the program printed, how long it took, and what the run folder holds."""
    with surroundings() as (folder, environment):
        run = run_folder(step, out)
        command = command_of(server, step, folder / "models", run, options)
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
    said, part, quiet, planted = (latest(lines, word) for word in ("LIVE ", "PART ", "QUIET ", "PLANTED "))
    found = {"step": step.name, "words": list(step.words), "code": code, "wall_s": round(wall, 1), "said": said}
    found |= {"until_then": part} if said is None else {}
    found |= {"quiet": quiet} if quiet is not None else {}
    found |= {"planted": planted} if planted is not None else {}
    return {**found, **(summary(run) if step.wrapped else {})}


def took_turns(
    server: Server, steps: list[Step], out: Path, options: list[str], limit: float, blocks: int, warm: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Two engines that start at the same time and then take turns: what each said, and the tokens a second."""
    runs = [run_folder(step, out) for step in steps]
    with surroundings() as (folder, environment), ExitStack() as stack:
        plain, wrapped = players = [
            stack.enter_context(
                Player(
                    command_of(server, step, folder / "models", run, options),
                    environment,
                    folder,
                    log_of(step, out),
                    limit,
                )
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
        "faults": report.get("faults"),
        "told": [line for each in report["run"]["processes"] for line in each.get("events", ()) if "adapter" in line],
        "last_checks": [each["last_check"] for each in report["run"]["processes"] if each.get("last_check")],
    }


def places(finding: dict[str, Any]) -> dict[str, Any]:
    """The buffer, the line that did it, and the lines that let go of a buffer or made what is in its place."""
    culprit, buffer, detail = (finding.get(key) or {} for key in ("culprit", "buffer", "detail"))
    kept = {
        "buffer": {key: buffer.get(key) for key in ("name", "dtype", "shape", "nbytes")},
        "culprit": {
            "name": culprit.get("name"),
            "status": culprit.get("status"),
            "line": line_of(culprit.get("stack")),
        },
    }
    stacks = {"freed_by": detail.get("freed_by")}
    stacks |= {key: (detail.get(key) or {}).get("allocated") for key in ("replaced_by", "now")}
    others = {key: line_of(stack) for key, stack in stacks.items() if stack}
    return {**kept, **({"lines": others} if others else {})}


def line_of(stack: list[dict[str, Any]] | None) -> str | None:
    """The innermost line of a stack: file, as this project or the import path has it, and number."""
    if not stack:
        return None
    file = Path(stack[0]["file"])
    bases = [ROOT] if file.is_relative_to(ROOT) else [base for base in map(Path, sys.path) if file.is_relative_to(base)]
    inside = [file.relative_to(base).parts for base in bases]
    shown = min(inside, key=len) if inside else file.parts[-4:]
    return f"{'/'.join(shown)}:{stack[0]['line']}"


def save_caches(path: Path, home: Path, folders: Iterable[Path]) -> None:
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


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that the programs of all servers have."""
    parser.add_argument("--out", type=Path, required=True, help="folder for results, logs, run folders and caches")
    parser.add_argument("--caches", type=Path, help="caches.txz of an earlier run")
    parser.add_argument("--steps", help="only these of the plan's steps, such as plain,wrapped")
    parser.add_argument("--blocks", type=int, default=24, help="of engines in turn: plain, wrapped, wrapped, plain")
    parser.add_argument("--together", action="store_true", help="run the steps at the same time, on one GPU")
    parser.add_argument("--until", type=float, default=3600, help="begin no step after this many seconds")
    parser.add_argument("--limit", type=float, default=420, help="end a step after this many seconds")
    parser.add_argument("wrap", nargs="*", help="options for `shadowgraph wrap`, after --")


def parsed(parser: argparse.ArgumentParser, told: list[str]) -> argparse.Namespace:
    """What was asked for; `wrap` is what stands behind ``--``."""
    own = told.index("--") if "--" in told else len(told)  # argparse wants positional arguments side by side
    options = parser.parse_args(told[:own])
    if options.wrap:
        parser.error(f"what is {' '.join(options.wrap)}? Options for `shadowgraph wrap` come after --")
    options.wrap = told[own + 1 :]
    return options


def begin(options: argparse.Namespace) -> None:
    """Make the folder for results, put caches back, and let no engine stay behind where this program is ended."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.out.mkdir(parents=True, exist_ok=True)
    if options.caches is not None:
        restore_caches(options.caches, HOME)


class Evidence:
    """The JSON file of a plan, which is written anew with each result.

    Results that it holds already count where they are of the same command, source, card and packages.

    Parameters
    ----------
    server
        Whose plan it is.
    options
        As `parsed` gives them, with `plan`.
    words
        Options that change what is run, for the command in the file.
    """

    def __init__(self, server: Server, options: argparse.Namespace, *words: str) -> None:
        wrap = ["--", *options.wrap] if options.wrap else []
        self._server, self._out = server, options.out
        self._about = circumstances(" ".join([f"tools/{server.tool}.py", options.plan, "--out DIR", *words, *wrap]))
        self.path = options.out / f"{server.evidence}_{options.plan}.json"
        before = json.loads(self.path.read_text()) if self.path.exists() else {}
        different = [key for key, value in self._about.items() if key != "date" and before.get(key) != value]
        if before and different:
            print(f"{self.path.name} is of another {', '.join(different)}; begun anew", flush=True)
        self.results: dict[str, Any] = {} if different else {k: v for k, v in before.items() if k not in self._about}

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The steps that are over, in the order in which they ended."""
        found: list[dict[str, Any]] = self.results.get("steps", [])
        return found

    def keep_step(self, result: dict[str, Any], caches: bool = True) -> None:
        """Add a step, in place of an earlier run of it."""
        steps = [*(each for each in self.steps if each["step"] != result["step"]), result]
        self.keep({"steps": steps}, caches)

    def keep(self, more: dict[str, Any], caches: bool = True) -> None:
        """Write the file with these results; with the first ones keep what was compiled, unless others compile yet."""
        self.results |= more
        self.path.write_text(json.dumps({**self._about, **self.results}, indent=1) + "\n")
        saved = self._out / "caches.txz"
        if caches and not saved.exists():
            save_caches(saved, HOME, [HOME / folder for folder in self._server.caches])


def results(server: Server, options: argparse.Namespace, steps: list[Step]) -> Iterator[dict[str, Any]]:
    """What each step gave, as it comes."""
    if options.together:
        with ThreadPoolExecutor(len(steps) or 1) as pool:
            running = [pool.submit(ran, server, step, options.out, options.wrap, options.limit) for step in steps]
            for done in as_completed(running):
                yield done.result()
        return
    began = time.perf_counter()
    for step in steps:
        if time.perf_counter() - began > options.until:
            print(f"no time left for: {step.name}; run this again")
            return
        yield ran(server, step, options.out, options.wrap, options.limit)
