"""Runs `shadowgraph wrap` as a user does, in processes of its own."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from shadowgraph.wrap.folder.reader import Run, read_run
from support import warm as warm_python

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "runs" / "programs"


@dataclass
class Wrapped:
    """What a wrapped command did."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def run(self) -> Run:
        return read_run(self.folder)


def environment(**more: str) -> dict[str, str]:
    """Ours without what would reach into a wrapped program from this test run; the package is on the path."""
    own = {name: text for name, text in os.environ.items() if not name.startswith(("SHADOWGRAPH_", "PYTEST_"))}
    return {**own, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1", **more}


def wrap_words(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "shadowgraph", "wrap", "--run-dir", str(folder), *options, "--"]


def wrap(
    folder: Path,
    *command: str,
    options: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    warm: bool = True,
) -> Wrapped:
    """Wrap a command; its run folder is ``folder / "run"`` unless the options name another. `warm` as for `warm.run`:
    both the process that wraps and the one that is wrapped."""
    run = folder / "run"
    words = [*wrap_words(run, *options), *command]
    done = warm_python.run(words, environment() if env is None else env, cwd or folder, warm=warm)
    return Wrapped(done.returncode, done.stdout, done.stderr, run)


def program(name: str, *arguments: str) -> list[str]:
    """The command that runs one of our programs."""
    return [sys.executable, str(PROGRAMS / name), *arguments]
