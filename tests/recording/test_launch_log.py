"""The launch log: rows and texts from any thread, the launches of a phase, and files of any origin."""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
from support.launch_logs import note_batch, note_plan

from shadowgraph.common.errors import RecordedLogError
from shadowgraph.model import launch_log_format as form
from shadowgraph.model.launch_log import LaunchLog
from shadowgraph.model.launch_log_format import RowKind
from shadowgraph.model.launch_log_reader import (
    LaunchLogContents,
    LoggedBuffer,
    LoggedEvent,
    LoggedLaunch,
    Site,
    contents_of,
    read,
)

GRID = 1, 1, 1


@pytest.fixture
def log(tmp_path: Path) -> LaunchLog:
    return LaunchLog.create(tmp_path / "a.launches")


def reread(log: LaunchLog) -> LaunchLogContents:
    assert log.path is not None
    return read(log.path)


def names(rows: tuple[LoggedLaunch, ...]) -> list[str]:
    return [row.kernel for row in rows]


@pytest.mark.parametrize("number", range(8))
def test_a_launch_is_read_as_it_was_noted(log: LaunchLog, number: int) -> None:
    pointers = [(0x7F00_0000_0000 + 512 * each, 100 + each) for each in range(number)]
    log.launch(log.kernel("fill"), log.site("/a/b.py", 31, "plan"), 0xDEADBEEF, (4, 5, 6), pointers)
    (row,) = reread(log).since(0)
    expected = LoggedLaunch(
        1 if number < 7 else 2, "fill", Site("/a/b.py", 31, "plan"), 0xDEADBEEF, (4, 5, 6), tuple(pointers[:6]),
        threading.get_ident(),
    )  # fmt: skip
    assert row == expected
    assert all(type(number) is int for number in (row.number, row.stream, *row.grid, *sum(row.pointers, ())))
    assert log.lost == 0
    assert contents_of(log.memory).since(0) == (row,)
    assert log.newest == row.number


@pytest.mark.parametrize("number", range(8))
def test_addresses_are_read_as_pointers_without_sizes(log: LaunchLog, number: int) -> None:
    for _ in range(form.ROWS):  # rows of before are written over whole
        log.launch(1, 1, 0xFF, GRID, [(1, 2)] * 6)
    addresses = [0x7F00_0000_0000 + 512 * each for each in range(number)]
    log.launch_at(log.kernel("fill"), 0, 0xDEADBEEF, (4, 5, 6), addresses)
    row = reread(log).since(0)[-1]
    assert isinstance(row, LoggedLaunch)
    assert (row.kernel, row.stream, row.grid) == ("fill", 0xDEADBEEF, (4, 5, 6))
    assert row.pointers == tuple((address, 0) for address in addresses[:6])
    assert row.number == form.ROWS + 1, "one row for each launch"
    log.launch_at(0, 0, 0, None, [])  # type: ignore[arg-type]
    assert log.lost == 1


def test_a_replay_that_passes_has_the_same_row(log: LaunchLog) -> None:
    log.replay(7, 1 << 40, True)
    log.replay_passes(7, 1 << 40)
    log.replay_passes(7, -1)
    first, second = (row for row in reread(log).since(0) if isinstance(row, LoggedEvent))
    assert (first.kind, first.graph, first.replay) == (second.kind, second.graph, second.replay)
    assert log.lost == 1


def test_values_that_do_not_fit_are_noted_as_far_as_they_do(log: LaunchLog) -> None:
    log.launch(0, 0, -1, (1 << 40, -5, 1), [(-8, 1 << 70)])
    log.launch(0, 0, 0, (7,), [])  # type: ignore[arg-type]
    log.launch(0, 0, 0, None, [])  # type: ignore[arg-type]
    first, second = (row for row in contents_of(log.memory).since(0) if isinstance(row, LoggedLaunch))
    assert first.grid == (0xFFFFFFFF, 0, 1)
    assert first.kernel == ""
    assert first.site is None
    assert second.grid == (7, 1, 1)
    assert log.lost == 1


def test_a_text_is_written_once(log: LaunchLog) -> None:
    assert log.kernel("add") == log.kernel("add") != log.kernel("mul")
    assert log.site("a.py", 1, "f") != log.site("a.py", 2, "f")
    log.graph(7, "decode[2]")
    log.buffer(4096, 640, "runner.kv_indices")
    log.buffer(4096, 128, "runner.kv_indptr")
    seen = reread(log)
    assert seen.graphs == {7: "decode[2]"}
    assert seen.buffers == {4096: LoggedBuffer(4096, 128, "runner.kv_indptr")}


def test_a_full_table_costs_names_and_nothing_else(log: LaunchLog) -> None:
    numbers = [log.kernel(f"{each:06}" + "k" * 470) for each in range(1200)]
    assert 0 in numbers
    assert log.lost == numbers.count(0)
    log.launch(numbers[0], numbers[-1], 0, GRID, [])
    (row,) = reread(log).since(0)
    assert isinstance(row, LoggedLaunch)
    assert row.kernel.startswith("000000kkk")
    assert row.site is None


def test_the_launches_of_a_phase_are_those_since_the_last_replay(log: LaunchLog) -> None:
    add, mul, fill = map(log.kernel, ("add", "mul", "fill"))
    log.launch(add, 0, 0, GRID, [])
    log.replay(1, 1, True)
    log.replay(1, 1, False)
    log.launch(mul, 0, 0, GRID, [])
    log.launch(fill, 0, 0, GRID, [])
    log.replay(1, 2, True)
    log.launch(add, 0, 0, GRID, [])  # another thread's, while it runs
    log.replay(1, 2, False)
    log.launch(fill, 0, 0, GRID, [])
    assert names(contents_of(log.memory).last_phase(1, 1)) == ["add"]
    assert names(contents_of(log.memory).last_phase(1, 2)) == ["mul", "fill"]
    assert names(contents_of(log.memory).last_phase(1, 3)) == ["fill"], "a phase that has not ended"


