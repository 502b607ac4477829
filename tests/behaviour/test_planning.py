"""SG102 without a declaration: host code that plans from what a graph changed, and programs that only read results."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from programs import only

import shadowgraph as sg

Program = Callable[[sg.Debugger], None]
STEPS = 4
BUGGY: dict[str, Program] = {}
CLEAN: dict[str, Program] = {}


def buggy(program: Program) -> Program:
    BUGGY[program.__name__] = program
    return program


def clean(program: Program) -> Program:
    CLEAN[program.__name__] = program
    return program


def static(debugger: sg.Debugger, values: Any, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    with debugger.guard():
        return torch.tensor(values, dtype=dtype).clone()


def captured(statement: Callable[[], object]) -> sg.HostGraph:
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        statement()
    return graph


def steps(graph: sg.HostGraph, plan: Callable[[int], object]) -> None:
    for step in range(STEPS):
        plan(step)
        graph.replay()


class Paged:
    """Index pointers of the host's that a graph overwrites, a plan of the host's, and a cache that is read by it."""

    def __init__(self, debugger: sg.Debugger, indptr: list[int], plan: list[int], lens: list[int]) -> None:
        self.victim = static(debugger, indptr)
        self.plan, self.lens = static(debugger, plan), static(debugger, lens)
        self.cache = static(debugger, [[float(i)] * 4 for i in range(64)], torch.float32)
        self.new = static(debugger, [[0.5] * 4] * len(plan), torch.float32)
        debugger.name("attn", self)

    def observe_step(self) -> torch.Tensor:
        """Writes new rows into the cache, at places that the plan says."""
        self.cache.index_copy_(0, self.plan.long(), self.new)
        return self.cache.sum(0)

    def overwrite(self) -> None:
        self.victim[1:].copy_((self.lens + 1).cumsum(0))


# -- index pointers: the read itself -------------------------------------------------------------------------------


def read_in(how: str) -> Program:
    def program(debugger: sg.Debugger) -> None:
        it = Paged(debugger, [0, 4, 9], [0, 1], [3, 6])

        def read(step: int) -> object:
            if how == "item":
                return [it.victim[i].item() for i in range(3)]
            return np.asarray(it.victim) if how == "array" else getattr(it.victim, how)()

        steps(captured(lambda: (it.overwrite(), it.observe_step())), read)

    return program


BUGGY |= {f"read_by_{how}": read_in(how) for how in ("tolist", "cpu", "numpy", "item", "array")}


@buggy
def cumsum_in_place(debugger: sg.Debugger) -> None:
    it = Paged(debugger, [0, 4, 9], [0, 1], [3, 7])
    steps(captured(lambda: (it.victim[1:].copy_(it.lens), it.victim.cumsum_(0))), lambda step: it.victim.tolist())


@buggy
def a_row_of_pointers_for_each_draft_step(debugger: sg.Debugger) -> None:
    it = Paged(debugger, [[0, 4, 9], [0, 5, 11], [0, 0, 0]], [0, 1], [3, 7])
    steps(captured(lambda: it.victim[1, 1:].copy_(it.lens.cumsum(0))), lambda step: it.victim[1].tolist())


@buggy
def only_a_prefix_is_in_use(debugger: sg.Debugger) -> None:
    it = Paged(debugger, [0, 4, 9, 0, 0, 0, 0, 0], [0, 1], [3, 7])
    steps(captured(lambda: it.victim[1:3].copy_(it.lens.cumsum(0))), lambda step: it.victim[:3].tolist())


# -- other values: what is written from them -----------------------------------------------------------------------


@buggy
def lengths_between_starts(debugger: sg.Debugger) -> None:
    it = Paged(debugger, [3, 7, 12, 13], [4, 5, 1], [3, 6, 7])

    def plan(step: int) -> None:
        starts = it.victim.tolist()
        it.plan.copy_(torch.tensor([high - low for low, high in pairwise(starts)]))

    steps(captured(lambda: (it.overwrite(), it.observe_step())), plan)


@buggy
def lengths_by_numpy_into_a_kernel(debugger: sg.Debugger) -> None:
    from shadowgraph.demos.kernels import fill_draft_indices

    it = Paged(debugger, [3, 7, 12, 13], [4, 5, 1], [3, 6, 7])
    out, source = static(debugger, [0] * 64), static(debugger, list(range(64)))

    def body() -> None:
        it.overwrite()
        fill_draft_indices[(1, 1, 1)](out, source, it.plan, 64, BLOCK=16)

    def plan(step: int) -> None:
        it.plan.copy_(torch.from_numpy(np.diff(it.victim.numpy())))

    steps(captured(body), plan)


@buggy
def a_pair_is_no_chance_the_second_time(debugger: sg.Debugger) -> None:
    it = Paged(debugger, [5, 7, 8], [2, 1], [3, 4])

    def plan(step: int) -> None:
        low, middle, high = it.victim.tolist()
        it.plan.copy_(torch.tensor([middle - low, high - middle]))
        it.lens.fill_(10 + 3 * step)

    steps(captured(lambda: (it.overwrite(), it.observe_step())), plan)


def table_program(pad: int) -> Program:
    def program(debugger: sg.Debugger) -> None:
        it = Paged(debugger, [7, 3, 9], [7, 3, 9] + [0] * pad, [3, 6, 8])
        debugger.name("source", {"source": it.lens})

        def body() -> None:
            it.victim.copy_(it.lens * 2 + it.lens // 6)
            it.cache.index_add_(0, it.victim, it.new[:3])
            it.observe_step()

        def plan(step: int) -> None:
            it.plan.zero_()
            it.plan[:3] = it.victim.cpu()
            it.lens.copy_(torch.tensor([3 + step, 6, 8]))

        steps(captured(body), plan)

    return program


BUGGY["a_block_table_that_the_graph_maps_in_place"] = table_program(0)
BUGGY["a_padded_block_table"] = table_program(2)


@buggy
def element_by_element(debugger: sg.Debugger) -> None:
    it = Paged(debugger, [3, 7, 12, 13], [4, 5, 1], [3, 6, 7])

    def plan(step: int) -> None:
        for at in range(3):
            it.plan[at] = it.victim[at + 1].item() - it.victim[at].item()

    steps(captured(lambda: (it.overwrite(), it.observe_step())), plan)


@pytest.mark.parametrize("name", BUGGY)
def test_host_code_that_plans_from_what_a_graph_overwrote(name: str) -> None:
    with sg.debug() as debugger:
        BUGGY[name](debugger)
    found = only(debugger.findings)
    assert (found.code, found.buffer.name, found.phase, found.confidence) == (
        *("SG102", "attn.victim"),
        *("replay", "medium"),
    )
    assert (found.severity, found.detected_at) == ("error", "host_read")
    assert found.reader.kind == "host"
    assert found.reader.file.endswith("test_planning.py")
    assert debugger.facts().faults == {}


@pytest.mark.parametrize("name", ["lengths_between_starts", "a_padded_block_table", "element_by_element"])
def test_the_finding_says_what_was_written_from_it(name: str) -> None:
    with sg.debug() as debugger:
        BUGGY[name](debugger)
    found = only(debugger.findings)
    assert found.reader.wrote == "attn.plan"
    assert found.message.endswith(f" without writing it, to write from it attn.plan, in replay 1 of {found.graph}")


# -- silence -------------------------------------------------------------------------------------------------------


def fed_back(read_prompt: bool, start: tuple[int, ...], how: str) -> Program:
    """The graph chooses the next tokens from the last ones; the host reads each step's, and may read the prompt's."""

    def program(debugger: sg.Debugger) -> None:
        token = static(debugger, start, torch.int64)
        weight = static(debugger, [[float(i), 1.0] for i in range(64)], torch.float32)

        def body() -> None:
            hidden = torch.nn.functional.embedding(token, weight)
            token.copy_((hidden.sum(-1) * 7 + 3).long() % 61)

        graph = captured(body)
        for step in range(STEPS):
            if read_prompt or step:
                getattr(token, how)()
            graph.replay()

    return program


for _how in ("tolist", "cpu", "numpy"):
    CLEAN[f"tokens_fed_back_{_how}"] = fed_back(True, (5, 9, 2), _how)
CLEAN |= {
    "tokens_like_index_pointers": fed_back(True, (0, 5, 9), "tolist"),
    "tokens_read_after_each_step": fed_back(False, (5, 9, 2), "tolist"),
    "one_token": fed_back(True, (7,), "tolist"),
}


@clean
def some_tokens_stay(debugger: sg.Debugger) -> None:
    """What the graph wrote is not the host's because the first step made the same tokens again."""
    token, rows = static(debugger, [0, 4, 9]), static(debugger, [[0, 4, 9], [0, 6, 9], [0, 7, 19], [0, 9, 20]])
    at = static(debugger, [0])
    graph = captured(lambda: (token.copy_(rows.index_select(0, at)[0]), at.add_(1)))
    for _ in range(STEPS):
        graph.replay()
        token.tolist()


