"""Wrapped programs in which the debugger, or our hook for torch, starts in the middle of another module's import."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.flashinfer_site import install, lay, path
from support.wrapping import PROGRAMS, wrap

WORK = "import sys, torch\ntorch.zeros(1)\nassert 'flashinfer.decode' not in sys.modules\n"
HERE = "assert 'shadowgraph.debugger' in sys.modules\n"
BEGIN = {
    "torch first": "import torch\n",
    "flashinfer first": "import sys\nassert 'torch' not in sys.modules\nimport flashinfer\n",
    "in a thread": (
        "import threading\nthread = threading.Thread(target=__import__, args=('flashinfer',))\n"
        "thread.start(); thread.join()\n"
    ),
}


@pytest.mark.parametrize(
    "order", ["torch first", *(pytest.param(each, marks=pytest.mark.slow) for each in list(BEGIN)[1:])]
)
def test_flashinfers_own_import_starts_the_debugger(tmp_path: Path, order: str) -> None:
    site = lay(tmp_path, WORK + HERE, whole=True)
    install(site, "0.6.12")
    code = f"{BEGIN[order]}import runpy, sys\nsys.argv = ['planning.py', 'crash']\n"
    code += f"runpy.run_path({str(PROGRAMS / 'planning.py')!r}, run_name='__main__')"
    wrapped = wrap(tmp_path, sys.executable, "-c", code, env=path(site), warm=False)
    assert wrapped.code == 1, wrapped.err
    (process,) = wrapped.run.processes
    assert process.backend == "host"
    assert "the flashinfer adapter" not in wrapped.err
    (failure,) = wrapped.run.merged().failures
    assert failure.plan is not None, "the planner of the wrapper was watched"
    assert (failure.plan.broken, failure.plan.replay) == ((3,), 2)
    assert len({writer.graph for writer in failure.plan.writers}) == 2, "both captures were heard of"
    assert not wrapped.run.merged().faults


@pytest.mark.slow
def test_what_is_really_not_there_is_still_said(tmp_path: Path) -> None:
    site = lay(tmp_path, WORK + HERE)
    install(site, "0.6.12")
    wrapped = wrap(tmp_path, sys.executable, "-c", "import torch, flashinfer; torch.ones(1)", env=path(site))
    assert wrapped.code == 0, wrapped.err
    lacking = [line for line in wrapped.err.splitlines() if "the flashinfer adapter does without" in line]
    assert len(lacking) == 4
    assert not [line for line in lacking if "BatchDecodeWithPagedKVCacheWrapper" in line]


TRITON = """
import sys, torch
sys.setswitchinterval(1e-4)

class Halfway:
    "Starts the debugger when triton's first submodule is looked for."
    def find_spec(self, name, path=None, target=None):
        if name.startswith("triton."):
            sys.meta_path.remove(self)
            assert sys.modules["triton"].__spec__._initializing
            torch.zeros(1)
            assert "shadowgraph.debugger" in sys.modules
            assert "triton.runtime" not in sys.modules, "the order of imports is the program's"

sys.meta_path.insert(0, Halfway())
import triton
from overrun_triton import run
run()
"""
OVERRUN = """
import torch, triton, triton.language as tl
import shadowgraph as sg

@triton.jit
def kernel(out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, at, mask=at < n)

def run():
    out = torch.zeros(8, dtype=torch.int32)
    kernel[(1,)](out, 10, BLOCK=16)
"""


def test_triton_whose_import_starts_the_debugger_is_hooked_once_it_is_complete(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    (tmp_path / "overrun_triton.py").write_text(OVERRUN)
    env = path(tmp_path)
    wrapped = wrap(tmp_path, sys.executable, "-c", TRITON, env=env, options=("--guard-eager", "auto"), warm=False)
    assert "Error" not in wrapped.err, wrapped.err
    (finding,) = wrapped.run.merged().findings
    assert finding.past_end == 8
    assert finding.culprit is not None
    assert finding.culprit.name == "kernel", "its stores were noted"
