"""Buffers are called after the program's variables, locals included, unless the program names them."""

from __future__ import annotations

import ctypes
import gc
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import shadowgraph as sg
from shadowgraph.dumps.reader import read_dump
from shadowgraph.model.findings import Finding


def overrun(tensor: torch.Tensor) -> None:
    ctypes.memset(tensor.data_ptr() + tensor.nbytes, 7, 8)


def overrun_of_a_local(debugger: sg.Debugger) -> Finding:
    gc.collect()  # what earlier tests left would lie next to these
    with debugger.guard():
        next_positions = torch.zeros(6, dtype=torch.int64)
        others = {"table": torch.zeros(3)}
    overrun(next_positions)
    (found,) = debugger.check()
    del others
    return found


def test_a_local_names_its_buffer_and_the_one_next_to_it() -> None:
    with sg.debug() as debugger:
        found = overrun_of_a_local(debugger)
    assert found.buffer.name == "next_positions"
    assert found.neighbour is not None
    assert found.neighbour.name == 'others["table"]'
    assert "past the end of next_positions (int64[6], 48 bytes)" in found.message


def test_a_setting_switches_it_off() -> None:
    with sg.debug(variable_names=False) as debugger:
        found = overrun_of_a_local(debugger)
    assert found.buffer.name.startswith("int64[6] from test_variable_names.py:")


def test_a_local_that_is_gone_by_the_time_of_the_finding() -> None:
    def work(debugger: sg.Debugger) -> None:
        with debugger.guard():
            scratch = torch.zeros(6)
        overrun(scratch)

    with sg.debug() as debugger:
        work(debugger)
        (found,) = debugger.check()
    assert found.buffer.name == "scratch"


def test_a_given_name_goes_before_a_variable_that_leads_to_the_same() -> None:
    with sg.debug() as debugger:
        with debugger.guard():
            runner = SimpleNamespace(table=torch.zeros(4), rest=[torch.zeros(5)])
        debugger.name("model", SimpleNamespace(table=runner.table))
        overrun(runner.rest[0])
        overrun(runner.table)
        found = {each.buffer.name: each for each in debugger.check()}
        groups = debugger.names.groups()
    assert set(found) == {"model.table", "runner.rest[0]"}
    assert found["model.table"].buffer.names == ("model.table",)
    assert groups == []


def test_a_given_name_is_not_taken_by_a_variable_that_is_called_the_same() -> None:
    with sg.debug() as debugger:
        with debugger.guard():
            given = torch.zeros(4)
            table = torch.zeros(5)
        debugger.name("table", given)
        overrun(table)
        overrun(given)
        names = {each.buffer.shape: each.buffer.name for each in debugger.check()}
    assert names == {(4,): "table", (5,): "table#2"}


def test_a_dump_after_the_block_has_the_names_of_the_block(tmp_path: Path) -> None:
    def run() -> tuple[sg.Debugger, Any]:
        with sg.debug() as debugger, debugger.guard():
            page_table = torch.zeros(13)
            kept = [page_table]
        return debugger, kept

    debugger, kept = run()
    with read_dump(debugger.dump(tmp_path / "run.dump")) as dump:
        names = [dump.names.name(buffer) for buffer in dump.buffers if buffer.shape == (13,)]
    assert names == ["page_table"]
    del kept


def test_no_code_of_the_program_runs_and_nothing_is_kept_alive() -> None:
    ran = []

    class Owner:
        def __init__(self) -> None:
            self.table = torch.zeros(4)

        @property
        def other(self) -> torch.Tensor:
            ran.append("property")
            return self.table

        def __getattr__(self, name: str) -> Any:
            ran.append(name)
            raise AttributeError(name)

        def __repr__(self) -> str:
            ran.append("repr")
            return "Owner"

        __hash__ = None  # type: ignore[assignment]

    def work(debugger: sg.Debugger) -> weakref.ref[Owner]:
        with debugger.guard():
            owner = Owner()
        overrun(owner.table)
        (found,) = debugger.check()
        assert found.buffer.name == "owner.table"
        return weakref.ref(owner)

    with sg.debug() as debugger:
        gc.disable()
        try:
            assert work(debugger)() is None
        finally:
            gc.enable()
    assert ran == []


def test_the_time_for_blocks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []

    def slow(*_: object, **__: object) -> Any:
        searched.append(1)
        time.sleep(0.02)
        return SimpleNamespace(owners=(), sights=())

    with sg.debug() as debugger:
        monkeypatch.setattr("shadowgraph.tracking.variable_names.walk", slow)
        kept = []
        began = time.monotonic()
        for _ in range(100):
            with debugger.guard():
                kept.append(torch.zeros(4))
        took = time.monotonic() - began
        count = len(searched)
        with debugger.guard():
            kept.append(torch.zeros(4))
        assert len(searched) == count, "its time is used up"
    assert took < 2
