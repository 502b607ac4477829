"""The pulse of a process and the switch: when they are looked at, what they cost, what they say."""

from __future__ import annotations

import ctypes
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from run_folders import made_folder, with_process

import shadowgraph as sg
from shadowgraph import HostGraph, host_graph
from shadowgraph.commands.main import main
from shadowgraph.common.errors import RunFolderError
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.common.version import VERSION
from shadowgraph.wrap.folder.heartbeats import Heartbeat, read_heartbeat, write_heartbeat
from shadowgraph.wrap.folder.injection_config import InjectionConfig
from shadowgraph.wrap.folder.reader import read_run
from shadowgraph.wrap.folder.run_folder import RunFolder
from shadowgraph.wrap.status.heartbeat_writer import HeartbeatWriter
from shadowgraph.wrap.status.pause_file import switch


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Program:
    """A guarded buffer, a graph that reads it, and a beat that follows its debugger."""

    def __init__(self, folder: Path, debugger: sg.Debugger) -> None:
        self.clock = Clock()
        self.file = folder / "pulse-1-1.json"
        self.beat = HeartbeatWriter(str(folder), self.file, self.clock)
        with debugger.guard():
            self.x = torch.zeros(16, dtype=torch.int32)
        self.graph = HostGraph()
        with host_graph(self.graph):
            self.out = self.x.sum()
        self.beat.follow(debugger, 1)

    def replay(self, seconds: float = 0.0, past_end: int = 0) -> Heartbeat | None:
        """Let time pass, write behind the buffer, replay; the pulse then."""
        self.clock.now += seconds
        ctypes.memset(self.x.data_ptr() + 64, 1, past_end)
        self.graph.replay()
        return read_heartbeat(self.file)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made_folder(tmp_path / "run")


@pytest.fixture
def program(folder: Path) -> Iterator[Program]:
    before = internal_errors.counts
    with sg.debug(overhead_percent=99.0) as debugger:
        yield Program(folder, debugger)
    assert internal_errors.counts == before, "of this process, which other tests share"


def test_a_pulse_at_the_first_replay_and_then_every_five_seconds(program: Program) -> None:
    first = program.replay()
    assert first is not None
    assert (first.replays, first.checked, first.every) == (1, 0, 1)
    assert program.replay() == program.replay(4.9) == first
    second = program.replay(1.0)  # it looks once a second whether it is time
    assert second is not None
    assert (second.replays, second.checked) == (4, 3)
    assert second.overhead is not None
    assert second.coverage == sg.current().coverage()  # type: ignore[union-attr]


