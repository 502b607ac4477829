"""`wrap --operators`: the program goes on without a compiler, and the report says so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.compiled_observer import cache_with_the_library
from support.wrapping import environment, wrap

PROGRAM = """
import torch
import shadowgraph as sg
x = torch.zeros(8)
graph = sg.HostGraph()
with sg.host_graph(graph):
    x.add_(1)
graph.replay()
from shadowgraph.graphs.observer.observer import observer
observer.wait(60)
x.add_(1)
print(observer.active, observer.latest_sequence() > 0)
"""


@pytest.mark.parametrize("has_compiler", [True, False])
def test_with_and_without_a_compiler(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, has_compiler: bool
) -> None:
    cache = cache_with_the_library(tmp_path_factory) if has_compiler else tmp_path
    env = environment(XDG_CACHE_HOME=str(cache))
    env.pop("CXX", None)
    if not has_compiler:
        env["PATH"] = str(tmp_path)
    done = wrap(tmp_path, sys.executable, "-c", PROGRAM, options=("--operators", "observer"), env=env)
    assert (done.code, done.out) == (0, f"{has_compiler} {has_compiler}\n")
    said = " ".join(done.err.split())
    assert ("no observer in C++ (no C++ compiler was found (g++, c++, clang++))" in said) is not has_compiler


@pytest.mark.parametrize("choice", ["observer", "mode"])
def test_the_variable_goes_before_the_default_of_wrap(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, choice: str
) -> None:
    env = environment(SHADOWGRAPH_OPERATORS=choice, XDG_CACHE_HOME=str(cache_with_the_library(tmp_path_factory)))
    done = wrap(tmp_path, sys.executable, "-c", PROGRAM, env=env)
    is_on = choice == "observer"
    assert (done.code, done.out) == (0, f"{is_on} {is_on}\n")
    assert "observer" not in done.err
