"""A child process that runs programs one after the other and writes a line when each begins, goes on, and has ended.

A program may take its process down: the parent reads from the lines which one it was.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from corpus.judging import Judged
from corpus.running import said
from corpus.sources import make, source_of

MOST_KEPT = 4 << 30  # bytes of the device that are kept from program to program


def prepare_process(backend: str) -> None:
    """Settings that every run of a program has."""
    torch.set_num_threads(1)
    if backend == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.cuda.init()
        return

    def manual_seed(seed: int) -> torch.Generator:
        return torch.default_generator.manual_seed(int(seed))

    # torch's own queues one more call, with its stack, for devices that are not there
    torch.manual_seed = torch.random.manual_seed = manual_seed


def judged(pid: str, backend: str, variants: list[str], planted: bool, mark: Any) -> dict[str, Any]:
    """The result of one program; what it prints is dropped."""
    if backend == "host" and source_of(pid) == "vision":
        variants = [variant for variant in variants if variant != "locate"]  # it takes minutes there
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            made = make(pid)
            judging = Judged(pid, made.program, backend, made.eager_ok, mark)
            return judging.planted(variants) if planted else judging.clean(variants)
        except Exception as error:
            trace = traceback.format_exc()[-2000:]
            return {"id": pid, "status": "harness", "problems": ["harness"], "reason": said(error), "trace": trace}


class Worker:
    """Runs the ids of an order, as `corpus.driver.Job` writes it."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self._sink = open(order["out"], "a", buffering=1)  # noqa: SIM115 - until the process ends

    def say(self, **what: Any) -> None:
        """A line for the parent."""
        self._sink.write(json.dumps(what) + "\n")

    def run(self) -> None:
        """All ids, or as many as time and a healthy device allow. Ends the process."""
        order, parent = self.order, os.getppid()
        prepare_process(order["backend"])
        gc.collect()
        gc.freeze()
        self.say(event="ready")
        for pid in order["ids"]:
            if time.time() > order["until"] or os.getppid() != parent:
                break
            self.say(event="begin", id=pid)
            result = judged(pid, order["backend"], order["variants"], order["planted"], self._mark)
            self.say(event="result", **result)
            del result
            gc.collect()
            if order["backend"] == "cuda" and not _fit_to_go_on():
                break
        self._sink.close()
        os._exit(0)  # a device that is gone, or threads that programs left, must not keep it

    def _mark(self, stage: str) -> None:
        self.say(event="stage", stage=stage)


def _fit_to_go_on() -> bool:
    """Whether this process's CUDA context still works, captures and random numbers included."""
    try:
        torch.cuda.synchronize()
        ones = torch.ones(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            twos = ones * 2 + torch.rand(4, device="cuda") * 0
        graph.replay()
        torch.cuda.synchronize()
        if torch.cuda.memory_reserved() > MOST_KEPT:
            torch.cuda.empty_cache()
        return bool((twos == 2).all())
    except RuntimeError:
        return False


def main(order: str) -> None:
    """Run the order in a file."""
    sys.stdout.flush()
    Worker(json.loads(Path(order).read_text())).run()
