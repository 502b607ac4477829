"""The life of a host graph: what a capture leaves behind, what a replay needs, resets, errors."""

from __future__ import annotations

import gc
import inspect
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from shadowgraph.common.errors import BackendError, CaptureError, FreedInputError
from shadowgraph.graphs.events import Listener, listeners
from shadowgraph.graphs.host.graph import HostGraph, graph_pool_handle, host_graph
from shadowgraph.model.graphs import Graph, Node


def tensor_attributes() -> dict[str, Any]:
    return dict(vars(torch.Tensor))


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    listeners.append(listener)
    try:
        yield
    finally:
        listeners.remove(listener)


class Journal(Listener):
    """The names of the events, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def capture_began(self, graph: Graph) -> None:
        self.events.append(f"capture_began {len(graph.nodes)}")

    def capture_ended(self, graph: Graph) -> None:
        self.events.append(f"capture_ended {len(graph.nodes)}")

    def graph_reset(self, graph: Graph) -> None:
        self.events.append("graph_reset")

    def replay_began(self, graph: Graph) -> None:
        self.events.append(f"replay_began {graph.replays}")

    def node_ran(self, graph: Graph, node: Node, stores: object) -> None:
        self.events.append(node.launch.name)

    def replay_ended(self, graph: Graph) -> None:
        self.events.append("replay_ended")


# -- capture -----------------------------------------------------------------------------------------------------------


def test_a_capture_leaves_inputs_and_generators_as_they_were() -> None:
    x, seeded = torch.arange(6.0), torch.Generator().manual_seed(1)
    part = x.view(2, 3)[1]
    states = torch.get_rng_state(), seeded.get_state()
    with host_graph(HostGraph()):
        part.mul_(100)
        x.add_(torch.rand(6, generator=seeded))
        x.copy_(torch.randn(6))
    assert torch.equal(x, torch.arange(6.0))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(seeded.get_state(), states[1])


def test_memory_freed_during_a_capture_is_not_written_when_it_ends() -> None:
    graph = HostGraph()
    with host_graph(graph):
        victim = torch.frombuffer(bytearray(64), dtype=torch.uint8)
        victim.add_(1)
        del victim
        heirs = [torch.frombuffer(bytearray(b"\7" * 64), dtype=torch.uint8) for _ in range(50)]
    assert all(bool((heir == 7).all()) for heir in heirs)


def test_the_captured_python_runs_once() -> None:
    runs: Counter[str] = Counter()
    x, graph = torch.zeros(3), HostGraph()
    with host_graph(graph):
        runs["body"] += 1
        y = x + 1
    for value in (5.0, 6.0):
        x.fill_(value)
        graph.replay()
        assert torch.equal(y, torch.full((3,), value + 1))
    assert runs["body"] == 1
    assert graph.model.replays == 2


def test_nothing_but_the_capturing_thread_is_recorded() -> None:
    graph = HostGraph()
    with host_graph(graph):
        worker = threading.Thread(target=lambda: torch.ones(3).add_(1).tolist())
        worker.start()
        worker.join()
        y = torch.zeros(2)
    assert [node.launch.name for node in graph.model.nodes] == ["aten.zeros.default"]
    assert y.shape == (2,)


def test_a_nested_capture_is_refused_and_the_outer_one_goes_on() -> None:
    outer, inner = HostGraph(), HostGraph()
    with host_graph(outer):
        y = torch.ones(2)
        with pytest.raises(CaptureError, match="captures already"):
            inner.capture_begin()
        with pytest.raises(CaptureError, match="captures already"):
            outer.capture_begin()
        y.add_(1)
    outer.replay()
    assert torch.equal(y, torch.full((2,), 2.0))


def test_another_thread_may_capture_at_the_same_time() -> None:
    mine, theirs, results = HostGraph(), HostGraph(), []

    def capture_too() -> None:
        with host_graph(theirs):
            results.append(torch.full((2,), 3.0))

    with host_graph(mine):
        y = torch.ones(2)
        worker = threading.Thread(target=capture_too)
        worker.start()
        worker.join()
        z = y * 2
    theirs.replay()
    mine.replay()
    assert torch.equal(results[0], torch.full((2,), 3.0))
    assert torch.equal(z, torch.full((2,), 2.0))
    assert len(theirs.model.nodes) == 1


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_every_capture_error_mode_of_torch_is_taken(mode: str) -> None:
    graph = HostGraph()
    with host_graph(graph, capture_error_mode=mode, stream=object()):
        y = torch.ones(1)
    graph.replay()
    assert y.item() == 1


def test_an_unknown_mode_or_pool_is_refused_and_nothing_begins() -> None:
    before = tensor_attributes()
    graph = HostGraph()
    for arguments in ({"capture_error_mode": "strict"}, {"pool": (0, 10**9)}, {"pool": (3, 1)}, {"pool": "pool"}):
        with pytest.raises(CaptureError, match=r"capture_error_mode must be|unknown pool handle"):
            graph.capture_begin(**arguments)
    with pytest.raises(CaptureError, match="no capture of this graph is active"):
        graph.capture_end()
    assert tensor_attributes() == before
    with host_graph(graph, pool=graph_pool_handle()):
        pass


def test_an_error_of_the_program_passes_through_and_nothing_is_left_behind() -> None:
    before, x, error = tensor_attributes(), torch.zeros(3), KeyError("the program's own")
    graph = HostGraph()
    with pytest.raises(KeyError) as caught, host_graph(graph):
        x.add_(1)
        assert tensor_attributes() != before
        raise error
    assert caught.value is error
    assert tensor_attributes() == before
    assert not _get_current_dispatch_mode_stack()
    assert torch.equal(x, torch.zeros(3))
    assert x.sum().item() == 0
    with pytest.raises(CaptureError, match="holds no capture"):
        graph.replay()
    with host_graph(graph):
        y = x + 2
    graph.replay()
    assert torch.equal(y, torch.full((3,), 2.0))


def test_a_whole_capture_leaves_no_patch_and_no_mode() -> None:
    before, graph = tensor_attributes(), HostGraph()
    with host_graph(graph):
        torch.ones(1)
    assert tensor_attributes() == before
    assert not _get_current_dispatch_mode_stack()
    graph.replay()
    assert torch.is_grad_enabled()


def test_a_first_capture_does_not_import_the_compiler() -> None:
    code = (
        "import sys, torch\nfrom shadowgraph.graphs.host.graph import HostGraph, host_graph\ng = HostGraph()\n"
        "with host_graph(g):\n    y = torch.ones(2) + 1\ng.replay()\nprint('torch._dynamo' in sys.modules, y.tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False [2.0, 2.0]"


# -- replay ------------------------------------------------------------------------------------------------------------


def test_a_replay_before_the_capture_is_an_error() -> None:
    with pytest.raises(CaptureError, match="holds no capture to replay"):
        HostGraph().replay()


def test_a_freed_input_is_named_instead_of_read() -> None:
    x, graph = torch.ones(3, 5, dtype=torch.float64), HostGraph()
    with host_graph(graph):
        y = x + 1
    graph.replay()
    del x
    with pytest.raises(
        FreedInputError, match=r"float64\[3, 5\] read by node 0 \(aten.add.Tensor\) at .*test_host_capture"
    ):
        graph.replay()
    assert torch.equal(y, torch.full((3, 5), 2.0, dtype=torch.float64))
    assert graph.model.replays == 1


def test_constants_live_as_long_as_the_graph() -> None:
    graph = HostGraph()
    with host_graph(graph):
        y = torch.tensor([1.0, 2.0]) * torch.tensor([3.0, 4.0])
    gc.collect()
    y.zero_()
    graph.replay()
    assert torch.equal(y, torch.tensor([3.0, 8.0]))


def test_events_come_in_order() -> None:
    journal, x, graph = Journal(), torch.ones(2), HostGraph()
    with listening(journal):
        with host_graph(graph):
            (x + 1).mul_(2)
        graph.replay()
        graph.reset()
    assert journal.events[journal.events.index("capture_began 0") :] == [  # graphs of other tests may end first
        "capture_began 0", "capture_ended 2", "replay_began 1", "aten.add.Tensor", "aten.mul_.Tensor", "replay_ended",
        "graph_reset",
    ]  # fmt: skip


def test_a_collected_graph_is_reported_as_reset_at_the_next_one() -> None:
    journal, graph, other = Journal(), HostGraph(), HostGraph()
    gc.collect()
    with host_graph(graph):
        torch.ones(1)
    with host_graph(other):
        torch.ones(1)
    with listening(journal):
        del graph
        gc.collect()
        other.replay()
    assert "graph_reset" in journal.events[: journal.events.index("replay_began 1")]


# -- the rest of the surface -------------------------------------------------------------------------------------------


def test_reset_and_capture_again() -> None:
    x, graph = torch.ones(2), HostGraph()
    with host_graph(graph):
        x + 1
    first = graph.model
    graph.reset()
    assert graph.model.serial != first.serial
    with pytest.raises(CaptureError, match="holds no capture"):
        graph.replay()
    with pytest.raises(CaptureError, match="only after capture_begin"):
        graph.pool()
    for factor in (3, 4):
        graph.reset()
        with host_graph(graph):
            y = x * factor
        graph.replay()
        assert torch.equal(y, torch.full((2,), float(factor)))
        assert len(graph.model.nodes) == 1
        assert graph.model.replays == 1


def test_reset_inside_its_own_capture_is_refused() -> None:
    graph = HostGraph()
    with host_graph(graph):
        y = torch.ones(2)
        with pytest.raises(CaptureError, match="end the capture"):
            graph.reset()
    graph.replay()
    assert torch.equal(y, torch.ones(2))


def test_what_torch_programs_call_on_a_graph_is_there(tmp_path: Path) -> None:
    graph = HostGraph(keep_graph=True)
    graph.register_generator_state(torch.Generator())
    graph.enable_debug_mode()
    with host_graph(graph):
        torch.ones(3).add_(1)
    graph.instantiate()
    graph.debug_dump(str(tmp_path / "graph.json"))
    names = [node["launch"]["name"] for node in json.loads((tmp_path / "graph.json").read_text())]
    assert names == ["aten.ones.default", "aten.add_.Tensor"]
    with pytest.raises(BackendError, match="no cudaGraph_t"):
        graph.raw_cuda_graph()


# -- torch's surface ---------------------------------------------------------------------------------------------------


def test_parameters_are_those_of_torch() -> None:
    for ours, theirs in ((HostGraph.capture_begin, torch.cuda.CUDAGraph.capture_begin), (host_graph, torch.cuda.graph)):
        mine = inspect.signature(ours).parameters
        for place, (name, parameter) in enumerate(inspect.signature(theirs).parameters.items()):
            assert list(mine)[place] == name
            assert mine[name].default == parameter.default


@pytest.mark.parametrize("check", [False, True])
def test_input_liveness_is_checked_whether_asked_for_or_not(check: bool) -> None:
    graph, x = HostGraph(), torch.ones(3)
    with host_graph(cuda_graph=graph, enable_annotations=True, check_input_liveness=check):
        _y = x + 1
    graph.replay()
    del x
    with pytest.raises(FreedInputError):
        graph.replay()
