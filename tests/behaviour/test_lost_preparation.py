"""SG114 on prepare blocks, and on programs that declare nothing: buggy programs, fixed twins, and silent controls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from captures import graph_over
from captures import silent as quiet
from programs import guarded, only

import shadowgraph as sg

LAYOUTS = pytest.mark.parametrize("layout", ["isolate", "faithful"])


class Runner:
    """Two graphs that read a shared index buffer, each with an output of its own."""

    def __init__(self, debugger: sg.Debugger, sizes: tuple[int, int] = (8, 8)) -> None:
        self.debugger = debugger
        self.inputs = guarded(debugger, 8)
        self.out = [guarded(debugger, size) for size in sizes]
        debugger.name("runner", self)
        self.draft, self.target = (self._captured(k, size) for k, size in enumerate(sizes))
        self.coming: list[torch.Tensor | None] = [None, None]
        self.wrong = 0

    def _captured(self, which: int, size: int) -> sg.HostGraph:
        return graph_over(lambda: torch.mul(self.inputs[:size], 2, out=self.out[which]))

    def plan_draft(self, *values: int) -> None:
        self.coming[0] = new = lens(*values)
        self.inputs[: len(values)].copy_(new)

    def plan_target(self, *values: int) -> None:
        self.coming[1] = new = lens(*values)
        self.inputs[: len(values)].copy_(new)

    def replay(self, which: int) -> None:
        (self.draft, self.target)[which].replay()
        wanted = self.coming[which]
        assert wanted is not None
        self.wrong += not torch.equal(self.out[which][: len(wanted)], wanted * 2)


def silent(debugger: sg.Debugger) -> bool:
    assert quiet(debugger), [each.message for each in (*debugger.findings, *debugger.notes)]
    return True


def lens(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def named(graph: sg.HostGraph) -> str:
    return graph.model.name


# -- declared ----------------------------------------------------------------------------------------------------------


def declared_step(runner: Runner, step: int, right: bool) -> None:
    with runner.debugger.prepare(runner.draft):
        runner.plan_draft(0, 1, 2, 3, 4, 5, 6, step)
    if right:
        runner.replay(0)
    with runner.debugger.prepare(runner.target):
        runner.plan_target(0, 1, 20, 3, 4, 5, 6, step + 50)
    if not right:
        runner.replay(0)
    runner.replay(1)


@LAYOUTS
def test_two_plans_in_one_buffer_before_two_replays(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        runner = Runner(debugger)
        for step in range(3):
            declared_step(runner, step, right=False)
        assert runner.wrong == 3, "invalid: the draft read its own plan"
        found: Any = only(debugger.findings)
        said = str(debugger.report(quiet=True))
    assert (found.code, found.severity, found.phase, found.replay) == ("SG114", "error", "prepare", 1)
    assert (found.graph, found.confidence, found.occurrences) == (named(runner.draft), "high", 3)
    assert (found.detected_at, found.buffer.name) == ("replay_begin", "runner.inputs")
    assert (found.bytes.first, found.bytes.last, found.bytes.count) == (8, 31, 8)
    assert found.bytes.ranges == ((8, 11), (28, 31))
    assert (found.culprit.name, found.culprit.status) == ("aten.copy_.default", "confirmed")
    assert found.culprit.stack[0].function == "plan_target"
    detail = found.detail
    assert (detail.lost.name, detail.lost.stack[0].function) == ("aten.copy_.default", "plan_draft")
    assert (detail.other, detail.other_replay) == (named(runner.target), 1)
    assert detail.known == "declared"
    assert found.reader.name == "aten.mul.out"
    assert "for replay 1 of" in found.message
    assert "was prepared 02 00 00 00" in said


@LAYOUTS
def test_its_fixed_twin_prepares_behind_the_other_replay(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        runner = Runner(debugger)
        for step in range(4):
            declared_step(runner, step, right=True)
        assert runner.wrong == 0
        assert silent(debugger)


def test_only_the_shared_prefix_is_lost() -> None:
    with sg.debug() as debugger:
        runner = Runner(debugger, (8, 4))
        with debugger.prepare(runner.draft):
            runner.plan_draft(0, 1, 2, 3, 4, 5, 6, 7)
        with debugger.prepare(runner.target):
            runner.plan_target(0, 10, 20, 30)
        runner.replay(1)
        runner.replay(0)
        assert runner.wrong == 1, "invalid: nothing was lost"
        found: Any = only(debugger.findings)
    assert (found.graph, found.bytes.first, found.bytes.last) == (named(runner.draft), 4, 15)


def test_a_part_of_a_preparation_is_lost() -> None:
    """The rest of it is read; both are found at one replay."""
    with sg.debug() as debugger:
        runner = Runner(debugger, (4, 8))
        with debugger.prepare(runner.draft):
            runner.plan_draft(1, 2, 3, 4)
        with debugger.prepare(runner.target):
            runner.inputs[3:].copy_(lens(*range(9, 14)))
        runner.replay(0)
        assert runner.wrong == 1, "invalid: nothing was lost"
        found: Any = only(debugger.findings)
    assert (found.graph, found.bytes.first, found.bytes.last) == (named(runner.draft), 12, 15)


# -- controls that are declared --------------------------------------------------------------------------------------


def refreshed_once(debugger: sg.Debugger, runner: Runner, step: int) -> None:
    with debugger.prepare(runner.draft):
        runner.plan_draft(*range(step, step + 8))
    runner.draft.replay()
    runner.target.replay()


def zeroed_and_copied(debugger: sg.Debugger, runner: Runner, step: int) -> None:
    for graph, plan in ((runner.draft, runner.plan_draft), (runner.target, runner.plan_target)):
        with debugger.prepare(graph):
            runner.inputs.zero_()
            plan(*range(step, step + 8))
        graph.replay()


def planned_again(debugger: sg.Debugger, runner: Runner, step: int) -> None:
    for again in range(2):
        with debugger.prepare(runner.draft):
            runner.plan_draft(*range(step + again, step + again + 8))
    runner.draft.replay()


def given_up(debugger: sg.Debugger, runner: Runner, step: int) -> None:
    """Planned for the draft, which is not replayed in every step; then it is planned anew, a part only."""
    with debugger.prepare(runner.draft):
        runner.plan_draft(step, 9, 9, 9)
    with debugger.prepare(runner.target):
        runner.plan_target(*range(step, step + 8))
    runner.target.replay()
    if step % 2:
        with debugger.prepare(runner.draft):
            runner.plan_draft(step, 1)
        runner.draft.replay()


def equal_values(debugger: sg.Debugger, runner: Runner, step: int) -> None:
    with debugger.prepare(runner.draft):
        runner.plan_draft(*range(step, step + 8))
    with debugger.prepare(runner.target):
        runner.plan_target(*range(step, step + 8))
    runner.draft.replay()
    runner.target.replay()


@pytest.mark.parametrize("step", [refreshed_once, zeroed_and_copied, planned_again, given_up, equal_values])
@LAYOUTS
def test_declared_controls_are_silent(layout: str, step: Callable[[sg.Debugger, Runner, int], None]) -> None:
    with sg.debug(layout=layout) as debugger:
        runner = Runner(debugger)
        for number in range(5):
            step(debugger, runner, number)
        assert silent(debugger)


def test_disjoint_parts_of_a_workspace_are_silent() -> None:
    with sg.debug() as debugger:
        workspace = guarded(debugger, 16)
        halves = workspace[:8], workspace[8:]
        graphs = [graph_over(lambda half=half: half * 2) for half in halves]
        for step in range(3):
            for graph, half in zip(graphs, halves, strict=True):
                with debugger.prepare(graph):
                    half.fill_(step)
            for graph in graphs:
                graph.replay()
        assert silent(debugger)


def test_scratch_that_a_graph_writes_before_it_reads_it_is_silent() -> None:
    with sg.debug() as debugger:
        scratch, inputs = guarded(debugger, 8), guarded(debugger, 8)

        def body() -> torch.Tensor:
            torch.mul(inputs, 3, out=scratch)
            return scratch + 1

        one, other = graph_over(body), graph_over(body)
        for step in range(3):
            with debugger.prepare(one):
                inputs.fill_(step)
                scratch.copy_(lens(*range(step, step + 8)))
            with debugger.prepare(other):
                scratch.copy_(lens(*range(8)))
            one.replay()
            other.replay()
        assert silent(debugger)


# -- nothing is declared -----------------------------------------------------------------------------------------------


def learnt_step(runner: Runner, step: int, right: bool) -> None:
    runner.plan_draft(0, 1, 2, 3, 4, 5, 6, step)
    if right:
        runner.replay(0)
    runner.plan_target(0, 1, 20, 3, 4, 5, 6, step + 50)
    if not right:
        runner.replay(0)
    runner.replay(1)


@pytest.mark.parametrize("before", [1, 3])
@LAYOUTS
def test_lines_that_fed_one_graph_each_until_then(layout: str, before: int) -> None:
    with sg.debug(layout=layout) as debugger:
        runner = Runner(debugger)
        for step in range(before + 2):
            learnt_step(runner, step, right=step < before)
        assert runner.wrong == 2, "invalid: the draft read its own plan"
        found: Any = only(debugger.findings)
    assert (found.code, found.severity, found.replay) == ("SG114", "error", before + 1)
    assert (found.graph, found.confidence, found.occurrences) == (named(runner.draft), "medium", 2)
    assert (found.bytes.first, found.bytes.last, found.bytes.count) == (8, 31, 8)
    assert (found.culprit.name, found.culprit.stack[0].function) == ("aten.copy_.default", "plan_target")
    detail = found.detail
    assert (detail.lost.stack[0].function, detail.other) == ("plan_draft", named(runner.target))
    assert (detail.known, detail.other_replay) == ("lines", before + 1)


def test_one_line_for_both_tells_by_the_order_of_writes_and_replays() -> None:
    with sg.debug() as debugger:
        runner = Runner(debugger)

        def write(which: int, values: torch.Tensor) -> None:
            runner.coming[which] = values
            runner.inputs.copy_(values)

        for step in range(4):
            order = (0, 1) if step < 2 else (None,)
            for which in order:
                if which is not None:
                    write(which, lens(*range(which + step, which + step + 8)))
                    runner.replay(which)
                    continue
                for each in (0, 1):
                    write(each, lens(*range(each + step, each + step + 8)))
                for each in (0, 1):
                    runner.replay(each)
        assert runner.wrong == 2, "invalid: the first graph read its own plan"
        found: Any = only(debugger.findings)
    assert (found.code, found.severity, found.graph, found.replay) == ("SG114", "error", named(runner.draft), 3)
    assert (found.detail.known, found.detail.other, found.confidence) == ("order", named(runner.target), "medium")
    assert (found.bytes.first, found.bytes.last) == (0, 31)


def test_what_the_graphs_were_captured_with_tells_of_the_lines() -> None:
    with sg.debug() as debugger:
        x, out = guarded(debugger, 4), guarded(debugger, 4)

        def plan_draft(step: int) -> None:
            x.copy_(lens(0, 1, 2, step))

        def plan_target(step: int) -> None:
            x.copy_(lens(0, 1, 2, step + 9))

        plan_draft(0)
        draft = graph_over(lambda: torch.mul(x, 2, out=out))
        plan_target(0)
        target = graph_over(lambda: torch.mul(x, 3, out=out))
        plan_draft(1)
        plan_target(1)
        draft.replay()
        assert out.tolist() == [0, 2, 4, 20], "invalid: the draft read its own plan"
        found: Any = only(debugger.findings)
        target.replay()
    assert (found.graph, found.replay, found.detail.known) == (named(draft), 1, "lines")
    assert (found.bytes.first, found.bytes.last, found.detail.lost.stack[0].function) == (12, 15, "plan_draft")


class Planner:
    """Writes a shared buffer, and one of its own."""

    def __init__(self, debugger: sg.Debugger, shared: torch.Tensor, own: torch.Tensor) -> None:
        self.shared, self.own, self.out = shared, own, guarded(debugger, 8)
        self.graph = graph_over(lambda: torch.add(shared, own, out=self.out))

    def plan(self, step: int) -> None:
        self.write(self.own, step)
        self.write(self.shared, step)

    def write(self, buffer: torch.Tensor, step: int) -> None:
        buffer.copy_(lens(*range(step, step + 8)))


@pytest.mark.parametrize("ending", ["wrong", "right", "equal"])
def test_calls_that_write_what_one_graph_alone_reads(ending: str) -> None:
    """Each planner has its own lines in common with the other; no step was ever right."""
    with sg.debug() as debugger:
        shared = guarded(debugger, 8)
        planners = [Planner(debugger, shared, guarded(debugger, 8)) for _ in range(2)]
        debugger.name("shared", shared)
        for step in range(3):
            for number, planner in enumerate(planners):
                planner.plan(step if ending == "equal" else step + 30 * number)
                if ending == "right":
                    planner.graph.replay()
            if ending != "right":
                for planner in planners:
                    planner.graph.replay()
        if ending != "wrong":
            assert silent(debugger)
            return
        assert planners[0].out[0].item() == 2 + 32, "invalid: the first graph read its own plan"
        found: Any = only(debugger.findings)
    assert (found.severity, found.graph, found.replay) == ("error", named(planners[0].graph), 1)
    assert (found.detail.known, found.detail.other) == ("calls", named(planners[1].graph))
    assert (found.buffer.name, found.confidence, found.occurrences) == ("shared", "medium", 3)


def test_kernels_that_write_and_kernels_that_read() -> None:
    """What a kernel of a graph reads is known once a whole replay has shown what it stores."""
    from shadowgraph.demos.kernels import fill, scatter_pages

    with sg.debug() as debugger:
        x, outs = guarded(debugger, 8), [guarded(debugger, 8) for _ in range(2)]
        graphs = [graph_over(lambda out=out: scatter_pages[(1,)](out, x, 8, 8, True, BLOCK=8)) for out in outs]
        for step in range(4):
            fill[(1,)](x, 0, 8, step, BLOCK=16)
            if step < 3:
                graphs[0].replay()
            fill[(1,)](x, 0, 8, step + 50, BLOCK=16)
            if step == 3:
                graphs[0].replay()
            graphs[1].replay()
        found: Any = only(debugger.findings)
    assert (found.graph, found.replay, found.detail.known) == (named(graphs[0]), 4, "lines")
    assert (found.culprit.name, found.culprit.status, found.bytes.count) == ("fill", "confirmed", 32)


def test_without_a_right_step_a_second_sighting_is_a_note() -> None:
    with sg.debug() as debugger:
        runner = Runner(debugger)
        for step in range(3):
            learnt_step(runner, step, right=False)
        assert runner.wrong == 3, "invalid: the draft read its own plan"
        assert debugger.findings == ()
        found: Any = only(debugger.notes)
    assert (found.code, found.severity, found.replay, found.confidence) == ("SG114", "note", 2, "low")
    assert found.detail.known == "count"


def shared(debugger: sg.Debugger, runner: Runner, step: int) -> None:
    runner.inputs.copy_(lens(*range(step, step + 8)))
    runner.draft.replay()
    runner.target.replay()


def reset_and_copied(debugger: sg.Debugger, runner: Runner, step: int) -> None:
    runner.inputs.zero_()
    runner.inputs.copy_(lens(*range(step, step + 8)))
    runner.draft.replay()
    runner.target.replay()


def defaults_and_copied(debugger: sg.Debugger, runner: Runner, step: int) -> None:
    runner.inputs.copy_(lens(*range(8)))
    runner.inputs.copy_(lens(*range(step, step + 8)))
    runner.draft.replay()
    runner.target.replay()


def corrected_in_place(debugger: sg.Debugger, runner: Runner, step: int) -> None:
    runner.inputs.copy_(lens(*range(step, step + 8)))
    runner.inputs.add_(1)
    runner.draft.replay()
    runner.target.replay()


def corrected_in_part(debugger: sg.Debugger, runner: Runner, step: int) -> None:
    runner.inputs.copy_(lens(*range(step, step + 8)))
    runner.inputs[:3].copy_(lens(step + 5, step + 6, step + 7))
    runner.draft.replay()
    runner.target.replay()


def in_turns(debugger: sg.Debugger, runner: Runner, step: int) -> None:
    learnt_step(runner, step, right=True)


def cancelled(debugger: sg.Debugger, runner: Runner, step: int) -> None:
    """The draft is planned in each step, and cancelled in some; behind the target it is planned again."""
    runner.plan_draft(*range(step, step + 8))
    if step % 3 != 2:
        runner.draft.replay()
    runner.plan_target(*range(step + 1, step + 9))
    runner.target.replay()
    if step % 3 == 2:
        runner.plan_draft(*range(step + 2, step + 10))
        runner.draft.replay()


def equal_in_some_steps(debugger: sg.Debugger, runner: Runner, step: int) -> None:
    runner.plan_draft(*range(step, step + 8))
    if step < 2:
        runner.draft.replay()
    runner.plan_target(*range(step, step + 8))
    if step >= 2:
        runner.draft.replay()
    runner.target.replay()


def cancelled_then_shared(debugger: sg.Debugger, runner: Runner, step: int) -> None:
    """A line that only one graph has read so far refreshes both, behind a plan that was cancelled."""
    if step < 4:
        runner.plan_draft(*range(step, step + 8))
        if step < 2:
            runner.draft.replay()
        runner.plan_target(*range(step + 1, step + 9))
        runner.target.replay()
        return
    runner.inputs.copy_(lens(*range(step, step + 8)))
    if step > 5:
        runner.draft.replay()
    runner.target.replay()


def read_in_between(debugger: sg.Debugger, runner: Runner, step: int) -> None:
    """Eager code reads the first of the two, such as a prefill."""
    runner.inputs.copy_(lens(*range(step, step + 8)))
    torch.add(runner.inputs, 1, out=runner.out[0])
    runner.inputs.copy_(lens(*range(step + 9, step + 17)))
    runner.draft.replay()
    runner.target.replay()


def read_by_the_host_in_between(debugger: sg.Debugger, runner: Runner, step: int) -> None:
    runner.inputs.copy_(lens(*range(step, step + 8)))
    assert runner.inputs.tolist()[0] == step
    runner.inputs.copy_(lens(*range(step + 9, step + 17)))
    runner.draft.replay()
    runner.target.replay()


def one_graph_only(debugger: sg.Debugger, runner: Runner, step: int) -> None:
    runner.plan_draft(*range(step, step + 8))
    runner.plan_draft(*range(step + 3, step + 11))
    runner.draft.replay()
    if step % 2:
        runner.plan_target(*range(step, step + 8))
        runner.target.replay()


@pytest.mark.parametrize(
    "step",
    [
        shared,
        reset_and_copied,
        defaults_and_copied,
        corrected_in_place,
        corrected_in_part,
        in_turns,
        cancelled,
        equal_in_some_steps,
        cancelled_then_shared,
        read_in_between,
        read_by_the_host_in_between,
        one_graph_only,
    ],
)
@LAYOUTS
def test_controls_that_declare_nothing_are_silent(layout: str, step: Callable[..., None]) -> None:
    with sg.debug(layout=layout) as debugger:
        runner = Runner(debugger)
        for number in range(7):
            step(debugger, runner, number)
        assert silent(debugger)


# -- one graph ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("marked", [True, False])
def test_a_step_prepared_before_the_one_in_front_of_it_has_replayed(marked: bool) -> None:
    with sg.debug() as debugger:
        runner = Runner(debugger)

        def prepare(step: int) -> None:
            with debugger.prepare(runner.draft if marked else None):
                runner.inputs.copy_(lens(*range(step, step + 8)))

        for step in range(3):
            prepare(step)
            runner.draft.replay()
        prepare(3)
        prepare(4)
        runner.draft.replay()
        assert runner.out[0].tolist() == [2 * each for each in range(4, 12)], "invalid: it read its own preparation"
        assert silent(debugger)
        runner.draft.replay()
        found: Any = only(debugger.findings if marked else debugger.notes)
    assert (found.code, found.replay, found.confidence) == ("SG114", 4, "medium" if marked else "low")
    assert (found.graph, found.detail.other, found.detail.other_replay) == (*2 * (named(runner.draft),), 5)
    assert "for its replay 5 before" in found.message


def test_a_graph_that_replays_on_is_silent() -> None:
    with sg.debug() as debugger:
        runner = Runner(debugger)
        for step in range(4):
            for again in range(2):
                runner.inputs.copy_(lens(*range(step + again, step + again + 8)))
            runner.draft.replay()
            runner.draft.replay()
        assert silent(debugger)


# -- padded rows that keep old values ----------------------------------------------------------------------------------


def steps_of_a_server(runner: Runner, target: list[int] | None) -> None:
    """A step too large for graphs, one for the draft's graph, and one for the target's, whose padded rows keep what was
    there; with None nothing is refreshed for it."""
    for step in range(2):
        runner.plan_draft(0, 1, 2, 3, 4, 5, 6, step + 9)
        runner.replay(0)
        runner.plan_target(3, 4, 5, step + 70)
        runner.replay(1)
    runner.plan_draft(9, 8, 7, 6, 5, 4, 3, 2)  # read by eager code alone
    runner.plan_draft(1, 3, 5, 7, 9, 11, 13, 15)
    runner.replay(0)
    if target is not None:
        runner.plan_target(*target)
    else:
        runner.coming[1] = lens(9, 8, 7, 6)
    runner.replay(1)


@LAYOUTS
def test_rows_that_are_left_over_from_another_step_are_no_lost_preparation(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        runner = Runner(debugger, (8, 4))
        steps_of_a_server(runner, [30, 31, 32])
        assert runner.out[1].tolist() == [60, 62, 64, 14], "invalid: the padded row is not left over"
        assert [each.code for each in (*debugger.findings, *debugger.notes) if each.code == "SG114"] == []


@LAYOUTS
def test_without_a_refresh_of_its_own_it_stays_one(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        runner = Runner(debugger, (8, 4))
        steps_of_a_server(runner, None)
        assert runner.wrong == 1, "invalid: the target was right"
        assert "SG114" in {each.code for each in (*debugger.findings, *debugger.notes)}


@LAYOUTS
def test_a_block_whose_graph_is_known_later(layout: str) -> None:
    """What a server launches before it has chosen the graph of a step counts for that graph, or for none."""
    with sg.debug(layout=layout) as debugger:
        runner = Runner(debugger)
        adapter = debugger.adapter
        drafts, targets = runner.draft.model, runner.target.model

        def prepare(model: Any, plan: Callable[..., None], *values: int) -> None:
            block = adapter.prepare(None)
            plan(*values)
            adapter.prepares(block, model)
            assert adapter.preparing.graph is model
            block.end()

        for step in range(3):
            prepare(None, runner.plan_target, 9, 8, 7, 6, 5, 4, 3, step)  # for eager code
            prepare(drafts, runner.plan_draft, 0, 1, 2, 3, 4, 5, 6, step)
            runner.replay(0)
            prepare(targets, runner.plan_target, 5, 6, 7, 8, 9, 1, 2, step)
            runner.replay(1)
        assert silent(debugger)
        prepare(drafts, runner.plan_draft, 0, 1, 2, 3, 4, 5, 6, 50)
        prepare(targets, runner.plan_target, 5, 6, 7, 8, 9, 1, 2, 60)
        runner.replay(0)
        runner.replay(1)
        assert runner.wrong == 1, "invalid: the draft was right"
        found = only(debugger.findings)
    assert (found.code, found.graph, found.detail.known) == ("SG114", named(runner.draft), "declared")
