"""Launches that pass unobserved have rows in the launch log, and the one that was given a buffer is its culprit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from programs import guarded, only
from steady_state import QUIET, reader, sampled, touch, until_steady

import shadowgraph as sg
from shadowgraph.graphs import launch_rows
from shadowgraph.graphs.triton import cuda as triton_cuda
from shadowgraph.model.launch_log import LaunchLog
from shadowgraph.model.launch_log_reader import LaunchLogContents, LoggedLaunch, Site, contents_of
from shadowgraph.model.ranges import ByteRange
from shadowgraph.monitor import logged_culprits
from shadowgraph.monitor.logged_culprits import culprits_from
from shadowgraph.tracking import launch_recording, novelty, passing

LOOKS_APART, PERIOD = (30, 60), 4000


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> LaunchLog:
    made = LaunchLog.anonymous()
    monkeypatch.setattr(launch_recording, "current", made)
    return made


@pytest.fixture
def debugger(monkeypatch: pytest.MonkeyPatch, log: LaunchLog) -> Iterator[sg.Debugger]:
    with sampled(monkeypatch, LOOKS_APART, PERIOD) as made:
        monkeypatch.setattr(launch_recording, "current", log)
        yield made


def overrun(table: torch.Tensor) -> None:
    from shadowgraph.demos.kernels import fill

    fill[(1,)](table, 0, 9, 7, BLOCK=16)


def launches(log: LaunchLog, after: int = 0) -> list[LoggedLaunch]:
    return [row for row in contents_of(log.memory).since(after) if isinstance(row, LoggedLaunch)]


def prepare_unobserved(debugger: sg.Debugger, log: LaunchLog, graph: sg.HostGraph, *work: object) -> None:
    """Prepare a replay while replays pass, and have that replay checked at its begin, as checks in graphs do."""
    debugger.monitor.flush("check")  # what passed before is judged
    log.replay(graph.model.serial, graph.model.replays, False)
    assert passing.on, "precondition"
    for each in work:
        each()  # type: ignore[operator]
    assert passing.on, "precondition"
    passing.let(0)
    graph.replay()


def test_a_launch_that_passes_has_a_row(debugger: sg.Debugger, log: LaunchLog) -> None:
    table = guarded(debugger, 8)
    touch(table)  # its grid is known from here on
    graph = until_steady(debugger, table)
    before = log.newest
    touch(table)
    assert passing.on, "precondition"
    (row,) = launches(log, before)
    assert (row.kernel, row.grid, row.pointers) == ("fill", (1, 1, 1), ((table.data_ptr(), 0),))
    assert row.site is not None
    assert (row.site.file.rsplit("/", 1)[-1], row.site.function) == ("steady_state.py", "touch")
    assert row.thread == threading.get_ident()
    assert graph.model.replays == QUIET


def test_one_launch_alone_that_was_given_the_buffer_is_the_culprit_the_first_time(
    debugger: sg.Debugger, log: LaunchLog
) -> None:
    table, other = guarded(debugger, 8), guarded(debugger, 8)
    touch(table)
    graph = until_steady(debugger, table)
    prepare_unobserved(debugger, log, graph, lambda: touch(other), lambda: overrun(table))
    found = only(debugger.check())
    assert (found.code, found.past_end, found.phase, found.replay) == ("SG101", 4, "prepare", QUIET + 1)
    assert (found.culprit.name, found.culprit.status, found.candidates) == ("fill", "candidate", ())
    assert (found.culprit.stack[0].function, found.confidence) == ("overrun", "high")
    assert "fill wrote 4 bytes past the end" in found.message


def test_seen_again_it_is_the_same_finding_and_confirmed(debugger: sg.Debugger, log: LaunchLog) -> None:
    table = guarded(debugger, 8)
    touch(table)
    graph = until_steady(debugger, table)
    prepare_unobserved(debugger, log, graph, lambda: overrun(table))
    debugger.monitor.observation.observe_all()  # as damage does, once its evidence has arrived
    for _ in range(3):
        overrun(table)
        graph.replay()
    found = only(debugger.check())
    assert (found.culprit.name, found.culprit.status) == ("fill", "confirmed")
    assert found.replay == QUIET + 1


def test_of_several_the_latest_is_named_first(debugger: sg.Debugger, log: LaunchLog) -> None:
    table = guarded(debugger, 8)
    touch(table)
    graph = until_steady(debugger, table)
    prepare_unobserved(debugger, log, graph, lambda: overrun(table), lambda: touch(table), lambda: touch(table))
    found = only(debugger.check())
    assert [found.culprit.stack[0].function, *(each.stack[0].function for each in found.candidates)] == [
        "touch",
        "overrun",
    ]


def test_the_fixed_twin_is_silent(debugger: sg.Debugger, log: LaunchLog) -> None:
    table = guarded(debugger, 8)
    touch(table)
    graph = until_steady(debugger, table)
    prepare_unobserved(debugger, log, graph, lambda: touch(table))
    assert launches(log), "precondition"
    assert not debugger.check()


def test_what_was_launched_for_an_earlier_replay_is_not_named(debugger: sg.Debugger, log: LaunchLog) -> None:
    table = guarded(debugger, 8)
    touch(table)
    graph = until_steady(debugger, table)
    touch(table)
    end = table.data_ptr() + table.nbytes
    prepare_unobserved(debugger, log, graph, lambda: torch.frombuffer(memory_at(end), dtype=torch.uint8).fill_(1))
    found = only(debugger.check())
    assert (found.phase, found.culprit.name, found.candidates) == ("prepare", None, ())


def test_many_findings_of_one_boundary_read_the_log_once(
    debugger: sg.Debugger, log: LaunchLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [guarded(debugger, 8) for _ in range(20)]
    touch(tables[0])
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        for table in tables:
            table.add_(0)
    for _ in range(QUIET):
        graph.replay()
    reads = []

    def read(memory: bytes) -> LaunchLogContents:
        reads.append(memory)
        return contents_of(memory)

    monkeypatch.setattr(logged_culprits, "contents_of", read)
    prepare_unobserved(debugger, log, graph, *[partial(overrun, table) for table in tables])
    graph.replay()
    found = debugger.check()
    assert len(found) == len(tables), "invalid: not all of them were broken at one replay"
    assert {(each.replay, each.culprit.name) for each in found} == {(QUIET + 1, "fill")}
    assert len(reads) == 1


def memory_at(address: int) -> object:
    import ctypes

    return (ctypes.c_uint8 * 4).from_address(address)


def test_an_observed_launch_that_only_reads_is_no_candidate(debugger: sg.Debugger, log: LaunchLog) -> None:
    """Its row has the size of what it was given; whether it writes is in no row."""
    table = guarded(debugger, 8)
    graph = reader(table)
    graph.replay()
    log.launch(log.kernel("reads"), 0, 0, (1, 1, 1), [(table.data_ptr(), table.nbytes)])
    torch.frombuffer(memory_at(table.data_ptr() + table.nbytes), dtype=torch.uint8).fill_(1)
    graph.replay()
    found = only(debugger.check())
    assert (found.phase, found.culprit.name) == ("prepare", None)


def test_a_grid_beyond_all_before_is_observed(debugger: sg.Debugger, log: LaunchLog) -> None:
    from shadowgraph.demos.kernels import fill

    table = guarded(debugger, 8)
    touch(table)
    graph = until_steady(debugger, table)
    fill[(2,)](table, 0, 8, 7, BLOCK=8)
    assert not passing.on
    assert debugger.monitor.novelty.woken == 1
    graph.replay()
    assert not debugger.check()


# -- the rows themselves -----------------------------------------------------------------------------------------


def kernel() -> None:
    """Stands for a launched function."""


def other_kernel() -> None:
    """Stands for another one."""


def test_tensors_among_keywords_are_noted_and_others_are_not(log: LaunchLog) -> None:
    one, two = torch.zeros(4), torch.nn.Parameter(torch.zeros(2))
    launch_rows.note(kernel, (one, 3, None), {"out": two, "BLOCK": 4}, lambda meta: (1,), 5)
    (row,) = launches(log)
    assert row.pointers == ((one.data_ptr(), 0), (two.data_ptr(), 0))
    assert (row.kernel, row.grid, row.stream) == ("kernel", (0, 0, 0), 5)


def test_another_log_has_texts_of_its_own(log: LaunchLog, monkeypatch: pytest.MonkeyPatch) -> None:
    launch_rows.note(kernel, (), {}, (2, 3))
    other = LaunchLog.anonymous()
    other.kernel("another")
    monkeypatch.setattr(launch_recording, "current", other)
    launch_rows.note(kernel, (), {}, (2, 3))
    for each in (log, other):
        (row,) = launches(each)
        assert (row.kernel, row.grid) == ("kernel", (2, 3, 1))
        assert row.site is not None
        assert row.site.function == "test_another_log_has_texts_of_its_own"


def test_without_a_log_nothing_happens_and_faults_stay_ours(monkeypatch: pytest.MonkeyPatch, log: LaunchLog) -> None:
    from shadowgraph.common.internal_errors import internal_errors

    monkeypatch.setattr(launch_recording, "current", None)
    launch_rows.note(kernel, (), {})
    monkeypatch.setattr(launch_recording, "current", log)
    before = internal_errors.total
    launch_rows.note(object(), (), {})  # it has no name
    assert internal_errors.total == before + 1
    monkeypatch.setattr(novelty, "current", novelty.Novelty(lambda: False, lambda _: None))
    launch_rows.see_grid(kernel, (1, 2, 3, 4))
    assert internal_errors.total == before + 2
    assert launches(log) == []


class Launcher:
    """Launches nothing; called as Triton's and inductor's launchers are."""

    def __init__(self) -> None:
        self.fn, self.ran = kernel, 0

    def run(self, *args: object, **kwargs: object) -> str:
        self.ran += 1
        return "launched"


@pytest.fixture
def replays_pass() -> Iterator[None]:
    passing.let(100)
    yield
    passing.let(0)


@pytest.mark.usefixtures("replays_pass")
def test_a_launcher_of_a_device_writes_rows_while_replays_pass(log: LaunchLog) -> None:
    launcher, tensor = Launcher(), torch.zeros(4)
    run = triton_cuda._wrap_run(Launcher.run)
    assert run(launcher, tensor, grid=(3, 2), warmup=False, BLOCK=4) == "launched"
    run(launcher, tensor, grid=(3, 2), warmup=True)  # compiles
    compiled = triton_cuda._wrap_inductor(Launcher.run)
    assert compiled(launcher, tensor, 5, stream=7) == "launched"
    compiled(launcher, tensor, benchmark_run=True)
    assert launcher.ran == 4
    rows = launches(log)
    assert [(row.kernel, row.grid, row.stream) for row in rows] == [("kernel", (3, 2, 1), 0), ("kernel", (0, 0, 0), 7)]
    assert all(row.pointers == ((tensor.data_ptr(), 0),) for row in rows)
    assert {row.site.function for row in rows if row.site} == {
        "test_a_launcher_of_a_device_writes_rows_while_replays_pass"
    }


def test_a_kernel_may_name_its_parameters_as_it_likes(log: LaunchLog) -> None:
    for hooked in (triton_cuda._wrap_run(Launcher.run), triton_cuda._wrap_inductor(Launcher.run)):
        for most in (100, 0):
            passing.let(most)
            try:
                assert hooked(Launcher(), grid=(1,), warmup=False, kernel=1, original=2, launch=3) == "launched"
            finally:
                passing.let(0)


def test_a_grid_is_judged_once_by_each_debugger(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        asked: list[str] = []
        sizes = novelty.Novelty(lambda: True, asked.append)
        monkeypatch.setattr(novelty, "current", sizes)
        for _ in range(3):
            launch_rows.see_grid(kernel, (3, 2))
        assert len(asked) == 1
        launch_rows.see_grid(kernel, (3, 9))
        launch_rows.see_grid(other_kernel, (3, 2))
        assert len(asked) == 3, asked


def test_a_grid_that_was_not_judged_is_asked_about_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(novelty, "_SOURCES", 0)
    sizes = novelty.Novelty(lambda: True, lambda _: None)
    monkeypatch.setattr(novelty, "current", sizes)
    for _ in range(3):
        launch_rows.see_grid(kernel, (3, 2))
    assert sizes.dropped == 3


@pytest.mark.usefixtures("replays_pass")
def test_a_larger_grid_of_a_device_is_observed_from_that_launch_on(
    log: LaunchLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(novelty, "current", novelty.Novelty(lambda: passing.on, lambda _: passing.let(0)))
    launcher = Launcher()
    run = triton_cuda._wrap_run(Launcher.run)
    assert run(launcher, grid=lambda meta: (1,), warmup=False) == "launched"
    assert passing.on, "the launch itself finds its grid"
    assert run(launcher, grid=(3, 2), warmup=False) == "launched"
    assert not passing.on
    assert [row.grid for row in launches(log)] == [(0, 0, 0)], "the second is observed"


def logged(name: str, *pointers: tuple[int, int], line: int = 1) -> LoggedLaunch:
    return LoggedLaunch(1, name, Site("f.py", line, "f"), 0, (0, 0, 0), pointers, 1)


def test_candidates_are_launches_given_a_pointer_into_a_range() -> None:
    rows = [
        logged("before", (90, 10)),
        logged("into", (110, 0)),
        logged("over", (90, 11)),
        logged("past", (120, 0)),
        logged("into", (110, 0)),
        logged("into", (110, 0), line=2),
        logged("", (110, 0)),
    ]
    found = culprits_from(rows, [ByteRange(100, 120)])
    assert [(each.name, each.line) for each in found] == [("into", 2), ("into", 1), ("over", 1)]
    assert {each.status for each in found} == {"candidate"}
    assert culprits_from(rows, []) == ()