def test_the_file_does_not_grow(program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowgraph.wrap.status.heartbeat_writer._HISTORY", 8)
    program.replay()
    for _ in range(8):
        program.replay(5.0)
    size = program.file.stat().st_size
    for _ in range(50):
        pulse = program.replay(5.0, past_end=4)
    assert program.file.stat().st_size < size + 100
    assert pulse is not None
    assert 4 <= len(pulse.history) <= 8
    assert pulse.history[0][1] == 1, "it goes back to the first replay"
    assert sorted(p.name for p in folder.iterdir()) == [".run.json.new", "pulse-1-1.json", "run.json"]


def test_how_often_a_finding_was_seen(program: Program) -> None:
    for _ in range(6):
        program.replay(past_end=8)
    pulse = program.replay(5.0)
    assert pulse is not None
    (finding,) = sg.current().findings  # type: ignore[union-attr]
    assert finding.occurrences == 6
    assert pulse.occurrences == ((1, finding.id, 6),)


def test_switched_off_nothing_is_judged_until_it_is_on_again(program: Program, folder: Path) -> None:
    debugger = sg.current()
    assert debugger is not None
    program.replay()
    assert switch(folder, off=True)
    assert not switch(folder, off=True)
    program.replay(1.0)
    assert debugger.monitor.paused
    pulse = program.replay(4.0, past_end=8)
    assert pulse is not None
    assert (pulse.pauses, pulse.off_since is not None, pulse.checked) == (1, True, 1)
    assert switch(folder, off=False)
    assert not switch(folder, off=False)
    pulse = program.replay(6.0)
    assert not debugger.monitor.paused
    assert pulse is not None
    assert (pulse.pauses, pulse.off, pulse.off_since) == (1, 10.0, None)
    assert not debugger.findings  # done meanwhile
    program.replay(past_end=12)
    assert [finding.past_end for finding in debugger.findings] == [12]


def test_what_happened_before_the_switch_is_judged(program: Program, folder: Path) -> None:
    program.replay()
    switch(folder, off=True)
    program.replay(1.0, past_end=8)
    assert [finding.past_end for finding in sg.current().findings] == [8]  # type: ignore[union-attr]


def test_between_two_looks_the_switch_is_not_asked(program: Program, folder: Path) -> None:
    program.replay()
    switch(folder, off=True)
    program.replay(0.9)
    assert not sg.current().monitor.paused  # type: ignore[union-attr]


def test_what_the_program_has_paused_itself_stays_so(program: Program, folder: Path) -> None:
    debugger = sg.current()
    assert debugger is not None
    debugger.pause()
    program.replay()
    program.replay(5.0)
    assert debugger.monitor.paused


def test_a_childs_beat_ends_the_pause_that_it_was_born_in(program: Program, folder: Path) -> None:
    switch(folder, off=True)
    program.replay()
    debugger = sg.current()
    assert debugger is not None
    assert debugger.monitor.paused
    child = program.beat.forked(folder / "pulse-2-2.json")
    child.follow(debugger, 1)
    switch(folder, off=False)
    program.replay()
    assert not debugger.monitor.paused
    pulse = read_heartbeat(folder / "pulse-2-2.json")
    assert pulse is not None
    assert pulse.pauses == 0


def test_a_second_debugger_adds_to_the_sums(folder: Path) -> None:
    with sg.debug() as debugger:
        program = Program(folder, debugger)
        for _ in range(3):
            program.replay()
    program.beat.leave(debugger)
    with sg.debug() as debugger:
        other = Program(folder, debugger)
        program.beat.follow(debugger, 2)
        other.replay()
    program.beat.leave(debugger)
    pulse = read_heartbeat(program.file)
    assert pulse is not None
    assert (pulse.replays, pulse.checked, pulse.overhead) == (4, 4, None)


def test_one_replay_in_three(folder: Path) -> None:
    with sg.debug(every=3) as debugger:
        program = Program(folder, debugger)
        for replay in range(1, 9):
            program.replay(past_end=8 if replay == 5 else 0)
        assert debugger.monitor.budget.checked == 3  # 1, 4 and 7
        (finding,) = debugger.findings
        assert (finding.past_end, finding.replay) == (8, 7)
        report = str(debugger.report(quiet=True))
    assert "limit: checks on one replay in 3 of each graph, as asked; a finding's phase and replay may be off" in report


def test_a_folder_that_is_gone_is_no_fault(program: Program, folder: Path) -> None:
    program.replay()
    program.file.unlink()
    shutil.rmtree(folder)
    assert program.replay(5.0) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"replays":"many"}', b"\xff", b"[" * 100_000])
def test_a_damaged_pulse_is_none(content: bytes, folder: Path) -> None:
    path = with_process(folder)
    path.with_name("pulse" + path.stem.removeprefix("findings") + ".json").write_bytes(content)
    (process,) = read_run(folder).processes
    assert process.pulse is None
    assert len(process.findings) == 1


def test_a_pulse_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    write_heartbeat(tmp_path / "missing" / "pulse-1-1.json", Heartbeat())
    assert list(tmp_path.iterdir()) == []


def test_the_report_says_for_how_long_checking_was_off(folder: Path) -> None:
    with_process(folder, Heartbeat(time=50.0, replays=9, pauses=2, off=12.5, off_since=40.0))
    (limit, *_) = read_run(folder).merged().limits
    assert "checking was switched off 2 times, for 22.5 s, and was off when it was last heard of" in limit


def test_the_verbs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pause", str(folder)]) == 0
    assert (folder / "paused").stat().st_mode & 0o077 == 0
    assert main(["pause", str(folder)]) == 0
    assert main(["resume", str(folder)]) == 0
    assert not (folder / "paused").exists()
    assert main(["resume", str(folder)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == [
        "checking is off", "checking was off already", "checking is on", "checking was on already",
    ]  # fmt: skip


def test_no_run_and_a_run_that_has_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pause", str(tmp_path)]) == RunFolderError.exit_code
    over = RunFolder(tmp_path / "over")
    over.begin(["true"], InjectionConfig(over.path), VERSION)
    over.note(exit_code=0)
    assert main(["pause", over.path]) == RunFolderError.exit_code
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "is no run folder" in said[0]
    assert "this run has ended" in said[1]
    assert json.loads((tmp_path / "over" / "run.json").read_text())["exit_code"] == 0
    assert not (tmp_path / "over" / "paused").exists()
