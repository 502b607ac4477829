"""What is read out of two logs, as a device and several graphs write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shadowgraph.model import check_log
from shadowgraph.model.check_log import RECORD, CheckLog
from shadowgraph.model.launch_log import LaunchLog
from shadowgraph.model.recorded_files import CHECKS, LAUNCHES, Place, checks_of, in_folder
from shadowgraph.render.text.last_check_text import last_check_lines
from shadowgraph.wrap.folder.last_check import LastCheck, read_last_check

GRID = 1, 1, 1


class Logs:
    """The logs of one process in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.checks = CheckLog.create(in_folder(folder, "1-1", CHECKS))
        self.launches = LaunchLog.create(in_folder(folder, "1-1", LAUNCHES))
        self.rows = dict[int, int]()

    def graph(self, serial: int, name: str) -> None:
        self.launches.graph(serial, name)
        row = self.checks.claim(serial)
        assert row is not None
        self.rows[serial] = row

    def launch(self, *kernels: str) -> None:
        for kernel in kernels:
            self.launches.launch(self.launches.kernel(kernel), 0, 0, GRID, [(4096, 64)])

    def begin(self, serial: int, replay: int) -> None:
        self.launches.replay(serial, replay, True)

    def device(self, serial: int, begun: int, ended: int) -> None:
        self.checks.begun(self.rows[serial], begun)
        self.checks.ended(self.rows[serial], ended)

    def read(self) -> LastCheck:
        return read_last_check(self._folder, None, "1-1")


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def kernels(last: LastCheck) -> list[str]:
    return [launch.kernel for launch in last.launches]


def test_replays_that_are_queued_are_not_checked(logs: Logs) -> None:
    logs.graph(1, "decode")
    for replay in range(1, 10):
        logs.launch(f"fill{replay}")
        logs.begin(1, replay)
    logs.device(1, begun=7, ended=6)
    last = logs.read()
    assert (last.graph, last.replay, last.clean) == ("decode", 6, True)
    assert (last.running, last.running_replay, last.head_checked) == ("decode", 9, False)
    assert kernels(last) == ["fill7", "fill8", "fill9"]
    assert "not checked since replay 6 of decode: replays 7 to 9 of decode had begun" in "\n".join(
        last_check_lines(last)
    )


def test_of_two_graphs_the_last_check_is_that_of_the_later_replay(logs: Logs) -> None:
    logs.graph(1, "draft")
    logs.graph(2, "target")
    logs.launch("a")
    logs.begin(1, 5)
    logs.launch("b")
    logs.begin(2, 3)
    logs.launch("c")
    logs.device(1, 5, 5)
    logs.device(2, 3, 2)
    last = logs.read()
    assert (last.graph, last.replay, last.running, last.running_replay) == ("draft", 5, "target", 3)
    assert last.head_checked
    assert kernels(last) == ["b", "c"]
    logs.device(2, 3, 3)
    last = logs.read()
    assert (last.graph, last.replay, last.running) == ("target", 3, "")
    assert kernels(last) == ["c"]


def test_of_a_step_of_pieces_the_last_check_is_that_of_its_first_one(logs: Logs) -> None:
    """The nodes of those in the middle are disabled: the device has not counted their replays."""
    for piece in range(1, 5):
        logs.graph(piece, f"piece{piece}")
        logs.device(piece, *((45, 45), (3, 3), (3, 3), (44, 44))[piece - 1])
    for step, pieces in ((44, 4), (45, 3)):
        for piece in range(1, pieces + 1):
            logs.launch(f"attention{step}.{piece}")
            logs.begin(piece, step)
    last = logs.read()
    assert (last.graph, last.replay, last.clean) == ("piece1", 45, True)
    assert (last.running, last.running_replay, last.head_checked) == ("piece3", 45, False)
    assert kernels(last) == ["attention45.2", "attention45.3"]
    logs.begin(4, 45)
    logs.device(4, 45, 45)
    last = logs.read()
    assert (last.graph, last.replay, last.running) == ("piece4", 45, "")


def test_damage_that_a_device_found_is_next_to_a_named_buffer(logs: Logs) -> None:
    logs.graph(1, "decode")
    logs.launches.buffer(4096, 64, "kv_indices")
    logs.launches.buffer(8192, 64, "kv_indptr")
    logs.begin(1, 4)
    logs.device(1, 4, 4)
    logs.checks.damaged(logs.rows[1], 4, tail=True)
    for first, replay in ((9000, 3 << 1), (4160 + 4, 4 << 1 | 1), (8190, 4 << 1 | 1)):
        made = np.zeros(1, RECORD)
        for name, value in {"graph": 1, "replay": replay, "first": first, "last": first + 1, "count": 2}.items():
            made[name] = value
        made["window"], made["window_len"] = first - 2, 8
        made["expected"][0, :8], made["found"][0, :8] = range(8), range(10, 18)
        logs.checks.record(made)
    (damage,) = logs.read().damages
    assert (damage.graph, damage.replay, damage.tail) == ("decode", 4, True)
    assert (damage.buffer, damage.first, damage.last, damage.count) == ("kv_indices", 68, 69, 2)
    assert (damage.expected, damage.found) == ("02 03", "0c 0d")


