"""Who may own a run folder, who may read what is in it, and what a full disk leaves of it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shadowgraph.commands.main import main
from shadowgraph.common.atomic_files import atomic_write
from shadowgraph.common.errors import RunFolderError, UnsafeFolderError
from shadowgraph.common.version import VERSION
from shadowgraph.wrap.folder.findings_log import FindingsLog
from shadowgraph.wrap.folder.heartbeats import Heartbeat, heartbeat_file, write_heartbeat
from shadowgraph.wrap.folder.injection_config import InjectionConfig
from shadowgraph.wrap.folder.reader import read_run
from shadowgraph.wrap.folder.run_folder import RunFolder
from shadowgraph.wrap.status.pause_file import is_off, switch

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away, and mount")


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def begun(path: Path) -> RunFolder:
    made = RunFolder(path)
    made.begin(["python", "serve.py"], InjectionConfig(made.path), VERSION)
    return made


def mode(path: Path) -> int:
    return path.lstat().st_mode & 0o777


def test_a_new_folder_and_all_in_it_are_its_owners(tmp_path: Path) -> None:
    folder = Path(begun(tmp_path / "parent" / "run").path)
    journal = FindingsLog(folder)
    journal.write("event", text="x")
    write_heartbeat(heartbeat_file(journal.path), Heartbeat())
    switch(folder, off=True)
    assert (mode(folder), {mode(path) for path in folder.iterdir()}) == (0o700, {0o600})
    assert len(list(folder.iterdir())) == 5


def test_an_own_folder_becomes_private_and_that_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir(mode=0o755)
    begun(tmp_path / "run")
    assert mode(tmp_path / "run") == 0o700
    (line,) = capfd.readouterr().err.splitlines()
    assert f"{tmp_path / 'run'} had mode 0755, and is 0700 now" in line


def test_an_own_private_folder_is_taken_in_silence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    begun(tmp_path / "run")
    assert capfd.readouterr().err == ""


@ROOT
def test_a_folder_of_another_user_is_refused_before_the_program_starts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir(mode=0o777)
    os.chown(tmp_path / "run", 12345, 12345)
    words = ["wrap", "--run-dir", str(tmp_path / "run"), "--", "touch", str(tmp_path / "started")]
    assert main(words) == UnsafeFolderError.exit_code == 16
    (line,) = capfd.readouterr().err.splitlines()
    assert "belongs to user 12345" in line
    assert not (tmp_path / "started").exists()
    assert os.listdir(tmp_path / "run") == []


@pytest.mark.parametrize("target", ["own", "missing"])
def test_a_link_is_refused(target: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "run").symlink_to(tmp_path / target)
    assert main(["wrap", "--run-dir", str(tmp_path / "run"), "--", "touch", str(tmp_path / "started")]) == 16
    assert capfd.readouterr().err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own", "run"]
    assert os.listdir(tmp_path / "own") == []


def test_what_holds_something_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o755)
    (tmp_path / "run" / "other").touch()
    with pytest.raises(RunFolderError, match="holds other files already"):
        RunFolder(tmp_path / "run")
    assert mode(tmp_path / "run") == 0o755


def test_no_link_is_written_through(tmp_path: Path) -> None:
    made = begun(tmp_path / "run")
    folder, victim = Path(made.path), tmp_path / "victim"
    victim.write_text("theirs")
    for name in ("pulse-1-1.json", "picture.png", "paused"):
        (folder / name).symlink_to(victim)
    write_heartbeat(folder / "pulse-1-1.json", Heartbeat())
    atomic_write(folder / "picture.png", b"x")
    assert not is_off(folder), "a link is nobody's switch"
    with pytest.raises(RunFolderError, match="no file of this run's owner"):
        switch(folder, off=True)
    assert victim.read_text() == "theirs"
    assert not (folder / "picture.png").is_symlink()


@ROOT
def test_a_switch_of_another_user_is_none(tmp_path: Path) -> None:
    folder = Path(begun(tmp_path / "run").path)
    switch(folder, off=True)
    assert is_off(folder)
    os.chown(folder / "paused", 12345, 12345)
    assert not is_off(folder)


def test_what_is_written_whole_is_the_owners_whatever_was_there(tmp_path: Path) -> None:
    """Pictures, pages, memory_viz files and reports quote memory."""
    (tmp_path / "old.html").write_text("old")
    assert mode(tmp_path / "old.html") == 0o644
    for name in ("old.html", "new.html"):
        assert mode(atomic_write(tmp_path / name, b"x")) == 0o600


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(place)]).returncode:
        pytest.skip("cannot mount")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> None:
    with open(place / "filler", "wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return


@ROOT
def test_a_full_disk_holds_how_the_run_ended(small: Path) -> None:
    made = begun(small / "run")
    made.note(child=1, host="here")
    fill(small)
    made.note(exit_code=3)
    assert json.loads((small / "run" / "run.json").read_text())["exit_code"] == 3
    assert os.listdir(small / "run") == ["run.json"]


@ROOT
def test_a_full_disk_holds_the_first_findings_and_the_rest_comes_with_room(
    small: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    journal = FindingsLog(small)
    journal.write("event", text="first")
    fill(small)
    for number in range(200):
        journal.write("event", text=f"{number} {'y' * 500}")
    written = journal.path.read_text().count("\n")
    assert 20 < written < 200
    assert capfd.readouterr().err.count("what it finds waits in memory") == 1
    (small / "filler").unlink()
    journal.write("end")
    lines = [json.loads(line) for line in journal.path.read_text().splitlines()]
    assert [line["text"].split(" ")[0] for line in lines[1:-1]] == [str(number) for number in range(200)]
    assert lines[-1]["kind"] == "end"
    journal.close()
    assert (journal.lost, capfd.readouterr().err) == (0, "")


def test_what_a_limit_of_the_files_size_cuts_is_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    journal = FindingsLog(tmp_path)
    journal.write("event", text="first")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        for _ in range(3):
            journal.write("finding", book=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)  # standard error is a file here, too
    journal.close()
    said = capfd.readouterr().err
    assert "3 records, 3 of them findings, could not be written" in said
    assert journal.lost == 3


def test_a_backlog_has_a_bound(tmp_path: Path) -> None:
    journal = FindingsLog(tmp_path / "gone")
    for _ in range(30):
        journal.write("event", text="x" * 100_000)
    assert journal.lost == 30 - 10
    assert sum(len(line) for _, line in journal._waiting) <= 1 << 20


def test_a_descriptor_that_the_program_closed_and_took_is_not_written_to(tmp_path: Path) -> None:
    """As a program does that becomes a daemon: it closes all descriptors, and opens its own."""
    journal = FindingsLog(tmp_path)
    journal.write("event", text="before")
    ours = [journal._file, *journal._spares]
    for number in ours:
        os.close(number)  # type: ignore[arg-type]
    theirs = [os.open(tmp_path / "theirs", os.O_CREAT | os.O_WRONLY) for _ in ours]
    try:
        assert set(theirs) == set(ours)
        journal.write("event", text="after")
        journal.close()
        assert [os.fstat(number).st_size for number in theirs] == [0] * len(theirs), "and they are open still"
    finally:
        for number in theirs:
            os.close(number)
    assert [json.loads(line)["text"] for line in journal.path.read_text().splitlines()] == ["before", "after"]


def test_records_that_were_lost_are_in_the_report(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    journal = FindingsLog(folder.path)
    journal.write("end", lost=7)
    journal.close()
    (process,) = read_run(folder.path).processes
    assert process.lost == 7
    assert any("7 records could not be written" in limit for limit in read_run(folder.path).merged().limits)
