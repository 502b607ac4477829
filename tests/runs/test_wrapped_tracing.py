"""Programs that trace, or that torch computes otherwise under a mode, say the same wrapped as plainly."""

from __future__ import annotations

import sys
from pathlib import Path

from support import warm
from support.wrapping import environment, wrap

from shadowgraph.graphs.dispatch.stepping_aside import TRACED

PROGRAM = """
import hashlib, threading, torch

def shown(*tensors):
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()[:16]

def work():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.LazyConv2d(2, 3).to("cpu"), torch.nn.BatchNorm2d(2), torch.nn.MaxPool2d(2))
    x = torch.linspace(0, 1, 64).view(1, 1, 8, 8)
    net(x)
    traced = torch.jit.trace(net.eval(), x)
    p = torch.randn(5, 5).abs().requires_grad_()
    out = torch.zeros((), dtype=torch.int64)
    torch.linalg.matrix_rank(torch.eye(5), out=out)
    print(shown(traced(x), traced(x), torch.linalg.svdvals(p.detach()), torch.autograd.grad(p.prod(), p)[0], out))

torch.zeros(1) + 1
work()
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def test_the_same_bits_in_every_thread(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM]
    plain = warm.run(command, environment(), tmp_path)
    assert plain.returncode == 0, plain.stderr
    assert len(plain.stdout.splitlines()) == 2
    done = wrap(tmp_path, *command)
    assert (done.code, done.out) == (0, plain.stdout), done.err
    facts = done.run.merged()
    assert (facts.findings, facts.faults) == ((), {})
    assert facts.stepped_aside == {TRACED: 4}, "each trace is checked by a second one"
