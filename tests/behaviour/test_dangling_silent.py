"""Programs that only look like SG104: nothing may be found, or no more than a note."""

from __future__ import annotations

import gc

import pytest
import torch
from captures import capture, graph_over, silent, uses_floats
from pools import weak
from programs import only, reader_of

import shadowgraph as sg
from shadowgraph.common.errors import FreedInputError

pytestmark = pytest.mark.parametrize("layout", ["isolate", "faithful"])


def test_temporaries_of_the_capture(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        source = uses_floats(debugger, 64)
        graph, result = capture(lambda: ((source * 2).exp() + torch.tensor([1.0]).repeat(64)).sum())
        for _ in range(3):
            graph.replay()
        assert silent(debugger)
        del result
        graph.replay()
        assert silent(debugger), "its result is its own, too"


def test_a_graph_that_was_reset(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        kept, held = uses_floats(debugger, 64), [uses_floats(debugger, 64)]
        other, _ = reader_of(kept)
        graph = graph_over(lambda: held[0] * 2)
        graph.replay()
        graph.reset()
        held.clear()
        other.replay()
        assert silent(debugger)


def test_buffers_freed_after_the_last_replay(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        held = [uses_floats(debugger, 64)]
        graph = graph_over(lambda: held[0] * 2)
        graph.replay()
        assert silent(debugger)
        held.clear()
        assert debugger.check() == ()
    assert debugger.findings == ()


def test_a_view_that_goes_while_its_storage_stays(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        guarded_base, foreign_base = uses_floats(debugger, 64), torch.zeros(64)
        views = [guarded_base[8:], foreign_base[8:]]
        graph = graph_over(lambda: views[0] + views[1])
        views.clear()
        gc.collect()
        graph.replay()
        assert silent(debugger)


def test_tensors_that_only_eager_launches_used(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        kept, eager = uses_floats(debugger, 64), [uses_floats(debugger, 64), torch.zeros(64)]
        graph = graph_over(lambda: kept * 2)
        kept.copy_(eager[0] + eager[1])
        eager.clear()
        graph.replay()
        assert silent(debugger)


@pytest.mark.parametrize("shared", [True, False])
def test_a_graph_that_reads_what_another_makes(layout: str, shared: bool) -> None:
    """The second keeps reading what the first writes at each replay; nobody needs the tensor object for that."""
    with sg.debug(layout=layout) as debugger:
        source = uses_floats(debugger, 64)
        source.fill_(3)
        first, made = capture(lambda: [source * 2])
        second, out = capture(lambda: made[0] + 1, first.pool() if shared else None)
        made.clear()
        for _ in range(2):
            first.replay()
            second.replay()
        assert silent(debugger)
        assert out.unique().tolist() == [7.0]
        first.reset()
        second.replay()
        found = only(debugger.findings)
    assert (found.code, found.graph, found.buffer.role) == ("SG104", second.model.name, "pool")


def test_constants_and_numbers(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        source = uses_floats(debugger, 4)
        graph = graph_over(lambda: source * 2.5 + torch.tensor([1.0, 2.0, 3.0, 4.0]) - torch.tensor(1.0))
        gc.collect()
        for _ in range(2):
            graph.replay()
        assert silent(debugger)


def test_parameters(layout: str) -> None:
    with sg.debug(layout=layout, guard_eager="auto") as debugger:
        model, source = torch.nn.Linear(8, 8), torch.zeros(2, 8)
        with torch.no_grad():
            graph = graph_over(lambda: model(source))
            graph.replay()
            model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})
            gc.collect()
            graph.replay()
        assert silent(debugger)


def test_parameters_that_were_exchanged_are_no_silence(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        model, source = torch.nn.Linear(8, 8), torch.zeros(2, 8)
        debugger.name("model", model)
        with torch.no_grad():
            graph = graph_over(lambda: model(source))
            graph.replay()
            model.load_state_dict({n: v + 1 for n, v in model.state_dict().items()}, assign=True)
            with pytest.raises(FreedInputError):
                graph.replay()
        names = {finding.buffer.name for finding in debugger.findings if finding.code == "SG104"}
    assert names == {"model.weight", "model.bias"}


def test_memory_of_numpy_that_lives_on_is_a_note_at_most(layout: str) -> None:
    array = torch.zeros(64).numpy()
    with sg.debug(layout=layout) as debugger:
        held = [torch.from_numpy(array)]
        graph = graph_over(lambda: held[0] * 2)
        graph.replay()
        held.clear()
        with pytest.raises(FreedInputError):  # the host backend cannot know that the array holds the memory
            graph.replay()
        assert only(debugger.findings).confidence == "medium"


@pytest.mark.parametrize("how", ["operator", "storage"])
def test_an_alias_by_address_may_end(layout: str, how: str) -> None:
    """As of vLLM's weak references: a graph may be captured with one that is dropped then."""
    alias = torch.ops.shadowgraph_tests.weak_ref_tensor if how == "operator" else weak
    with sg.debug(layout=layout) as debugger:
        owner = torch.zeros(64)
        held = [alias(owner)]
        assert held[0].data_ptr() == owner.data_ptr()
        out, graph = torch.zeros(64), sg.HostGraph()
        with sg.host_graph(graph):
            torch.add(held[0], 1, out=out)
        held.clear()
        owner.fill_(2)
        graph.replay()
        graph.replay()
        assert out.unique().tolist() == [3]
        assert silent(debugger)


def test_and_its_owner_may_not(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        held = [torch.zeros(64)]
        first, second, out = sg.HostGraph(), sg.HostGraph(), torch.zeros(64)
        with sg.host_graph(first):
            torch.add(held[0], 1, out=out)
        alias = weak(held[0])
        with sg.host_graph(second):
            torch.add(alias, 1, out=out)
        second.replay()
        assert silent(debugger)
        held.clear()
        with pytest.raises(FreedInputError):
            first.replay()
        assert only(debugger.findings).code == "SG104"


def test_what_shrank_in_place(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        tensor, ours = torch.zeros(64), uses_floats(debugger, 64)
        graph = graph_over(lambda: tensor[:16] + ours[:16])
        before = tensor.data_ptr()
        tensor.resize_(16)
        ours.resize_(16)
        assert tensor.data_ptr() == before
        graph.replay()
        assert silent(debugger)