def other_buffer(table: str) -> Program:
    """The host copies the tokens that a graph chose into the buffer that it reads next; it reads the first ones too."""

    def program(debugger: sg.Debugger) -> None:
        given, chosen = static(debugger, [5, 9, 2], torch.int64), static(debugger, [5, 9, 2], torch.int64)
        weight = static(debugger, [[float(i), 1.0] for i in range(64)], torch.float32)
        following = static(debugger, [(i * 7 + 3) % 61 for i in range(64)], torch.int64)
        seen = static(debugger, [[0.0] * 64] * 3, torch.float32)

        def body() -> None:
            if table == "integers":
                chosen.copy_(following.index_select(0, given))
                return
            if table == "embedding":
                hidden = torch.nn.functional.embedding(given, weight)
            else:
                hidden = weight.index_select(0, given) if table == "index_select" else weight[given]
            if table == "counted":
                seen.scatter_add_(1, given[:, None], torch.ones(3, 1))
            chosen.copy_((hidden.sum(-1) * 7 + 3).long() % 61)

        steps(captured(body), lambda step: given.copy_(torch.tensor(chosen.tolist())))

    return program


for _table in ("embedding", "index_select", "index", "integers", "counted"):
    CLEAN[f"tokens_by_the_host_{_table}"] = other_buffer(_table)


