"""The check log: what is written, what outlives the process, and files of any origin."""

from __future__ import annotations

import os
import signal
import struct
from pathlib import Path

import numpy as np
import pytest

from shadowgraph.common.errors import MissingFileError, RecordedLogError
from shadowgraph.common.mapped_files import is_written
from shadowgraph.engines import base, ring
from shadowgraph.model import check_log
from shadowgraph.model.check_log import RECORD, CheckLog, GraphChecks, read


def record(**fields: int) -> np.ndarray:
    made = np.zeros(1, RECORD)
    for name, value in {"first": 8, "last": 11, "count": 4, "window_len": 4, **fields}.items():
        made[name] = value
    return made


def test_rows_and_records_are_read_again(tmp_path: Path) -> None:
    log = CheckLog.create(tmp_path / "a.checks", folder="/runs/7")
    first, second = log.claim(5), log.claim(9)
    assert first is not None
    assert second is not None
    assert log.claim(5) == first
    log.begun(first, 3)
    log.ended(first, 2)
    log.begun(second, 1)
    log.damaged(second, 1, tail=True)
    log.damaged(second, 4, tail=False)  # the first one is kept
    log.record(record(graph=9, replay=3, first=100, last=103))
    seen = read(tmp_path / "a.checks")
    assert seen.pid == os.getpid()
    assert seen.folder == "/runs/7"
    assert seen.graphs == (GraphChecks(5, 3, 2, 0, False), GraphChecks(9, 1, 0, 1, True))
    assert [(int(one["graph"]), int(one["first"]), int(one["sequence"])) for one in seen.records] == [(9, 100, 1)]


def test_the_ring_of_records_keeps_the_latest_in_order(tmp_path: Path) -> None:
    log = CheckLog.create(tmp_path / "a.checks")
    for number in range(check_log.RECORDS + 10):
        log.record(record(first=number, last=number))
    kept = read(tmp_path / "a.checks").records["first"]
    assert kept.tolist() == list(range(10, check_log.RECORDS + 10))


def test_a_row_goes_to_another_graph_only_when_all_are_taken() -> None:
    log = CheckLog.anonymous()
    rows = [log.claim(serial) for serial in range(1, check_log.GRAPH_ROWS + 1)]
    assert rows == list(range(check_log.GRAPH_ROWS))
    assert log.claim(99_999) is None
    assert log.lost == 1
    log.begun(7, 12)
    log.rows["checked"][7:9] = 12, 5  # as a device writes
    log.release(8)
    assert log.claim(100_000) == 7
    assert log.rows[7].tolist() == (100_000, 0, 0, 0, 0)
    assert log.checked == 17, "of the graph that is gone, too"


def test_memory_at_an_address_is_what_the_reader_sees(tmp_path: Path) -> None:
    """A device is given the address, and writes without Python."""
    log = CheckLog.create(tmp_path / "a.checks")
    row = log.claim(3)
    assert row is not None
    words = np.frombuffer(log.memory, np.uint64, 4, log.row_address(row) - log.address)
    words[1], words[3] = 77, 5 << 1
    assert read(tmp_path / "a.checks").graphs == (GraphChecks(3, 77, 0, 5, False),)


def test_it_outlives_a_kill_and_tells_whether_its_writer_is_alive(tmp_path: Path) -> None:
    ready, go = os.pipe()
    child = os.fork()
    if not child:
        log = CheckLog.create(tmp_path / "a.checks")
        log.begun(log.claim(1) or 0, 41)
        os.closerange(3, go)  # as a daemon does
        os.write(go, b"x")
        signal.pause()
    os.read(ready, 1)
    assert is_written(tmp_path / "a.checks")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not is_written(tmp_path / "a.checks")
    assert read(tmp_path / "a.checks").graphs == (GraphChecks(1, 41, 0, 0, False),)


def test_a_forked_child_writes_nowhere(tmp_path: Path) -> None:
    log = CheckLog.create(tmp_path / "a.checks")
    row = log.claim(1) or 0
    log.begun(row, 3)
    child = os.fork()
    if not child:
        log.leave()
        log.begun(row, 99)
        log.record(record())
        os._exit(0 if log.rows["begun"][row] == 99 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    seen = read(tmp_path / "a.checks")
    assert seen.graphs[0].begun == 3
    assert not len(seen.records)


def test_a_file_system_without_room_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        CheckLog.create(tmp_path / "a.checks")
    assert not [*tmp_path.iterdir()]


def test_an_existing_file_or_link_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "a.checks").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        CheckLog.create(tmp_path / "a.checks")
    assert (tmp_path / "victim").read_text() == "mine"


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (0, b"SGDUMP00", "is no check log"),
        (8, struct.pack("<I", 3), "of version 3; this shadowgraph reads 2"),
        (12, struct.pack("<I", 1 << 31), "of another shape"),
        (20, struct.pack("<I", 8), "of another shape"),
        (24, struct.pack("<Q", 1 << 60), "of another shape"),
    ],
)
def test_a_file_that_is_not_one_is_one_line(tmp_path: Path, place: int, value: bytes, told: str) -> None:
    CheckLog.create(tmp_path / "a.checks")
    content = bytearray((tmp_path / "a.checks").read_bytes())
    content[place : place + len(value)] = value
    (tmp_path / "b.checks").write_bytes(content)
    with pytest.raises(RecordedLogError, match=told) as raised:
        read(tmp_path / "b.checks")
    assert "\n" not in str(raised.value)


def test_a_truncated_one_a_pipe_and_none_are_one_line(tmp_path: Path) -> None:
    CheckLog.create(tmp_path / "a.checks")
    (tmp_path / "b.checks").write_bytes((tmp_path / "a.checks").read_bytes()[:5000])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RecordedLogError, match="5,000 bytes instead of 1,048,576"):
        read(tmp_path / "b.checks")
    with pytest.raises(RecordedLogError, match="no regular file"):
        read(tmp_path / "pipe")
    with pytest.raises(MissingFileError, match="cannot read none"):
        read(tmp_path / "none")


def test_bytes_of_any_kind_are_read_without_harm(tmp_path: Path) -> None:
    """Only lengths that a reader can trust are handed on."""
    CheckLog.create(tmp_path / "a.checks")
    head = (tmp_path / "a.checks").read_bytes()[:64]
    for seed in range(5):
        noise = np.random.default_rng(seed).integers(0, 256, check_log.NBYTES - 64, dtype=np.uint8)
        (tmp_path / "noise").write_bytes(head + noise.tobytes())
        for one in read(tmp_path / "noise").records:
            assert one["window_len"] <= check_log.WINDOW
            assert one["ranges_listed"] <= check_log.RANGES


def test_the_record_has_the_fields_that_checks_of_a_device_write() -> None:
    assert set(ring.RECORD.names or ()) <= set(RECORD.names or ())
    assert (check_log.WINDOW, check_log.RANGES) == (base.WINDOW, base.RANGES)
    assert check_log._RECORDS_AT + check_log.RECORDS * RECORD.itemsize <= check_log._NOTE_AT
