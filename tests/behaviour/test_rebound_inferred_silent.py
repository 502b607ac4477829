"""Programs that look like a rebound input and are none: SG108 is silent on them where nothing is declared."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from captures import capture, graph_over, silent
from playing import played
from programs import guarded

import shadowgraph as sg
from shadowgraph.graphs.dispatch import operand_notes

SLOTS = torch.arange(64.0)


class Owner:
    """Whatever holds a tensor."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def numbers(step: int, rows: int = 4) -> torch.Tensor:
    return torch.arange(rows) * (step % 5 + 1) + step


def zeros(rows: int = 4) -> torch.Tensor:
    return torch.zeros(rows, dtype=torch.int64)


def filled(step: int) -> torch.Tensor:
    return torch.full((4,), float(step))


# -- names -------------------------------------------------------------------------------------------------------------


def a_fresh_table_is_copied_into_the_static_one() -> None:
    owner = Owner(static=zeros())
    owner.ids = owner.static
    graph = graph_over(lambda: SLOTS[owner.ids])
    for step in range(5):
        owner.ids = numbers(step)
        owner.static.copy_(owner.ids)
        graph.replay()


def an_input_per_graph_in_turn() -> None:
    both, owner = [zeros(), zeros()], Owner()
    both[1].copy_(both[0])
    graphs = []
    for owner.ids in both:
        graphs.append(graph_over(lambda: SLOTS[owner.ids]))
    for step in range(6):
        owner.ids = both[step % 2]
        owner.ids.copy_(numbers(step))
        graphs[step % 2].replay()


def a_debug_attribute_that_once_led_to_a_weight() -> None:
    owner = Owner(weight=torch.ones(4), x=torch.zeros(4))

    def forward() -> torch.Tensor:
        owner.last = owner.weight
        return owner.x * owner.weight

    graph = graph_over(forward)
    for step in range(5):
        owner.x.fill_(step)
        owner.last = filled(step)
        graph.replay()


def a_debug_object_with_the_same_attribute() -> None:
    owner = Owner(weight=torch.ones(4), x=torch.zeros(4), debug=Owner(), log={})

    def forward() -> torch.Tensor:
        owner.debug.weight = owner.log["weight"] = owner.weight
        return owner.x * owner.weight

    graph = graph_over(forward)
    for step in range(5):
        owner.x.fill_(step)
        owner.debug.weight = filled(step)
        owner.log["weight"] = filled(step + 7)
        graph.replay()


def an_attribute_for_inputs_and_outputs() -> None:
    owner = Owner(static=torch.zeros(4))
    owner.hidden = owner.static
    graph, out = capture(lambda: owner.hidden + 1)
    for step in range(5):
        owner.static.copy_(owner.hidden + step)
        graph.replay()
        owner.hidden = out.clone()


def two_runners_with_inputs_of_one_name() -> None:
    ids, runners = zeros(), []
    for _ in range(2):
        runner = Owner(ids=ids)
        runner.graph = graph_over(lambda runner=runner: SLOTS[runner.ids])
        runners.append(runner)
    for step in range(4):
        for runner in runners:
            ids.copy_(numbers(step))
            runner.graph.replay()


def an_eager_prefill_with_tensors_of_its_own() -> None:
    owner = Owner(static=zeros())
    owner.ids = owner.static
    graph = graph_over(lambda: SLOTS[owner.ids])
    for step in range(5):
        for more in range(2):
            owner.ids = numbers(step + more)
            SLOTS[owner.ids].sum()
        owner.static.copy_(numbers(step))  # the name still leads to the prefill's
        graph.replay()


