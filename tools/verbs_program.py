"""A draft worker with two bugs and its fixed twin, each leaving a dump: what ``docs/verbs.md`` looks at.

python tools/verbs_program.py buggy.dump, or fixed.dump
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")  # before the first import of Triton
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import shadowgraph as sg
from shadowgraph.demos.kernels import fill

STEPS, BATCH, TOPK = 3, 4, 2


class Draft:
    """Index buffers of a speculative worker. The buggy one sizes `kv_indices` without the factor `TOPK`, and lets its
    graph write `kv_indptr`, from which the host plans."""

    def __init__(self, debugger: sg.Debugger, fixed: bool) -> None:
        width = BATCH * (TOPK if fixed else 1)
        with debugger.guard():
            self.kv_indices = torch.zeros((STEPS, width), dtype=torch.int32)
            self.kv_indptr = torch.arange(BATCH + 1, dtype=torch.int32)
            self.scores = torch.ones((64, 512), dtype=torch.bfloat16)
        self.last_step = self.kv_indices[STEPS - 1]
        debugger.name("draft", self)
        debugger.protect(self.kv_indptr)
        self.graph = sg.HostGraph()
        with sg.host_graph(self.graph):
            self.total = self.kv_indices.sum(1)
            self.scaled = self.scores * 2
            if not fixed:
                self.kv_indptr[1:].mul_(TOPK)

    def step(self) -> None:
        """Prepare and replay."""
        fill[(1,)](self.kv_indices, 0, STEPS * BATCH * TOPK, 1, BLOCK=256)
        self.graph.replay()


def make_dumps(folder: Path) -> None:
    """Write ``buggy.dump`` and ``fixed.dump``, each from a process of its own, as before and after a fix."""
    for name in ("buggy", "fixed"):
        subprocess.run([sys.executable, __file__, str(folder / f"{name}.dump")], check=True)


def main(path: Path) -> None:
    """Run one of the two, as the file's name says."""
    logging.getLogger("shadowgraph").setLevel(logging.CRITICAL)  # here the dump says what was found
    with sg.debug() as debugger:
        draft = Draft(debugger, fixed=path.stem == "fixed")
        for _ in range(2):
            draft.step()
        debugger.dump(path)
        del draft


if __name__ == "__main__":
    main(Path(sys.argv[1]))
