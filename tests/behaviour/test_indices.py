"""Indices out of range: refused before the launch in sync mode, explained after it has killed the device otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from playing import played

import shadowgraph as sg
from shadowgraph.checks.base import Checkpoint
from shadowgraph.checks.invariants.indices import elements
from shadowgraph.graphs.dispatch.indexing import index_uses
from shadowgraph.model.launches import Launch, LaunchKind
from shadowgraph.model.stacks import current_stack
from shadowgraph.model.views import TensorView


class Metadata:
    def __init__(self, debugger: sg.Debugger) -> None:
        with debugger.guard():
            self.page_table = torch.zeros(2, 2, dtype=torch.int32)
        debugger.name("metadata", self)
        self.graph = sg.HostGraph()
        with sg.host_graph(self.graph):
            self.total = self.page_table.sum(1)

    def prepare(self, positions: list[int]) -> None:
        index = torch.tensor([positions, positions])
        self.page_table.scatter_(1, index, torch.ones_like(index, dtype=torch.int32))


def test_sync_refuses_before_the_operator_runs() -> None:
    with sg.debug(backend="host", sync=True) as debugger:
        metadata = Metadata(debugger)
        metadata.prepare([0, 1])
        metadata.graph.replay()
        with pytest.raises(sg.FindingsError, match="SG109") as caught, debugger.prepare(metadata.graph):
            metadata.prepare([0, 1, 2])
        assert metadata.page_table.tolist() == [[1, 1], [1, 1]]
        (found,) = debugger.findings
    assert (found.code, found.phase, found.replay) == ("SG109", "prepare", 2)
    assert (found.buffer.name, found.buffer.shape, found.bytes) == ("metadata.page_table", (2, 2), None)
    assert found.detail.rule == "index in range: 2 along dim 1, which ends at 2; index holds 0 to 2"
    assert (found.culprit.name, found.culprit.status) == ("aten.scatter_.src", "confirmed")
    assert found.culprit.stack[0].function == "prepare"
    assert str(caught.value) == (
        "SG109 invariant broken: aten.scatter_.src was given an index out of range for metadata.page_table "
        "(int32[2, 2]), 2 along dim 1, which ends at 2; index holds 0 to 2, while preparing replay 2 of graph#"
        f"{found.graph.removeprefix('graph#')}"
    )
    assert found.to_dict()["bytes"] is None


def test_the_fixed_program_is_silent_and_without_sync_torchs_own_error_comes() -> None:
    with sg.debug(backend="host", sync=True) as debugger:
        metadata = Metadata(debugger)
        for positions in ([0, 1], [1, 0], [0, 0]):
            metadata.prepare(positions)
            metadata.graph.replay()
        assert metadata.page_table[torch.tensor([-1, -2])].tolist() == metadata.page_table.flip(0).tolist()
        assert debugger.check() == ()
    with sg.debug(backend="host") as debugger:
        metadata = Metadata(debugger)
        with pytest.raises(RuntimeError, match="index 2 is out of bounds"):
            metadata.prepare([0, 1, 2])
        assert debugger.check() == ()


def launch_of(name: str, given: dict[str, Any]) -> tuple[Launch, Any]:
    launch = Launch(LaunchKind.ATEN, name, (), current_stack())
    return launch, tuple(use.rule() for use in index_uses(name, given))


def test_what_a_launch_was_given_explains_the_end_of_the_device() -> None:
    with sg.debug(backend="host") as debugger:
        metadata = Metadata(debugger)
        words = debugger.monitor.crash_recorder
        good, bad = torch.tensor([[0, 1]]), torch.tensor([[0, 3, 1]])
        for index in (good, bad, bad + 4):
            given = {"self": metadata.page_table, "dim": 1, "index": index}
            words.note(*launch_of("aten.gather.default", given), Checkpoint("launch_begins"))
            if index is good:
                words.examine()
                assert (debugger.findings, len(words.launches())) == ((), 1)
        bad.zero_()  # what counts is what it was
        words.examine()
        (found,) = debugger.findings
        assert found.detail.rule == "index in range: 3 along dim 1, which ends at 2; index holds 0 to 3", (
            "the first one only"
        )
        latest, before, _ = words.launches()
    assert latest.values[0].data == torch.tensor([[4, 7, 5]]).numpy().tobytes()
    assert (before.name, before.values[0].argument, before.values[0].shape) == ("aten.gather.default", "index", (1, 3))


def test_the_replay_is_the_one_that_was_coming_when_it_was_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device dies later: the replay that was to come may have begun by then."""
    with played(monkeypatch) as debugger:
        metadata = Metadata(debugger)
        for _ in range(2):
            metadata.graph.replay()
        given = {"self": metadata.page_table, "dim": 1, "index": torch.tensor([[0, 3, 1]])}
        debugger.monitor.launch_begins(*launch_of("aten.gather.default", given))
        metadata.graph.replay()
        debugger.monitor.crash_recorder.examine()
        (found,) = debugger.findings
    assert (found.code, found.phase, found.replay) == ("SG109", "prepare", 3)


def test_what_a_launch_was_given_is_called_by_the_variable_that_holds_it() -> None:
    with sg.debug(backend="host", guard_eager="auto") as debugger:
        positions = torch.tensor([3, 1])
        words = debugger.monitor.crash_recorder
        words.note(
            *launch_of("aten.take.default", {"self": positions, "index": positions}), Checkpoint("launch_begins")
        )
        (launch,) = words.launches()
    assert launch.values[0].owner.endswith("positions")
    assert (launch.file, launch.values[0].data) == (__file__, positions.numpy().tobytes())


@pytest.mark.parametrize(
    "make",
    [
        lambda t: t,
        lambda t: t.T,
        lambda t: t[1:, ::2],
        lambda t: t[:, 1],
        lambda t: t[2, 3],
        lambda t: t[:1].expand(5, 4),
    ],
)
def test_elements_of_any_view(make: Any) -> None:
    tensor = make(torch.arange(12).reshape(3, 4))
    view = TensorView.of(tensor)
    storage = bytes(tensor.untyped_storage())
    data = storage[view.start - view.storage_address : view.stop - view.storage_address]
    found = elements(view, data).tolist()
    assert set(found) == set(tensor.reshape(-1).tolist())
    assert len(found) == len([*dict.fromkeys(found)]), "an element that is seen through many indices is read once"


def test_of_a_beginning_as_many_elements_as_it_holds() -> None:
    tensor = torch.arange(6, dtype=torch.int32)
    data = tensor.numpy().tobytes()
    assert elements(TensorView.of(tensor), data[:13]).tolist() == [0, 1, 2]
