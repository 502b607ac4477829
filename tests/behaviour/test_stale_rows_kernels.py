"""SG103 where a Triton kernel is given the input: on a host, and as on a device, where its stores are not known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from padding import told
from playing import played
from programs import only

import shadowgraph as sg
from shadowgraph.graphs.triton import host as triton_host
from shadowgraph.model.kernel_code import Use

ROWS, DIM = 4, 4


class Runner:
    """Tokens of up to four rows, whose keys a kernel stores at their slots; ids and positions are padded."""

    def __init__(self, debugger: sg.Debugger) -> None:
        with debugger.guard():
            self.input_ids = torch.zeros(ROWS, dtype=torch.int64)
            self.positions = torch.zeros(ROWS, dtype=torch.int64)
            self.slots = torch.full((ROWS,), -1)
            self.cache = torch.zeros(32, DIM)
        self.table = torch.arange(64.0).view(-1, 1).repeat(1, DIM)
        debugger.name("runner", self)
        self.graph = sg.HostGraph()
        with sg.host_graph(self.graph):
            keys = self.table[self.input_ids] + self.positions[:, None]
            self.store(keys)
            self.out = keys.sum(1)

    def store(self, keys: torch.Tensor) -> None:
        from keys_kernels import store_keys

        store_keys[(ROWS,)](keys, self.slots, self.cache, DIM=DIM)

    def step(self, ids: list[int], slots: list[int], fixed: bool) -> None:
        count = len(ids)
        if count < ROWS:
            self.input_ids[count:].zero_()
            self.positions[count:].zero_()
            if fixed:
                self.slots[count:].fill_(-1)
        self.input_ids[:count].copy_(torch.tensor(ids))
        self.positions[:count].copy_(torch.tensor(ids) + 1)
        self.slots[:count].copy_(torch.tensor(slots))
        self.graph.replay()


def understood(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    """Play that kernels were compiled, and that their code shows these arguments, which the caller may change, not to
    be stored through."""
    describe, known = triton_host.describe, list(arguments)

    def described(*args: Any) -> Any:
        code = SimpleNamespace(use=lambda argument: Use(loads=True) if argument in known else None)
        return replace(describe(*args), code=code)

    monkeypatch.setattr(triton_host, "describe", described)
    return known


def served(runner: Runner, fixed: bool) -> None:
    runner.step([5, 6, 7, 8], [11, 12, 13, 14], fixed)
    before = runner.cache[12].tolist()
    runner.step([9], [15], fixed)
    assert (runner.cache[12].tolist() == before) is fixed, "invalid: padding has done no harm, or in spite of the fix"


@pytest.mark.parametrize("fixed", [False, True])
def test_on_a_host(fixed: bool) -> None:
    with sg.debug() as debugger:
        served(Runner(debugger), fixed)
    assert told(debugger) == ([] if fixed else [("SG103", "runner.slots")])


@pytest.mark.parametrize("fixed", [False, True])
def test_on_a_device_where_the_code_of_the_kernel_is_known(monkeypatch: pytest.MonkeyPatch, fixed: bool) -> None:
    understood(monkeypatch, "keys", "slots")
    with played(monkeypatch) as debugger:
        served(Runner(debugger), fixed)
        debugger.check()
        assert told(debugger) == ([] if fixed else [("SG103", "runner.slots")])
    if not fixed:
        found = only(debugger.findings)
        assert (found.severity, found.confidence, found.replay) == ("error", "high", 2)
        assert [(rows.first, rows.last, rows.replay) for rows in found.detail.stale] == [(1, 3, 1)]
        assert set(found.detail.padded) == {"runner.input_ids", "runner.positions"}


@pytest.mark.parametrize("known", [(), ("keys",), ("cache", "keys")])
def test_on_a_device_where_the_kernel_may_store_there(monkeypatch: pytest.MonkeyPatch, known: tuple[str, ...]) -> None:
    understood(monkeypatch, *known)
    with played(monkeypatch) as debugger:
        served(Runner(debugger), False)
        debugger.check()
        assert told(debugger) == []


@pytest.mark.parametrize("known", [False, True])
def test_a_kernel_of_prepare_that_reads_the_input(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    """As planners do: what it was given it may have written, unless its code shows that it does not."""
    arguments = understood(monkeypatch, "keys", "slots")
    with played(monkeypatch) as debugger:
        runner = Runner(debugger)
        runner.step([5, 6, 7, 8], [11, 12, 13, 14], False)
        arguments[:] = ["slots"] if known else []
        runner.store(torch.zeros(ROWS, DIM))
        runner.step([9], [15], False)
        debugger.check()
        assert told(debugger) == ([("SG103", "runner.slots")] if known else [])
