"""SG116 with the real torch_memory_saver, where it is installed: other physical memory at the same addresses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers_cuda import captured, only, warm_kernels

import shadowgraph as sg

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def saver() -> Any:
    package = pytest.importorskip("torch_memory_saver")
    made = package.torch_memory_saver
    made.hook_mode = "torch"  # the other mode needs LD_PRELOAD
    warm_kernels()
    return made


def table_in(saver: Any, tag: str, backup: bool = False) -> torch.Tensor:
    with saver.region(tag=tag, enable_cpu_backup=backup):
        return torch.arange(1.0, 65.0, device="cuda")


def cycle(saver: Any, tag: str) -> None:
    torch.cuda.synchronize()
    saver.pause(tag)
    saver.resume(tag)


@pytest.mark.parametrize("restored", [False, True], ids=["buggy", "fixed"])
def test_a_table_that_was_not_made_again(saver: Any, restored: bool) -> None:
    tag = f"weights {restored}"
    with sg.debug(backend="cuda") as debugger:
        rope, x = table_in(saver, tag), torch.zeros(64, device="cuda")
        debugger.name("model", {"rope": rope})
        graph, out = captured(lambda: x + rope)
        graph.replay()
        assert out.tolist() == list(range(1, 65))
        address = rope.data_ptr()
        cycle(saver, tag)
        if restored:
            rope.copy_(torch.arange(1.0, 65.0))
        graph.replay()
        values, found = out.tolist(), debugger.check()
        assert rope.data_ptr() == address
    if restored:
        assert (values, found) == (list(range(1, 65)), ())
        return
    assert values != list(range(1, 65)), "invalid: the pause kept the contents"
    finding = only(found)
    assert (finding.code, finding.replay, finding.confidence) == ("SG116", 2, "high")
    assert (finding.buffer.name, finding.detail.how) == ('model["rope"]', f'torch_memory_saver pause("{tag}")')
    assert finding.culprit.name.startswith("aten.add")


def test_a_region_with_a_backup(saver: Any) -> None:
    with sg.debug(backend="cuda") as debugger:
        rope, x = table_in(saver, "backed", backup=True), torch.zeros(64, device="cuda")
        graph, out = captured(lambda: x + rope)
        graph.replay()
        cycle(saver, "backed")
        graph.replay()
        assert out.tolist() == list(range(1, 65))
        assert debugger.check() == ()