@clean
def positions_are_advanced_and_logged(debugger: sg.Debugger) -> None:
    positions, cache = static(debugger, [0, 4, 9]), static(debugger, [[0.0] * 4] * 32, torch.float32)
    graph = captured(lambda: (cache.index_fill_(0, positions.long(), 1.0), positions.add_(1)))
    steps(graph, lambda step: positions.tolist())


@clean
def finished_requests_are_asked_for(debugger: sg.Debugger) -> None:
    done, token = static(debugger, [True, False, False], torch.bool), static(debugger, [5, 9, 2], torch.int64)
    graph = captured(lambda: (token.copy_((token * 7 + 3) % 11), done.copy_(token == 2)))
    steps(graph, lambda step: done.any().item() or done.tolist())


@clean
def beams_are_reordered_by_the_host(debugger: sg.Debugger) -> None:
    parents, order = static(debugger, [0, 1, 2, 3]), static(debugger, [0, 1, 2, 3])
    scores = static(debugger, [4, 2, 3, 1])
    cache = static(debugger, [[float(i)] * 4 for i in range(4)], torch.float32)

    def body() -> None:
        cache.copy_(cache.index_select(0, order))
        parents.copy_((scores * 3 + order) % 4)
        scores.add_(parents)

    steps(captured(body), lambda step: order.copy_(torch.tensor(parents.tolist())))


@clean
def the_host_samples(debugger: sg.Debugger) -> None:
    token = static(debugger, [5, 9, 2], torch.int64)
    weight = static(debugger, [[float(i * j % 7) for j in range(8)] for i in range(16)], torch.float32)
    logits = static(debugger, [[0.0] * 8] * 3, torch.float32)
    graph = captured(lambda: logits.copy_(torch.nn.functional.embedding(token, weight)))
    steps(graph, lambda step: token.copy_(torch.from_numpy(np.argmax(logits.numpy(), -1))))