def test_batches_and_plans_are_kept_with_their_texts(log: LaunchLog) -> None:
    note_batch(log, "requests", " a, b", 3, 18)
    note_plan(log, "decode of 2")
    note_batch(log, "é" * 5000)
    seen = reread(log)
    last, plan = seen.last(RowKind.BATCH), seen.last(RowKind.PLAN)
    assert last is not None
    assert plan is not None
    assert plan.text == "decode of 2"
    assert last.text.endswith(" ...")
    assert len(last.text.encode()) <= form.SLOT
    before = seen.last(RowKind.BATCH, before=last.number)
    assert before is not None
    assert (before.text, before.graph, before.replay) == ("requests a, b", 3, 18)


def test_texts_that_hold_values_are_left_out_of_a_redacted_log(tmp_path: Path) -> None:
    log = LaunchLog.create(tmp_path / "a.launches", redact=True)
    note_batch(log, "2 requests", "; ids secret")
    note_plan(log, "decode plan", "; secret lengths 4, 9")
    rows = [row for row in reread(log).since(0) if isinstance(row, LoggedEvent)]
    assert [(row.kind, row.text) for row in rows] == [(6, "2 requests"), (7, "decode plan")]
    assert b"secret" not in (tmp_path / "a.launches").read_bytes()


def test_a_ring_that_went_round_has_the_latest_rows_of_all_threads(log: LaunchLog) -> None:
    kernels = [log.kernel(f"k{each}") for each in range(4)]

    def launch(kernel: int) -> None:
        for each in range(5000):
            log.launch(kernel, 0, 0, GRID, [(each, 8)])

    threads = [threading.Thread(target=launch, args=(kernel,)) for kernel in kernels]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = reread(log).since(0)
    assert [row.number for row in rows] == [*range(20_000 - len(rows) + 1, 20_001)]
    assert form.ROWS - 100 < len(rows) <= form.ROWS
    assert log.lost == 0


def test_a_row_that_was_being_overwritten_is_not_read(log: LaunchLog) -> None:
    for each in range(form.ROWS + 100):
        log.launch(0, 0, 0, GRID, [(each, 8)])
    place = form.ROWS_AT + (form.ROWS + 101) % form.ROWS * form.ROW
    log.memory[place : place + 8] = struct.pack("<Q", 0xBADBAD)  # the pointers of the next row, before its number
    rows = reread(log).since(0)
    assert all(isinstance(row, LoggedLaunch) and row.pointers[0][0] != 0xBADBAD for row in rows)


def test_a_forked_child_writes_nowhere(log: LaunchLog) -> None:
    log.replay(1, 1, True)
    child = os.fork()
    if not child:
        log.leave()
        log.replay(1, 2, True)
        os._exit(0 if log.lost == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(reread(log).since(0)) == 1


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (0, b"SGCHECK1", "is no launch log"),
        (8, struct.pack("<I", 9), "of version 9; this shadowgraph reads 3"),
        (12, struct.pack("<I", 1 << 31), "of another shape"),
    ],
)
def test_a_file_that_is_not_one_is_one_line(
    log: LaunchLog, tmp_path: Path, place: int, value: bytes, told: str
) -> None:
    content = bytearray(log.memory)
    content[place : place + len(value)] = value
    (tmp_path / "b").write_bytes(content)
    with pytest.raises(RecordedLogError, match=told):
        read(tmp_path / "b")
    (tmp_path / "b").write_bytes(content[:-1])
    with pytest.raises(RecordedLogError, match="bytes instead of"):
        read(tmp_path / "b")


def test_bytes_of_any_kind_are_read_without_harm(log: LaunchLog, tmp_path: Path) -> None:
    head = bytes(log.memory[: form.HEADER_NBYTES])
    for seed in range(5):
        noise = np.random.default_rng(seed).integers(0, 256, form.NBYTES, dtype=np.uint8)
        numbers = noise[form.ROWS_AT : form.TABLE_AT].reshape(form.ROWS, form.ROW)
        numbers[:, -8:] = (np.arange(form.ROWS, dtype="<u8") + form.ROWS * seed).view("u1").reshape(form.ROWS, 8)
        numbers[:, -12:-8] = (np.arange(form.ROWS, dtype="<u4") % 2048).view("u1").reshape(form.ROWS, 4)
        (tmp_path / "noise").write_bytes(head + noise[form.HEADER_NBYTES :].tobytes())
        seen = read(tmp_path / "noise")
        assert seen.since(0)
        assert isinstance(seen.last_phase(1, 1), tuple)
        assert isinstance(seen.graphs | seen.buffers, dict)
        for kind in RowKind:
            seen.last(kind)


def test_the_launches_of_a_phase_whose_begin_is_gone_are_not_those_of_a_later_one(log: LaunchLog) -> None:
    log.replay(1, 4, True)
    log.launch(log.kernel("add"), 0, 0, GRID, [])
    log.replay(1, 6, True)
    seen = contents_of(log.memory)
    assert seen.last_phase(1, 5) == ()
    assert [each.kernel for each in seen.last_phase(1, 6)] == ["add"]
