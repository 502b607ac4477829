"""The recorder of a process without a run folder, forks, and what is brought into a run folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.wrapping import environment

import shadowgraph as sg
from shadowgraph.model import check_log, launch_log_reader
from shadowgraph.model.check_log import RECORD, CheckLog
from shadowgraph.model.recorded_files import CHECKS, SHARED_MEMORY, Place, collect, in_folder, new_token
from shadowgraph.monitor.recorder.recorder import Recorder, recorder
from shadowgraph.tracking import launch_recording

PROGRAM = """
import os, signal, sys, torch
import shadowgraph as sg
from shadowgraph.monitor.recorder.recorder import recorder
with sg.debug(backend="host") as debugger:
    with debugger.guard():
        table = torch.zeros(16)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        table.add_(1)
    for _ in range(3):
        graph.replay()
    print(recorder.check_log().path, flush=True)
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
"""


OVERWRITES = """
import os, signal, sys, torch
import shadowgraph as sg
from shadowgraph.monitor.recorder.recorder import recorder
with sg.debug(backend="host") as debugger:
    with debugger.guard():
        indptr, lens = torch.tensor([0, 4, 8]).int().clone(), torch.tensor([4, 4]).int().clone()
    debugger.name("indptr", {"table": indptr})
    if sys.argv[1] == "declared":
        debugger.protect(indptr)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        indptr[1:].copy_(lens.cumsum(0))
    for length in (4, 4, 5, 6):
        lens.fill_(length)
        indptr.tolist()
        graph.replay()
    print(recorder.check_log().path, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["declared", "planned from"])
def test_a_killed_program_leaves_what_a_replay_overwrote(how: str) -> None:
    words = [sys.executable, "-c", OVERWRITES, how]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    checks = Path(done.stdout.strip())
    try:
        found = check_log.read(checks)
        (row,), (record, *more) = found.graphs, found.records
        assert (row.ended, row.damaged) == (4, 3 if how == "declared" else 0)
        assert (record["graph"], record["replay"]) == (row.serial, 3 << 1 | 1)
        assert len(more) == (how == "declared"), "of what the host plans from the first change alone"
        assert record["is_part"] == (1 if how == "declared" else check_log.UNDECIDED)
        assert (int(record["last"] - record["first"]), int(record["count"])) == (4, 2)
    finally:
        checks.unlink(missing_ok=True)
        checks.with_suffix(".launches").unlink(missing_ok=True)


@pytest.mark.parametrize(("how", "code"), [("kill", -signal.SIGKILL), ("end", 0)])
def test_without_wrap_the_logs_lie_in_shared_memory_until_an_orderly_end(how: str, code: int) -> None:
    words = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    checks = Path(done.stdout.strip())
    launches = checks.with_suffix(".launches")
    assert checks.parent == Path(SHARED_MEMORY)
    try:
        assert [path.exists() for path in (checks, launches)] == [how == "kill"] * 2
        if how == "kill":
            (row,) = check_log.read(checks).graphs
            assert (row.begun, row.ended, row.damaged) == (3, 3, 0)
            assert [(e.graph, e.replay) for e in launch_log_reader.read(launches).replays()][-1] == (row.serial, 3)
            assert checks.stat().st_mode & 0o777 == launches.stat().st_mode & 0o777 == 0o600
    finally:
        checks.unlink(missing_ok=True)
        launches.unlink(missing_ok=True)


def test_a_child_that_kept_the_log_in_a_variable_writes_nowhere() -> None:
    """Hot paths hold it in variables of their own; a row may be under way as another thread forks."""
    with sg.debug(backend="host"):
        log, checks = launch_recording.current, recorder.check_log()
        assert log is not None
        assert checks is not None
        row = checks.claim(10**9)
        assert row is not None
        before = log.newest
        child = os.fork()
        if not child:
            log.replay(1, 99, True)
            checks.begun(row, 99)
            os._exit(0 if launch_recording.current is None and recorder.orphaned else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert log.newest == before
        assert checks.rows["begun"][row] == 0
        assert launch_recording.current is log
        checks.release(10**9)


def test_the_log_is_current_while_a_debugger_watches() -> None:
    assert launch_recording.current is None
    with sg.debug(backend="host"):
        first = launch_recording.current
        assert first is not None
    assert launch_recording.current is None
    with sg.debug(backend="host"):
        assert launch_recording.current is first, "one of each for all debuggers of a process"


def test_no_memory_at_all_costs_the_log_and_no_debugger(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("shadowgraph.common.mapped_files._map", none)
    own = Recorder()
    try:
        own.begin()
        assert own.check_log() is None
        assert len(own.reasons) == 2
        assert all("Cannot allocate memory" in reason for reason in own.reasons)
    finally:
        own.rest()


@pytest.mark.parametrize("redact", [False, True])
def test_what_a_device_found_is_brought_without_its_bytes_where_the_run_is_redacted(
    redact: bool, tmp_path: Path
) -> None:
    place = Place(str(tmp_path), new_token(), "7-7")
    child = os.fork()
    if not child:
        log = CheckLog.create(place.checks, tmp_path)
        made = np.zeros(1, RECORD)
        made["expected"], made["found"] = 1, 2
        log.record(made)
        os._exit(0)
    os.waitpid(child, 0)
    collect(tmp_path, place.run, redact)
    assert not os.path.exists(place.checks)
    (record,) = check_log.read(in_folder(tmp_path, "7-7", CHECKS)).records
    assert record["expected"].all()
    assert record["found"].any() == (not redact)


@pytest.mark.parametrize(("first", "second"), [("host", "device"), ("device", "host")])
def test_the_check_log_has_one_writer(first: str, second: str) -> None:
    """Host and device both number their records from 1."""
    made = Recorder()
    log = made.check_log(first)
    try:
        assert log is not None
        assert made.check_log(second) is None
        assert made.check_log(first) is log
    finally:
        made.end()
