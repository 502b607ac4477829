"""Functions with streams and events among their variables capture, and end: nothing of ours refers to these afterwards,
which torch before 2.13 would turn into a write to freed memory."""

from __future__ import annotations

import subprocess
import sys
import weakref

import pytest
import torch

import shadowgraph as sg

pytestmark = pytest.mark.gpu

PROGRAM = """
import gc
import torch
import shadowgraph as sg

kept = []

def step(x):
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        y = x * 2
    graph.replay()
    event.record()
    torch.cuda.synchronize()
    assert y.sum().item() == 128

for _ in range(20):
    with sg.debug(backend="cuda") as debugger:
        with debugger.guard():
            x = torch.ones(64, device="cuda")
        for _ in range(3):
            step(x)
            kept.append([b"\\xff" * size for size in range(16, 300, 8)])  # takes the memory of what has ended
        assert debugger.findings == () and debugger.facts().faults == {}
    gc.collect()
print("survived")
"""


def test_a_process_survives_their_end() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-3000:]}"
    assert done.stdout.split() == ["survived"]


def test_they_are_not_referred_to() -> None:
    with sg.debug(backend="cuda") as debugger:
        with debugger.guard():
            x = torch.ones(64, device="cuda")
        side, event = torch.cuda.Stream(), torch.cuda.Event()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
        graph.replay()
        assert [weakref.getweakrefcount(each) for each in (side, event)] == [0, 0]
        assert y.sum().item() == 128
