"""Operators of libraries that pass have rows, with the program's line, though their kernels are left alone."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.graphs import launch_rows
from shadowgraph.graphs.observer.library import Library
from shadowgraph.model.launch_log import LaunchLog
from shadowgraph.model.launch_log_reader import LoggedLaunch, contents_of
from shadowgraph.tracking import launch_recording, passing

Fill = Callable[..., Any]
ONE, TWO = torch.zeros(8), torch.zeros(9)[2:6]


@pytest.fixture(scope="module")
def operators() -> Iterator[Any]:
    made = torch.library.Library("sgtestlib", "DEF")
    made.define("fill(Tensor(a!) x, Tensor y, int value=3) -> ()")
    made.define("fill.other(Tensor(a!) x, Tensor y, float value) -> ()")

    def fill(x: torch.Tensor, y: torch.Tensor, value: float = 3) -> None:
        if value == 13:
            raise ValueError("not that one")
        x.numpy()[:] = value

    made.impl("fill", fill, "CPU")
    made.impl("fill.other", fill, "CPU")
    yield torch.ops.sgtestlib
    made._destroy()


@pytest.fixture
def log(library: Library, monkeypatch: pytest.MonkeyPatch) -> LaunchLog:
    launch_rows._use(library)
    made = LaunchLog.anonymous()
    monkeypatch.setattr(launch_recording, "current", made)
    monkeypatch.setattr(passing, "on", True)
    return made


def rows(log: LaunchLog) -> list[LoggedLaunch]:
    return [row for row in contents_of(log.memory).since(0) if isinstance(row, LoggedLaunch)]


def given(*tensors: torch.Tensor) -> tuple[tuple[int, int], ...]:
    return tuple((each.data_ptr(), 0) for each in tensors)


def test_an_operator_of_a_library_has_its_name_its_line_and_its_tensors(log: LaunchLog, operators: Any) -> None:
    operators.fill.default(ONE, TWO, 7)
    partial(operators.fill.other)(ONE, y=TWO, value=2.0)
    partial(operators.fill)(ONE, TWO)
    names = ["sgtestlib.fill.default", "sgtestlib.fill.other", "sgtestlib.fill"]
    found = rows(log)
    assert [row.kernel for row in found] == names
    assert {row.pointers for row in found} == {given(ONE, TWO)}
    assert {row.site.file for row in found if row.site is not None} == {__file__}
    assert ONE.tolist() == [3.0] * 8


def test_operators_of_torch_have_none(log: LaunchLog) -> None:
    partial(torch.ops.aten.add_)(ONE, 1)
    partial(torch.ops.aten.add_.Tensor)(ONE, torch.ones(8))
    partial(torch.ops.prims.neg.default)(ONE)
    assert rows(log) == []


def test_what_does_not_pass_has_none(log: LaunchLog, operators: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "on", False)
    partial(operators.fill.default)(ONE, TWO, 5)
    monkeypatch.setattr(passing, "on", True)
    monkeypatch.setattr(launch_recording, "current", None)
    partial(operators.fill.default)(ONE, TWO, 5)
    assert rows(log) == []
    assert ONE.tolist() == [5.0] * 8


def test_errors_are_the_operators_own(log: LaunchLog, operators: Any) -> None:
    before = internal_errors.counts
    with pytest.raises(ValueError, match="not that one"):
        partial(operators.fill.default)(ONE, TWO, 13)
    with pytest.raises(RuntimeError, match="missing value for argument"):
        partial(operators.fill.default)(ONE)
    with pytest.raises(TypeError):
        type(operators.fill.default).__call__()
    assert [len(row.pointers) for row in rows(log)] == [2, 1]
    assert internal_errors.counts == before


def test_no_reference_is_kept(log: LaunchLog, operators: Any) -> None:
    call, x, y = partial(operators.fill.default), torch.zeros(4), torch.zeros(2)
    for _ in range(10):
        call(x, y, value=1)
    before = sys.getrefcount(x), sys.getrefcount(y), sys.getrefcount(operators.fill.default)
    for _ in range(500):
        call(x, y, value=1)
    assert (sys.getrefcount(x), sys.getrefcount(y), sys.getrefcount(operators.fill.default)) == before


def test_many_threads_have_a_row_for_each_call(log: LaunchLog, operators: Any) -> None:
    def work() -> None:
        mine = torch.zeros(4)
        for _ in range(200):
            partial(operators.fill.default)(mine, TWO, 1)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(rows(log)) == 1200


def test_torchs_methods_stay_what_they_are(log: LaunchLog, operators: Any) -> None:
    """Also for code that traces them."""
    call = vars(torch._ops.OpOverload)["__call__"]
    assert type(call).__name__ == "function"
    assert vars(call).get("_launcher") is None
    traced = torch.fx.symbolic_trace(lambda x, y: torch.ops.aten.add.Tensor(x, y))
    assert traced(ONE, 1).tolist() == (ONE + 1).tolist()
    compiled = torch.compile(lambda x: torch.ops.aten.mul.Tensor(x, 2), backend="eager", fullgraph=True)
    assert compiled(ONE).tolist() == (ONE * 2).tolist()