@clean
def lengths_are_advanced_and_scheduled_by(debugger: sg.Debugger) -> None:
    """Speculation: each request advances by what was accepted of it; the host plans the next step from the lengths."""
    lens, accepted = static(debugger, [3, 5, 9]), static(debugger, [1, 3, 2])
    indptr, cache = static(debugger, [0, 3, 8, 17]), static(debugger, [[0.0] * 4] * 256, torch.float32)

    def body() -> None:
        cache.index_fill_(0, indptr.long(), 1.0)
        lens.add_(accepted)
        accepted.copy_(lens % 3 + 1)

    steps(captured(body), lambda step: indptr[1:].copy_(torch.tensor(lens.tolist()).cumsum(0)))


@clean
def accepted_tokens_are_added_up_by_the_host(debugger: sg.Debugger) -> None:
    accepted, slots = static(debugger, [1, 3, 2]), static(debugger, [4, 9, 13])
    cache = static(debugger, [[0.0] * 4] * 256, torch.float32)
    state = static(debugger, [2, 3, 5])

    def body() -> None:
        cache.index_fill_(0, slots.long(), 1.0)
        state.mul_(3).remainder_(101)
        accepted.copy_(state % 3 + 1)

    steps(captured(body), lambda step: slots.add_(torch.tensor(accepted.tolist())))


@clean
def pointers_are_advanced_in_the_graph(debugger: sg.Debugger) -> None:
    """Multi-step decoding: each request grows by one in each step, so that pointers grow by their place."""
    indptr, grown = static(debugger, [0, 4, 9, 11]), static(debugger, [0, 1, 2, 3])
    cache = static(debugger, [[0.0] * 4] * 64, torch.float32)
    graph = captured(lambda: (cache.index_fill_(0, indptr.long(), 1.0), indptr.add_(grown)))
    steps(graph, lambda step: indptr.tolist())


@clean
def pointers_are_restored_before_each_plan(debugger: sg.Debugger) -> None:
    it = Paged(debugger, [0, 4, 9], [4, 5], [3, 6])
    original = it.victim.clone()

    def plan(step: int) -> None:
        it.victim.copy_(original)
        it.plan.copy_(torch.tensor(np.diff(it.victim.tolist())))

    steps(captured(lambda: (it.overwrite(), it.observe_step())), plan)


@clean
def what_the_graph_will_write_is_planned(debugger: sg.Debugger) -> None:
    it = Paged(debugger, [0, 4, 9], [4, 5], [3, 6])

    def plan(step: int) -> None:
        it.lens.copy_(torch.tensor([3 + step, 6]))
        it.victim[1:] = (it.lens + 1).cumsum(0)
        it.plan.copy_(torch.tensor(np.diff(it.victim.tolist())))

    steps(captured(lambda: (it.overwrite(), it.observe_step())), plan)


@clean
def pointers_that_only_the_graph_makes(debugger: sg.Debugger) -> None:
    """The host reads them after each replay: an output."""
    it = Paged(debugger, [0, 4, 9], [4, 5], [3, 6])
    graph = captured(lambda: (it.overwrite(), it.observe_step()))
    for step in range(STEPS):
        it.lens.fill_(step + 2)
        graph.replay()
        it.plan.copy_(torch.tensor(np.diff(it.victim.tolist())))


@clean
def what_is_written_next_has_nothing_to_do_with_it(debugger: sg.Debugger) -> None:
    it = Paged(debugger, [7, 3, 9], [4, 5], [3, 6])

    def plan(step: int) -> None:
        it.victim.tolist()
        it.plan.copy_(torch.tensor([step, step + 11]))

    steps(captured(lambda: (it.overwrite(), it.observe_step())), plan)


@clean
def a_value_that_is_alike_once_by_chance(debugger: sg.Debugger) -> None:
    it = Paged(debugger, [7, 3], [4], [8])

    def plan(step: int) -> None:
        it.lens.fill_(20 + step)
        it.plan.fill_(it.victim[1].item() if step == 1 else 3)

    steps(captured(lambda: (it.overwrite(), it.observe_step(), it.victim * 2)), plan)


@pytest.mark.parametrize("locate", ["auto", "all"])
@pytest.mark.parametrize("name", CLEAN)
def test_programs_that_read_what_a_graph_wrote(name: str, locate: Any) -> None:
    with sg.debug(locate=locate) as debugger:
        CLEAN[name](debugger)
    told = (*debugger.findings, *debugger.notes)
    assert told == (), [each.message for each in told]
    assert debugger.facts().faults == {}