def test_a_replay_that_failed_is_over(logs: Logs) -> None:
    logs.graph(1, "decode")
    logs.begin(1, 1)
    logs.launches.replay(1, 1, False, failed=True)
    last = logs.read()
    assert (last.replay, last.running) == (0, "")
    assert [*last_check_lines(last)] == ["last check: none of a replay had finished"]


def test_without_a_launch_log_the_check_log_says_what_it_can(logs: Logs, tmp_path: Path) -> None:
    logs.graph(3, "decode")
    logs.device(3, 8, 8)
    logs.launches.remove()
    last = logs.read()
    assert (last.graph, last.replay, last.clean, len(last.unread)) == ("graph#3", 8, True, 1)


@pytest.mark.parametrize("run", ["../../etc", "", None, 7, "0123456789abcdeg", "0" * 17])
def test_a_forged_token_leads_nowhere(run: object, tmp_path: Path) -> None:
    assert checks_of(tmp_path, run, "1-1") == in_folder(tmp_path, "1-1", CHECKS)


def test_a_check_log_is_read_where_it_lies(tmp_path: Path) -> None:
    place = Place(str(tmp_path), "0123456789abcdef", "1-1")
    log = CheckLog.create(place.checks, place.folder)
    try:
        assert checks_of(tmp_path, place.run, "1-1") == place.checks
        log.ended(log.claim(1) or 0, 5)
        assert read_last_check(tmp_path, place.run, "1-1").replay == 5
    finally:
        log.remove()


@pytest.mark.parametrize("undecided", [False, True])
def test_a_range_that_a_replay_changed_is_told_with_its_replay(logs: Logs, undecided: bool) -> None:
    """A declared one as damage; one that the host plans from as what it is, as no check has seen the host read it."""
    logs.graph(1, "decode")
    logs.launches.buffer(4096, 64, "attn.indptr")
    logs.begin(1, 1001)
    logs.device(1, 1001, 1001)
    made = np.zeros(1, RECORD)
    made["graph"], made["replay"], made["is_part"] = 1, 1001 << 1 | 1, check_log.UNDECIDED if undecided else 1
    made["first"], made["last"], made["count"], made["window"], made["window_len"] = 4100, 4103, 2, 4096, 64
    made["expected"][0, 4], made["found"][0, 4] = 7, 9
    logs.checks.record(made)
    if not undecided:
        logs.checks.damaged(logs.rows[1], 1001, True)
    last = logs.read()
    assert last.clean is undecided
    (told,) = last.changes if undecided else last.damages
    assert (last.damages if undecided else last.changes) == ()
    assert (told.graph, told.replay, told.tail, told.buffer) == ("decode", 1001, True, "attn.indptr")
    assert (told.first, told.last, told.count) == (4, 7, 2)
    _, line, *_ = last_check_lines(last)
    where = "2 bytes, at 4 to 7 of attn.indptr (64 bytes): "
    if undecided:
        assert line == (
            f"changed by replay 1,001 of decode, which the host plans from: {where}before 07 00 00 00, "
            "after 09 00 00 00; damage if a plan has been made from it since"
        )
    else:
        assert line == (
            f"damage: first found by the check at the end of replay 1,001 of decode: {where}expected 07 00 00 00, "
            "found 09 00 00 00"
        )


@pytest.mark.parametrize("later", [16, 17])
def test_a_change_that_many_replays_have_outlived_is_not_told(logs: Logs, later: int) -> None:
    logs.graph(1, "decode")
    logs.begin(1, 1000 + later)
    logs.device(1, 1000 + later, 1000 + later)
    made = np.zeros(1, RECORD)
    made["graph"], made["replay"], made["is_part"], made["count"] = 1, 1000 << 1 | 1, check_log.UNDECIDED, 1
    logs.checks.record(made)
    assert len(logs.read().changes) == (later == 16)


def test_damage_and_a_change_by_the_same_replay_are_told_apart(logs: Logs) -> None:
    logs.graph(1, "decode")
    logs.begin(1, 5)
    logs.device(1, 5, 5)
    for at, is_part in ((4100, check_log.UNDECIDED), (4200, 1)):
        made = np.zeros(1, RECORD)
        made["graph"], made["replay"], made["is_part"] = 1, 5 << 1 | 1, is_part
        made["first"], made["last"], made["count"], made["window"] = at, at, 1, at
        logs.checks.record(made)
    logs.checks.damaged(logs.rows[1], 5, True)
    last = logs.read()
    assert [[each.first for each in told] for told in (last.damages, last.changes)] == [[4200], [4100]]
