"""Operators that pass have rows in the launch log, which outlives the process."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from shadowgraph.graphs import launch_rows
from shadowgraph.graphs.observer.observer import OperatorObserver
from shadowgraph.model import launch_log_format as form
from shadowgraph.model.launch_log import LaunchLog
from shadowgraph.model.launch_log_reader import LoggedLaunch, contents_of
from shadowgraph.tracking import launch_recording

ONE, TWO = torch.zeros(8), torch.ones(8)


@pytest.fixture
def log(observer: OperatorObserver, monkeypatch: pytest.MonkeyPatch) -> Iterator[LaunchLog]:
    """A log that has operators from the start of the test on."""
    assert observer._library is not None
    monkeypatch.setattr(launch_rows, "_library", observer._library)
    made = LaunchLog.anonymous()
    monkeypatch.setattr(launch_recording, "current", made)
    made.buffer(ONE.data_ptr(), ONE.nbytes, "one")
    made.buffer(TWO.data_ptr(), TWO.nbytes, "two")
    launch_rows.log_operators(True)
    yield made
    launch_rows.log_operators(False)


def operators(log: LaunchLog, number: int = 0) -> tuple[LoggedLaunch, ...]:
    return contents_of(log.memory).operators(number)


def names(log: LaunchLog) -> list[str]:
    return [row.kernel for row in operators(log)]


def test_an_operator_has_its_name_and_its_tensors_the_written_one_first(log: LaunchLog) -> None:
    ONE.copy_(TWO)
    torch.add(ONE, TWO, out=TWO)
    copy, add = operators(log)
    expected = (ONE.data_ptr(), ONE.nbytes), (TWO.data_ptr(), TWO.nbytes)
    assert (copy.kernel, copy.pointers, copy.site) == ("aten.copy_.default", expected, None)
    assert (add.kernel, add.pointers[0]) == ("aten.add.out", expected[1])
    assert copy.thread == threading.get_ident()


def test_operators_lie_between_the_rows_that_were_written_around_them(log: LaunchLog) -> None:
    put = launch_rows._library.event_rows() if launch_rows._library is not None else None
    assert put is not None
    for replay in (1, 2, 3):
        assert put(log.address, log.rows, int(form.RowKind.REPLAY_BEGINS), 7, replay, 0, ())
        ONE.fill_(replay)
    assert [row.number for row in operators(log)] == [1, 2, 3]
    assert [row.number for row in operators(log, 2)] == [2, 3]


def test_rows_that_python_wrote_before_count(log: LaunchLog) -> None:
    launch_rows.log_operators(False)
    ONE.fill_(1)
    for _ in range(5):
        log.launch(0, 0, 0, (1, 1, 1), [])
    launch_rows.log_operators(True)
    ONE.fill_(1)
    assert [row.number for row in operators(log)] == [5]


def test_another_log_has_its_own_and_the_first_no_more(log: LaunchLog, monkeypatch: pytest.MonkeyPatch) -> None:
    ONE.fill_(1)
    other = LaunchLog.anonymous()
    other.kernel("something else first")
    other.buffer(ONE.data_ptr(), ONE.nbytes, "one")
    monkeypatch.setattr(launch_recording, "current", other)
    launch_rows.log_operators(True)
    ONE.zero_()
    assert (names(log), names(other)) == (["aten.fill_.Scalar"], ["aten.zero_.default"])
    monkeypatch.setattr(launch_recording, "current", None)
    launch_rows.log_operators(True)
    ONE.zero_()
    assert len(names(other)) == 1


def test_the_latest_are_kept(log: LaunchLog) -> None:
    for at in range(3 * form.OPERATORS):
        ONE[at % 8 :].fill_(1)
    found = operators(log)
    assert form.OPERATORS - 100 < len(found) <= form.OPERATORS
    assert found[-1].pointers[0][0] == ONE[(3 * form.OPERATORS - 1) % 8 :].data_ptr()
    assert log.lost == 0


def test_an_operator_lies_behind_rows_of_either_writer(log: LaunchLog) -> None:
    note = launch_rows.note_in_python
    for number in range(1, 4):
        note(named, (), {})
        ONE.fill_(1)
        assert operators(log)[-1].number == 2 * number - 1
        log.replay(1, number, begins=True)


def test_operators_that_were_given_no_named_buffer_are_left_out(log: LaunchLog) -> None:
    torch.zeros(64).fill_(1)
    torch.zeros(64).copy_(torch.cat([TWO] * 8))
    ONE[3:4].zero_()
    torch.zeros(8).copy_(TWO)
    assert names(log) == ["aten.cat.out", "aten.zero_.default", "aten.copy_.default"][1:]


def named() -> None:
    """Launches nothing."""
