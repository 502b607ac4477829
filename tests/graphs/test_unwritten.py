"""Arguments that a Triton kernel does not store through, read from real kernels' code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

import shadowgraph
from shadowgraph.model.kernel_code import KernelCode
from shadowgraph.model.launches import Access, Launch, LaunchKind, Pointer
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.writes import write_of

HEAD = "module {\n  tt.func public @k(%a: !tt.ptr<f32>, %n: i32, %b: !tt.ptr<f32>) attributes {noinline = false} {\n"
TAIL = "    tt.return\n  }\n}\n"


def test_real_kernels() -> None:
    pytest.importorskip("triton")
    program = Path(__file__).with_name("stored_kernels.py")
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = str(Path(shadowgraph.__file__).parents[1])
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, env=env, timeout=300)
    if "ptxas" in done.stderr or "is not supported" in done.stderr:
        pytest.skip("this Triton cannot compile without a GPU")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "loop": [False, False, True],
        "written_in_a_loop": [False, True, False],
        "atomics": [False, True, True],
        "choice": [True, False, True],
        "block_pointers": [False, False, True],
        "descriptors": [False, False, True],
        "product": [False, False, True],
        "addresses": None,
        "called": [False, False, True],
    }


def launch(*names: str) -> Launch:
    views = (TensorView(64 * (1 + k), 64 * (1 + k), 64, (16,), (1,), "float32", 4, "cuda:0") for k in range(len(names)))
    pointers = (Pointer(name, view, Access.UNKNOWN) for name, view in zip(names, views, strict=True))
    return Launch(LaunchKind.TRITON, "k", tuple(pointers))


def test_a_launch_and_its_writes() -> None:
    code = HEAD + "    %0 = tt.load %a : !tt.ptr<f32>\n    tt.store %b, %0 : !tt.ptr<f32>\n" + TAIL
    made = launch("keys", "cache")
    known = replace(made, code=KernelCode(lambda: {"ttir": code}, ("keys", "n", "cache")))
    assert [known.may_store(pointer) for pointer in known.pointers] == [False, True]
    assert [(part.start, part.stop) for part in write_of(known, None).ranges] == [(128, 192)]
    other = replace(made, code=KernelCode(lambda: {"ttir": code}, ("keys", "cache")))
    assert all(other.may_store(pointer) for pointer in other.pointers), "of another number of arguments"
    assert [(part.start, part.stop) for part in write_of(made, None).ranges] == [(64, 192)]
