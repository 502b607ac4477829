"""Runs programs in child processes, several at a time; a process that dies costs one program."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus.sources import source_of

TOOL = Path(__file__).resolve().parent.parent / "clean_programs.py"
ROOT = TOOL.parent.parent
STARTING = 120  # s that a worker may take to import what it needs
MOST_DEATHS = 40  # of workers that never got ready
Result = dict[str, Any]


@dataclass(frozen=True)
class Order:
    """How programs are run.

    Attributes
    ----------
    limit
        Seconds after which no program is begun any more, 0 for none.
    patience
        Seconds that one stage of a program may take.
    """

    backend: str
    variants: tuple[str, ...]
    planted: bool
    workers: int
    batch: int
    limit: float
    patience: float


def paths() -> list[str]:
    """Where children import from: shadowgraph of PYTHONPATH where that has one, else of this checkout."""
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return list(dict.fromkeys([str(TOOL.parent), *given, str(ROOT)]))


def environment(backend: str) -> dict[str, str]:
    """What children run in."""
    made = {
        **os.environ, "PYTHONPATH": os.pathsep.join(paths()), "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1",
        "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    if backend == "host":
        made["TRITON_INTERPRET"] = "1"
    else:
        made.pop("TRITON_INTERPRET", None)
        made.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        made.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return made


class Job:
    """One worker process and what it has said."""

    def __init__(self, order: Order, ids: list[str], folder: Path, number: int, until: float) -> None:
        self.ids = ids
        self._said, self._log = folder / f"job{number}.jsonl", folder / f"job{number}.log"
        orders = folder / f"job{number}.json"
        self._said.write_text("")
        told = {"backend": order.backend, "variants": order.variants, "planted": order.planted, "ids": ids}
        orders.write_text(json.dumps({**told, "until": until, "out": str(self._said)}))
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(TOOL), "work", str(orders)], stdout=log, stderr=log,
                env=environment(order.backend), start_new_session=True,
            )  # fmt: skip
        self._patience = order.patience
        self._offset, self._part = 0, ""
        self._moved = time.time()
        self.done: set[str] = set()
        self.current: str | None = None
        self.stage = ""
        self.ready = False

    def news(self) -> list[Result]:
        """Results since the last time."""
        with open(self._said) as file:
            file.seek(self._offset)
            *lines, self._part = (self._part + file.read()).split("\n")
            self._offset = file.tell()
        results = []
        for line in lines:
            self._moved = time.time()
            said = json.loads(line)
            event = said.pop("event")
            if event == "result":
                results.append(said)
                self.done.add(said["id"])
                self.current = None
            elif event == "begin":
                self.current, self.stage = said["id"], "before"
            elif event == "stage":
                self.stage = said["stage"]
            else:
                self.ready = True
        return results

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def stuck(self) -> bool:
        """Whether it has said nothing for longer than a program, or its start, may take."""
        return time.time() - self._moved > (self._patience if self.ready else STARTING)

    @property
    def left(self) -> list[str]:
        return [pid for pid in self.ids if pid not in self.done]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait()

    def death(self, was_stuck: bool) -> Result | None:
        """The result of the program that it died in; a death while watched is shadowgraph's."""
        if self.current is None or self.current in self.done:
            return None
        code = self._process.returncode
        what = f"no answer in {self._patience:g} s" if was_stuck else f"worker ended with {code}"
        ours = self.stage.startswith("watched")
        return {
            "id": self.current,
            "status": "crash" if ours else "skipped",
            "problems": ["crash"] if ours else [],
            "reason": f"{what} in stage {self.stage}",
            "trace": self.tail(),
        }

    def tail(self) -> str:
        return self._log.read_text(errors="replace")[-1500:]


class Driver:
    """Gives batches of ids to workers.

    Parameters
    ----------
    keep
        Takes each result as it comes.
    """

    def __init__(self, order: Order, folder: Path, keep: Callable[[Result], None]) -> None:
        self._order, self._folder, self._keep = order, folder, keep
        self._until = time.time() + order.limit if order.limit else time.time() + 10**9
        self._running: list[Job] = []
        self._number = self._deaths = 0

    def run(self, ids: Iterable[str]) -> None:
        """All ids, or as many as time allows."""
        batches = batches_of(ids, self._order.batch)
        while (batches or self._running) and time.time() < self._until + 5:
            while batches and len(self._running) < self._order.workers and time.time() < self._until:
                self._number += 1
                job = Job(self._order, batches.pop(0), self._folder, self._number, self._until)
                self._running.append(job)
            time.sleep(0.1)
            for job in tuple(self._running):
                rest = self._look(job)
                if rest and time.time() < self._until:
                    batches.insert(0, rest)
        for job in self._running:  # time is up
            job.kill()
            self._take(job)

    def _take(self, job: Job) -> None:
        for result in job.news():
            self._keep(result)

    def _look(self, job: Job) -> list[str]:
        """Take what a job has; the ids that another one must take over where it has ended."""
        self._take(job)
        ended, stuck = job.ended, job.stuck
        if not (ended or stuck):
            return []
        if not ended:
            job.kill()
        self._take(job)
        self._running.remove(job)
        died_in = job.death(stuck and not ended)
        if died_in is not None:
            self._keep(died_in)
            job.done.add(died_in["id"])
        elif not job.ready:
            self._deaths += 1
            print(f"  a worker did not start: {job.tail()[-500:]}", flush=True)
        return job.left if self._deaths < MOST_DEATHS else []


def batches_of(ids: Iterable[str], size: int) -> list[list[str]]:
    """Batches of one source each, since imports differ, the sources in turn: a run cut short has something of all."""
    by_source: dict[str, list[str]] = collections.defaultdict(list)
    for pid in ids:
        by_source[source_of(pid)].append(pid)
    queues = []
    for those in by_source.values():
        random.Random(1).shuffle(those)
        queues.append([those[at : at + size] for at in range(0, len(those), size)])
    batches = []
    while any(queues):
        batches += [queue.pop(0) for queue in sorted(queues, key=len, reverse=True) if queue]
    return batches