def a_refresh_only_of_what_has_changed() -> None:
    owner = Owner(static=zeros())
    owner.ids = owner.static
    graph = graph_over(lambda: SLOTS[owner.ids])
    for step in range(6):
        owner.ids = numbers(step + 7)  # a prefill
        new = numbers(step // 3)
        if not torch.equal(new, owner.static):
            owner.static.copy_(new)
        graph.replay()


def batches_of_several_sizes() -> None:
    ids, owner, graphs = zeros(8), Owner(), {}
    for size in (8, 4, 2):
        owner.ids = ids[:size]
        graphs[size] = graph_over(lambda: SLOTS[owner.ids])
    for size in (8, 2, 4, 3, 8, 1):
        padded = min(each for each in graphs if each >= size)
        owner.ids = ids[:padded]
        ids[:size].copy_(torch.arange(size) + size)
        ids[size:padded] = 0
        graphs[padded].replay()


def a_capture_with_each_new_input() -> None:
    owner, kept = Owner(ids=zeros()), []
    for step in range(4):
        owner.ids = numbers(step)
        kept.append(owner.ids)
        graph = graph_over(lambda: SLOTS[owner.ids])
        for _ in range(2):
            owner.ids.add_(1)
            graph.replay()


def a_variable_that_is_used_again() -> None:
    x, y = torch.ones(4), torch.zeros(4)
    kept = [x]
    graph = graph_over(lambda: y + x)
    for step in range(5):
        x = filled(step)
        y.copy_(x)
        graph.replay()
    assert kept


def a_variable_of_a_loop_before() -> None:
    constants = []
    for step in range(3):
        x = filled(step)
        constants.append(x)
    y = torch.zeros(4)
    graph = graph_over(lambda: y + constants[0] + constants[1] + constants[2])
    for step in range(5):
        x = filled(step + 3)
        y.copy_(x)
        graph.replay()


# -- twins -------------------------------------------------------------------------------------------------------------


def constants_and_weights() -> None:
    weight, x = torch.rand(4, 4), torch.zeros(4, 4)
    other = weight.clone()
    graph = graph_over(lambda: x @ weight + other)
    for step in range(5):
        x.fill_(step)
        graph.replay()


def a_staging_buffer() -> None:
    staging = zeros()
    ids = staging.clone()
    graph = graph_over(lambda: SLOTS[ids])
    for step in range(5):
        staging.copy_(numbers(step))
        ids.copy_(staging)
        graph.replay()


def a_mirror_that_an_operator_reads(after: bool = False) -> None:
    mirror = zeros()
    ids = mirror.clone()
    graph = graph_over(lambda: SLOTS[ids])
    for step in range(5):
        mirror.copy_(numbers(step))
        if not after:
            SLOTS[mirror].sum()
        graph.replay()
        if after:
            mirror + 1


def a_mirror_that_is_read_after_the_replay() -> None:
    a_mirror_that_an_operator_reads(after=True)


def a_mirror_that_the_host_reads() -> None:
    mirror = zeros()
    ids = mirror.clone()
    graph = graph_over(lambda: SLOTS[ids])
    for step in range(5):
        mirror.copy_(numbers(step))
        graph.replay()
        mirror.tolist()


def scratch_that_the_host_reads_at_the_end() -> None:
    ids = zeros()
    scratch = ids.clone()
    graph = graph_over(lambda: SLOTS[ids])
    for step in range(5):
        ids.copy_(numbers(step))
        scratch.copy_(numbers(step + 1))
        graph.replay()
    scratch.tolist()


def results_that_are_saved() -> None:
    x = torch.zeros(2, 4)
    saved = x[0].clone()
    graph, out = capture(lambda: x[0] + torch.rand(4))
    for _ in range(5):
        graph.replay()
        x[1].copy_(out)
        saved.copy_(out)


def an_average_of_weights() -> None:
    weight, x = torch.rand(4), torch.ones(4)
    average = weight.clone()
    graph = graph_over(lambda: x * average)
    for _ in range(5):
        weight.add_(0.1)
        graph.replay()


def a_sum_that_goes_on() -> None:
    total = torch.zeros(4)
    first = total.clone()
    graph = graph_over(lambda: first * 2)
    for step in range(5):
        total.index_add_(0, torch.tensor([1, 2]), filled(step)[:2])
        graph.replay()


def weights_that_are_trained_beside_a_copy() -> None:
    net = torch.nn.Linear(4, 4)
    target, x = copy.deepcopy(net), torch.zeros(2, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with torch.no_grad():
        graph = graph_over(lambda: target(x))
    for step in range(5):
        x.fill_(step)
        graph.replay()
        optimizer.zero_grad()
        net(torch.randn(2, 4)).sum().backward()
        optimizer.step()


def metadata_of_eager_work_and_of_a_graph() -> None:
    owner = Owner(ids=Owner(table=zeros()))
    own = owner.ids
    graph = graph_over(lambda: SLOTS[owner.ids.table])
    for step in range(5):
        owner.ids = Owner(table=numbers(step))
        SLOTS[owner.ids.table].sum()
        owner.ids = own
        own.table.copy_(numbers(step + 1))
        graph.replay()


def a_state_that_is_restored() -> None:
    state = torch.zeros(4)
    first = state.clone()
    graph = graph_over(lambda: state.add_(1))
    for _ in range(5):
        state.copy_(first)
        graph.replay()


def both_windows_of_a_buffer() -> None:
    buffer = zeros(8)
    graph = graph_over(lambda: SLOTS[buffer[:4]])
    for step in range(5):
        buffer[4:].copy_(numbers(step + 1))
        buffer[:4].copy_(numbers(step))
        graph.replay()


def several_things_in_one_tensor() -> None:
    flat = zeros(16)
    table, lens, positions = flat[:4], flat[4:8], flat[8:12]
    graph = graph_over(lambda: SLOTS[table])
    for step in range(5):
        lens.copy_(numbers(step))
        positions.copy_(numbers(step + 1))
        graph.replay()


def rows_beyond_the_batch() -> None:
    ids = zeros(8)
    graph = graph_over(lambda: SLOTS[ids[:4]])
    for step in range(5):
        ids[: 2 + step].copy_(torch.arange(2 + step) + step)
        graph.replay()


# -- twins that lag behind on purpose ----------------------------------------------------------------------------------


def weights_that_follow(every: int, sync: Callable[[torch.Tensor, torch.Tensor], Any], steps: int = 12) -> None:
    online, x = torch.ones(4, 3), torch.zeros(2, 4)
    target = online.clone()
    graph = graph_over(lambda: x @ target)
    for step in range(steps):
        online.copy_(torch.full((4, 3), 2.0 + step))
        x.fill_(step)
        if step % every == every - 1:
            sync(target, online)
        graph.replay()


def a_target_network_that_follows_every_fifth_step() -> None:
    weights_that_follow(5, torch.Tensor.copy_)


def a_target_network_that_follows_later_than_the_program_ends() -> None:
    weights_that_follow(1000, torch.Tensor.copy_)


def an_average_in_place_every_fourth_step() -> None:
    weights_that_follow(4, lambda target, online: target.mul_(0.9).add_(online, alpha=0.1))


def an_average_of_lists_every_seventh_step() -> None:
    weights_that_follow(7, lambda target, online: torch._foreach_lerp_([target], [online], 0.1))


def an_average_in_each_step() -> None:
    weights_that_follow(1, lambda target, online: target.lerp_(online, 0.1))


def weights_that_are_exchanged_by_way_of_the_host() -> None:
    weights_that_follow(5, lambda target, online: target.copy_(torch.tensor(online.tolist())))


def a_target_module_that_loads_a_state() -> None:
    online, x = torch.nn.Linear(4, 4), torch.zeros(2, 4)
    target = copy.deepcopy(online)
    with torch.no_grad():
        graph = graph_over(lambda: target(x))
        for step in range(12):
            for weight in online.parameters():
                weight.fill_(step)
            x.fill_(step)
            if step % 5 == 4:
                target.load_state_dict(online.state_dict())
            graph.replay()


def rows_of_one_tensor_of_weights() -> None:
    both, x = torch.zeros(2, 4), torch.zeros(4)
    graph = graph_over(lambda: x * both[1])
    for step in range(12):
        both[0].fill_(step)
        x.fill_(step)
        if step % 5 == 4:
            both[1].copy_(both[0])
        graph.replay()


def quantized_weights_that_follow() -> None:
    online, x = torch.zeros(4, dtype=torch.int8), torch.zeros(4)
    target = online.clone()
    graph = graph_over(lambda: x * target)
    for step in range(6):
        online.fill_(step)
        graph.replay()


def ids_that_follow_every_fifth_step(every: int = 5, tail: bool = False) -> None:
    buffer = zeros(8)
    back, front = (buffer[:4], buffer[4:]) if tail else (zeros(), zeros())
    front.copy_(back)
    graph = graph_over(lambda: SLOTS[front])
    for step in range(12):
        back.copy_(numbers(step))
        if step % every == every - 1:
            front.copy_(back)
        graph.replay()


def a_front_buffer_of_ids_in_one_tensor() -> None:
    ids_that_follow_every_fifth_step(tail=True)


def a_front_buffer_that_is_filled_in_each_step() -> None:
    ids_that_follow_every_fifth_step(every=1)


def ids_that_are_three_steps_late() -> None:
    ids, ring = zeros(), [zeros() for _ in range(3)]
    for late in ring:
        ids.copy_(late)
    graph = graph_over(lambda: SLOTS[ids])
    for step in range(12):
        ids.copy_(ring[step % 3])
        ring[step % 3].copy_(numbers(step))
        graph.replay()


LAGGING: tuple[Callable[[], None], ...] = (
    a_target_network_that_follows_every_fifth_step,
    a_target_network_that_follows_later_than_the_program_ends,
    an_average_in_place_every_fourth_step,
    an_average_of_lists_every_seventh_step,
    an_average_in_each_step,
    weights_that_are_exchanged_by_way_of_the_host,
    a_target_module_that_loads_a_state,
    rows_of_one_tensor_of_weights,
    quantized_weights_that_follow,
    ids_that_follow_every_fifth_step,
    a_front_buffer_of_ids_in_one_tensor,
    a_front_buffer_that_is_filled_in_each_step,
    ids_that_are_three_steps_late,
)
PROGRAMS: tuple[Callable[[], None], ...] = (
    a_fresh_table_is_copied_into_the_static_one,
    an_input_per_graph_in_turn,
    a_debug_attribute_that_once_led_to_a_weight,
    a_debug_object_with_the_same_attribute,
    an_attribute_for_inputs_and_outputs,
    two_runners_with_inputs_of_one_name,
    an_eager_prefill_with_tensors_of_its_own,
    a_refresh_only_of_what_has_changed,
    batches_of_several_sizes,
    a_capture_with_each_new_input,
    a_variable_that_is_used_again,
    a_variable_of_a_loop_before,
    constants_and_weights,
    a_staging_buffer,
    a_mirror_that_an_operator_reads,
    a_mirror_that_is_read_after_the_replay,
    a_mirror_that_the_host_reads,
    scratch_that_the_host_reads_at_the_end,
    results_that_are_saved,
    an_average_of_weights,
    a_sum_that_goes_on,
    weights_that_are_trained_beside_a_copy,
    metadata_of_eager_work_and_of_a_graph,
    a_state_that_is_restored,
    both_windows_of_a_buffer,
    several_things_in_one_tensor,
    rows_beyond_the_batch,
    *LAGGING,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_silent(program: Callable[[], None]) -> None:
    with sg.debug() as debugger:
        program()
        assert not [found.message for found in debugger.findings]
        assert debugger.graphs, "invalid: a silence over nothing"
        assert debugger.facts().faults == {}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_silent_as_on_a_device(program: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        program()
        debugger.check()
        assert not [found.message for found in debugger.findings]
        assert debugger.graphs, "invalid: a silence over nothing"
        assert debugger.facts().faults == {}


def test_after_a_pause_nothing_seen_before_counts() -> None:
    with sg.debug() as debugger:
        owner = Owner(ids=guarded(debugger, 4, dtype=torch.int64))
        kept = owner.ids
        graph = graph_over(lambda: SLOTS[owner.ids])
        owner.ids = numbers(1)
        graph.replay()
        debugger.pause()
        kept.copy_(numbers(2))
        debugger.resume()
        owner.ids = numbers(3)
        graph.replay()
        assert silent(debugger)


@pytest.mark.parametrize("twin", [False, True])
def test_operators_are_not_noted_closely_for_long(twin: bool) -> None:
    """Host code writes a twin, or rebinds a name, once and for all."""
    with sg.debug() as debugger:
        owner = Owner(ids=zeros(), other=zeros())
        kept, mirror = owner.ids, owner.ids.clone()
        graph, other = graph_over(lambda: SLOTS[owner.ids]), graph_over(lambda: owner.other + 1)
        if twin:
            mirror.copy_(numbers(1))
        else:
            owner.ids = numbers(1)
        graph.replay()
        notes = operand_notes.current
        assert notes is not None
        assert notes.closely, "invalid: nothing is suspected"
        for _ in range(70):
            other.replay()
        assert not notes.closely
        assert not notes.learns
        assert silent(debugger)
        assert not kept.any()
