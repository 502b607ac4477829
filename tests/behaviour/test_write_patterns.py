"""SG103 in the steady state: writes that look like forgotten padding have the host observed, and the next are found."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from padding import Batch, told
from programs import only
from steady_state import sampled
from support.compiled_observer import cache_with_the_library

import shadowgraph as sg
from shadowgraph.checks.stale_rows import write_patterns
from shadowgraph.checks.stale_rows.write_patterns import WritePatterns
from shadowgraph.demos.a4_padding import FULL, ONE, Runner
from shadowgraph.demos.device import Buffers, HostDevice
from shadowgraph.graphs.observer.observer import observer
from shadowgraph.model.launch_log_reader import contents_of
from shadowgraph.model.recorded_files import LAUNCHES, in_folder
from shadowgraph.tracking import launch_recording, passing
from shadowgraph.wrap.folder.last_check import read_last_check

MANY = 1000


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cache_with_the_library(tmp_path_factory)


@pytest.fixture
def compiled(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.delenv("CXX", raising=False)


@pytest.fixture
def debugger(compiled: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    """One that is soon steady for as long as a test takes, and looks closer at few replays."""
    with sampled(monkeypatch, (20, 40), 100_000, operators="observer") as made:
        assert observer.wait(60), observer.sentence()
        yield made


def patterns_of(debugger: sg.Debugger) -> WritePatterns:
    return debugger.monitor.write_patterns


class Server:
    """The runner of case A4."""

    def __init__(self, debugger: sg.Debugger, fixed: bool) -> None:
        self.debugger, device = debugger, HostDevice()
        with debugger.guard():
            self.runner = Runner(device, Buffers(device.device, 0), fixed)
        debugger.name("runner", self.runner)
        self.runner.capture()
        self.graph = self.runner.graph

    def step(self, requests: Sequence[int] = FULL) -> None:
        with self.debugger.prepare(self.graph):
            self.runner.prepare(requests)
        self.graph.replay()

    def steps(self, count: int, *kinds: Sequence[int]) -> None:
        for at in range(count):
            self.step(kinds[at % len(kinds)])


def quiet(debugger: sg.Debugger, step: Callable[[], None], count: int = 200) -> None:
    for _ in range(count):
        step()
    assert passing.on, "invalid: launches are observed still"
    assert debugger.check() == ()


# -- what must be found ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fixed", [False, True])
def test_padding_that_is_forgotten_first_after_long(debugger: sg.Debugger, fixed: bool) -> None:
    server = Server(debugger, fixed)
    quiet(debugger, server.step, MANY)
    server.steps(100, ONE, FULL)
    found = debugger.check()
    assert (patterns_of(debugger).stirs > 0) is not fixed
    assert told(debugger) == ([] if fixed else [("SG103", "runner.req_pool_indices")])
    if not fixed:
        first = only(found)
        assert (first.phase, first.graph) == ("prepare", server.graph.model.name)
        assert MANY < first.replay <= MANY + 60
        assert [(rows.first, rows.last, rows.replay) for rows in first.detail.stale] == [(1, 3, first.replay - 1)]
        assert first.culprit.name == "aten.copy_.default"
        assert set(first.detail.padded) == {"runner.seq_lens", "runner.out_cache_loc"}
    else:
        assert passing.on, "the twin is no news"


def test_one_padded_step_among_full_ones_is_enough_to_look(debugger: sg.Debugger) -> None:
    """It is no finding by itself: its bytes are gone when it is suspected."""
    server = Server(debugger, False)
    quiet(debugger, server.step, MANY)
    server.step(ONE)
    for _ in range(60):
        server.step()
        if not passing.on and patterns_of(debugger).stirs:
            break
    assert patterns_of(debugger).stirs == 1
    assert debugger.check() == ()
    for requests in (FULL, ONE, FULL, ONE):
        server.step(requests)
    assert only(debugger.check()).replay in (server.graph.model.replays, server.graph.model.replays - 2)


def test_a_server_that_pads_for_long_and_then_has_a_full_batch(debugger: sg.Debugger) -> None:
    """The padded steps hold zeros until the first full one has come."""
    server = Server(debugger, False)
    quiet(debugger, lambda: server.step(ONE), MANY)
    server.steps(100, FULL, ONE)
    assert only(debugger.check()).buffer.name == "runner.req_pool_indices"


def test_without_the_observer_nothing_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    with sampled(monkeypatch, (20, 40), 100_000) as debugger:
        server = Server(debugger, False)
        quiet(debugger, server.step)
        server.steps(100, ONE, FULL)
        assert debugger.check() == ()
        assert not patterns_of(debugger).active
        assert "undeclared SG102, SG103, SG105, SG108, SG110, SG111, SG113, SG114, SG115, SG116 and reads" in str(
            debugger.report(quiet=True)
        ).replace("\n", " ")


def test_the_report_says_what_is_known(debugger: sg.Debugger) -> None:
    server = Server(debugger, False)
    quiet(debugger, server.step)
    said = " ".join(str(debugger.report(quiet=True)).split())
    resting = "SG102, SG105, SG108, SG110, SG111, SG113, SG114, SG115, SG116"
    assert f"undeclared {resting} and reads by the host are known of these only, and SG103 of these and where" in said
    server.steps(100, ONE, FULL)
    said = " ".join(str(debugger.report(quiet=True)).split())
    assert "rows looked stale (SG103) in replays that passed unobserved, " in said


@pytest.mark.parametrize("fixed", [False, True])
def test_of_two_threads_each_is_judged_by_its_own_writes(debugger: sg.Debugger, fixed: bool) -> None:
    """One pads its steps rightly, the other forgets it after long; their steps interleave, and their operators too."""
    servers = Server(debugger, True), Server(debugger, fixed)
    server = servers[1]

    def serve(server: Server, after: int) -> None:
        for at in range(after + 200):
            server.step(FULL if at < after or at % 2 else ONE)

    threads = [
        threading.Thread(target=serve, args=(each, after)) for each, after in zip(servers, (0, 300), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    patterns = patterns_of(debugger)
    assert (patterns.stirs > 0) is not fixed
    (where,) = {start for _, start in patterns._reasons} or {0}
    assert where == (0 if fixed else server.runner.req_pool_indices.data_ptr())
    assert len(patterns._spans.groups) == 2, "what one thread writes is no pattern of the other"
    assert debugger.facts().faults == {}


def test_where_each_replay_is_looked_at_the_writes_are_judged_too(
    compiled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sampled(monkeypatch, (1, 1), 100_000, operators="observer") as debugger:
        assert observer.wait(60)
        server = Server(debugger, False)
        for _ in range(100):
            server.step()
        assert debugger.monitor.observation.unobserved
        server.steps(100, ONE, FULL)
        assert only(debugger.check()).code == "SG103"


def test_operators_that_pass_are_in_the_launch_log(debugger: sg.Debugger, tmp_path: Path) -> None:
    """What a report has of a process that was killed then."""
    server = Server(debugger, True)
    for _ in range(100):
        server.step()
    assert passing.on, "invalid: launches are observed still"
    log, buffer = launch_recording.current, server.runner.req_pool_indices
    assert log is not None
    before = log.newest
    buffer.fill_(3)
    Path(in_folder(tmp_path, "1-2", LAUNCHES)).write_bytes(bytes(log.memory))
    logged = [each for each in contents_of(log.memory).operators(before) if each.pointers[0][0] == buffer.data_ptr()]
    assert [each.kernel for each in logged] == ["aten.fill_.Scalar"]
    last = read_last_check(tmp_path, "", "1-2")
    launches = [each for each in last.launches if each.kernel == "aten.fill_.Scalar"]
    name = contents_of(log.memory).buffers[buffer.data_ptr()].name
    assert [(each.file, each.given) for each in launches] == [("", (name,))]


# -- what must be silent ---------------------------------------------------------------------------------------------


def test_rows_refreshed_one_by_one_are_no_reason(debugger: sg.Debugger) -> None:
    """A persistent batch, and lengths that are written in full: nothing shows which rows are padding."""
    batch = Batch(debugger)
    batch.step([2, 3, 5, 7])
    for at in range(600):
        row = at * 7 % 4
        batch.slots[row : row + 1].copy_(torch.tensor([at]))
        batch.replay()
    assert patterns_of(debugger).stirs == 0
    assert passing.on
    assert told(debugger) == []


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_a_mask_is_no_reason(debugger: sg.Debugger, dtype: torch.dtype) -> None:
    """It is there so that padded rows do not matter. One of numbers is known for a mask once it was read."""
    with debugger.guard():
        mask, slots = torch.zeros(4, dtype=dtype), torch.zeros(4, dtype=torch.int64)
    debugger.name("batch", {"mask": mask, "slots": slots})
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        out = slots[:4] * mask[:4]
    for at in range(600):
        count = 4 if at % 2 else 1
        mask.zero_()
        mask[:count].copy_(torch.ones(count))
        slots[:count].copy_(torch.full((count,), at + 1))
        graph.replay()
    assert patterns_of(debugger).stirs == 0
    assert passing.on
    assert debugger.check() == ()
    del out


def test_what_is_answered_with_zeros_has_the_host_observed_ever_more_seldom(debugger: sg.Debugger) -> None:
    """Full batches hold slot 0 in these rows, which is what padding would write."""
    batch, watched, most = Batch(debugger), 0, 2000
    for at in range(most):
        batch.step([at % 5 + 1, 0, 0, 0] if at % 2 else [6])
        watched += not debugger.monitor.observation.unobserved
    assert told(debugger) == []
    assert 0 < patterns_of(debugger).stirs < write_patterns.OFTEN, "one pattern, which has less than its input"
    assert watched < most / 10
    assert passing.on


def test_new_patterns_of_one_input_have_the_host_observed_ever_more_seldom(debugger: sg.Debugger) -> None:
    batch, most = Batch(debugger, 64, rows=64), 3000
    for at in range(most):
        count = 1 + at * 29 % 63
        batch.step([0] * (64 if at % 2 else count), padded_to=64)
    assert told(debugger) == []
    assert 0 < patterns_of(debugger).stirs <= write_patterns.OFTEN + 8


@pytest.mark.parametrize("policy", ["dont_care", "refresh"])
def test_declarations_are_heeded(debugger: sg.Debugger, policy: str) -> None:
    """Rows that do not matter are no reason; rows that must be refreshed are one without a witness."""
    batch = Batch(debugger)
    debugger.padding(batch.slots, policy)
    for _ in range(200):
        batch.step([2, 3, 5, 7])
    assert passing.on
    for at in range(100):
        if policy == "dont_care":
            batch.step([6] if at % 2 else [2, 3, 5, 7])
        else:
            batch.slots[: 1 if at % 2 else 4].copy_(torch.tensor([6] if at % 2 else [2, 3, 5, 7]))
            batch.replay()
    assert told(debugger) == ([] if policy == "dont_care" else [("SG103", "batch.slots")])
    assert (patterns_of(debugger).stirs > 0) is (policy == "refresh")


def test_a_declaration_in_the_steady_state_counts_from_the_next_look(debugger: sg.Debugger) -> None:
    batch = Batch(debugger)
    for at in range(300):
        batch.step([at % 5, 0, 0, 0] if at % 2 else [6])
    before = patterns_of(debugger).stirs
    assert before
    debugger.padding(batch.slots, "dont_care")
    for at in range(2000):
        batch.step([at % 5, 0, 0, 0] if at % 2 else [6])
    assert patterns_of(debugger).stirs == before


# -- limits ----------------------------------------------------------------------------------------------------------


def test_lost_rows_are_no_writes_that_were_not_made(debugger: sg.Debugger) -> None:
    """Of a long step the observer keeps the end; what the beginning refreshed is not known, nor suspected."""
    server, other = Server(debugger, True), torch.zeros(4)
    for at in range(400):
        with debugger.prepare(server.graph):
            server.runner.prepare(FULL if at % 2 else ONE)
            for _ in range(200):
                other.zero_()
        server.graph.replay()
    patterns = patterns_of(debugger)
    assert patterns.stirs == 0
    assert patterns.skipped > 50
    assert f"{patterns.skipped} replays that passed could not be judged for SG103" in str(
        debugger.report(quiet=True)
    ).replace("\n", " ")
    assert told(debugger) == []


def test_faults_are_found_beside_lost_rows(debugger: sg.Debugger) -> None:
    server, other = Server(debugger, False), torch.zeros(4)
    quiet(debugger, server.step)
    for at in range(200):
        for _ in range(200):
            other.zero_()
        server.step(FULL if at % 2 else ONE)
    assert only(debugger.check()).code == "SG103"


def test_graphs_that_end_leave_nothing_behind(debugger: sg.Debugger) -> None:
    for _ in range(3):
        server = Server(debugger, False)
        for _ in range(150):
            server.step()
        assert passing.on
        gone = server.graph.model.serial
        del server
    last = Server(debugger, False)
    quiet(debugger, last.step)
    patterns = patterns_of(debugger)
    assert gone not in patterns._spans.of_graph
    assert len(patterns._written) == 3, "the inputs of the last one"
    last.steps(100, ONE, FULL)
    assert only(debugger.check()).graph == last.graph.model.name


def test_what_is_remembered_is_bounded(debugger: sg.Debugger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_patterns, "KNOWN", 20)
    batch = Batch(debugger, 64, rows=64)
    most = 0
    for at in range(2000):
        batch.step([5] * (1 + at * 29 % 63), padded_to=64, zero=True)
        most = max(most, len(patterns_of(debugger)._memory), len(patterns_of(debugger)._states))
    assert 10 < most <= 20
    assert patterns_of(debugger).stirs == 0


def test_a_steady_server_is_judged_once(debugger: sg.Debugger, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(debugger, True)
    for at in range(300):
        server.step(FULL if at % 3 else ONE)
    learnt: list[int] = []
    learn = WritePatterns._learn
    monkeypatch.setattr(WritePatterns, "_learn", lambda *given: learnt.append(1) or learn(*given))
    for at in range(300):
        server.step(FULL if at % 3 else ONE)
    assert passing.on
    assert learnt == []


def test_a_fault_of_ours_is_counted_and_the_next_look_begins_anew(
    debugger: sg.Debugger, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(debugger, False)
    quiet(debugger, server.step)
    with monkeypatch.context() as patch:
        patch.setattr(write_patterns, "patterns", lambda *_: 1 / 0)
        for _ in range(60):
            server.step()
    faults = debugger.facts().faults
    assert list(faults) == ["patterns of writes: ZeroDivisionError: division by zero"]
    server.steps(100, ONE, FULL)
    assert only(debugger.check()).code == "SG103"
    assert debugger.facts().faults == faults
