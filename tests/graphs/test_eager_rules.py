"""Guards that nobody asked for: which allocations get them, and that a program cannot tell."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import nn

import shadowgraph as sg
from shadowgraph import Debugger, HostGraph, host_graph
from shadowgraph.graphs.dispatch.eager_guard import LARGEST
from shadowgraph.tracking.allocator import host_allocator


def guarded(tensor: torch.Tensor) -> bool:
    return host_allocator().holds(tensor.untyped_storage().data_ptr())


@pytest.fixture
def auto() -> Iterator[Debugger]:
    with sg.debug(guard_eager="auto") as debugger:
        yield debugger


@pytest.fixture
def every() -> Iterator[Debugger]:
    with sg.debug(guard_eager="all") as debugger:
        yield debugger


def captured() -> HostGraph:
    graph = HostGraph()
    source = torch.ones(4)
    with host_graph(graph):
        graph.kept = source * 2, source  # type: ignore[attr-defined]
    return graph


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(8),
        lambda: torch.empty(8, dtype=torch.int32),
        lambda: torch.arange(8),
        lambda: torch.tensor([1, 2, 3]),
        lambda: torch.zeros(8).clone(),
        lambda: torch.zeros(8).to(torch.float64),
        lambda: torch.full_like(torch.zeros(8), 3),
        lambda: torch.zeros(8).new_empty(4),
        lambda: torch.cat([torch.zeros(8), torch.ones(8)]),
        lambda: torch.stack([torch.zeros(8), torch.ones(8)]),
    ],
)
def test_auto_guards_what_allocates(make: Callable[[], torch.Tensor], auto: Debugger) -> None:
    assert guarded(make())


def test_auto_leaves_results_large_copies_and_parameters_alone(auto: Debugger) -> None:
    assert not guarded(torch.zeros(8) + 1)
    large = torch.empty(LARGEST + 1, dtype=torch.uint8)
    assert guarded(large)
    assert not guarded(large.clone())
    assert guarded(torch.empty(LARGEST, dtype=torch.uint8))
    assert not guarded(nn.Linear(4, 4).weight)
    assert not guarded(nn.Parameter(torch.ones(4)))
    assert not guarded(torch.from_numpy(np.zeros(8)))


def test_a_parameter_over_shared_memory_stays_what_it_is(auto: Debugger) -> None:
    flat = torch.zeros(8)
    parameter = nn.Parameter(flat[:4])
    flat[0] = 5
    assert parameter[0].item() == 5


def test_off_and_explicit_blocks() -> None:
    with sg.debug() as debugger:
        assert not guarded(torch.zeros(8))
        with debugger.guard():
            assert guarded(torch.zeros(8) + 1)


def test_auto_ends_some_replays_after_the_last_capture_and_begins_again_with_the_next(auto: Debugger) -> None:
    graph = captured()
    for _ in range(7):
        graph.replay()
    assert guarded(torch.zeros(8))  # a draft model's buffers may come yet
    graph.replay()
    assert not guarded(torch.zeros(8))
    again = captured()
    assert guarded(torch.zeros(8))
    del again


def test_in_a_function_and_below(auto: Debugger) -> None:
    sg.uninstall()
    with sg.debug(guard_eager=f"in:{__name__}:Owner.make,in:other:f"):
        assert guarded(Owner().make())
        assert not guarded(torch.zeros(8))


class Owner:
    def make(self) -> torch.Tensor:
        return helper()


def helper() -> torch.Tensor:
    return torch.zeros(8)


def test_tracing_and_compiling_are_left_alone(every: Debugger) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    traced = make_fx(lambda x: x.clone() + torch.zeros(3))(torch.ones(3))
    assert traced(torch.ones(3)).tolist() == [1, 1, 1]
    compiled = torch.compile(lambda x: (x * 2).relu() + x.new_zeros(3), backend="aot_eager")
    assert compiled(torch.ones(3)).tolist() == [2, 2, 2]


# -- nothing that a program does with a guarded tensor may fail or change ---------------------------------------------


def test_every_result_is_guarded(every: Debugger) -> None:
    x = torch.ones(8)
    assert guarded(x * 2)
    assert guarded(torch.matmul(torch.ones(4, 4), torch.ones(4, 4)))


def test_resizing_and_setting(every: Debugger) -> None:
    x = torch.arange(4)
    x.resize_(9)
    assert x[:4].tolist() == [0, 1, 2, 3]
    x.resize_(2)
    y = torch.zeros(3, dtype=torch.int64)
    y.set_(x)
    assert y.data_ptr() == x.data_ptr()
    y.set_()
    assert y.numel() == 0
    z = torch.empty(0)
    torch.mul(torch.ones(5), 3, out=z)
    assert z.tolist() == [3] * 5


def test_lazy_clones(every: Debugger) -> None:
    x = torch.arange(4.0)
    y = torch._lazy_clone(x)
    y.add_(1)
    assert (x.tolist(), y.tolist()) == ([0, 1, 2, 3], [1, 2, 3, 4])


def test_copies_files_and_pickles(every: Debugger) -> None:
    x = torch.arange(6.0).view(2, 3)
    file = io.BytesIO()
    torch.save({"x": x, "row": x[1]}, file)
    file.seek(0)
    loaded = torch.load(file)
    assert torch.equal(loaded["x"], x)
    assert loaded["row"].data_ptr() == loaded["x"][1].data_ptr()
    assert torch.equal(pickle.loads(pickle.dumps(x)), x)
    assert torch.equal(copy.deepcopy(x), x)
    storage = x.untyped_storage().clone()
    storage.resize_(4)
    assert len(storage.tolist()) == 4


def test_a_storage_may_be_freed_and_get_its_size_back(every: Debugger) -> None:
    """As sharded optimisers do."""
    x = torch.arange(6.0)
    storage = x.untyped_storage()
    assert not storage.resizable(), "it must be memory of ours"
    size = storage.nbytes()
    assert storage.resize_(0) is storage
    storage.resize_(size)
    x.fill_(2)
    assert x.tolist() == [2] * 6
    with pytest.raises(RuntimeError, match="resiz"):
        storage.resize_(size + 4)


def test_numpy_and_dlpack_share(every: Debugger) -> None:
    array = np.zeros(4)
    x = torch.from_numpy(array)
    x[0] = 3
    assert array[0] == 3
    y = torch.ones(3)
    y.numpy()[1] = 7
    assert y.tolist() == [1, 7, 1]
    assert torch.from_dlpack(y).data_ptr() == y.data_ptr()


def test_shared_memory(every: Debugger) -> None:
    x = torch.arange(4.0)
    x.share_memory_()
    assert x.is_shared()
    assert x.tolist() == [0, 1, 2, 3]
    del x


def test_gradients_and_optimisers(every: Debugger) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    optimiser = torch.optim.Adam(model.parameters(), foreach=True)
    losses = []
    for _ in range(3):
        loss = model(torch.ones(6, 4) * torch.arange(6.0).unsqueeze(1)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)


def test_results_are_the_same_numbers() -> None:
    def work() -> list[float]:
        torch.manual_seed(11)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        out = layer(torch.randn(2, 5, 16))
        out.sum().backward()
        return [*out.flatten().tolist(), *(p.grad.sum().item() for p in layer.parameters() if p.grad is not None)]

    plain = work()
    with sg.debug(guard_eager="all") as debugger:
        assert work() == plain
    assert not debugger.facts().faults


def test_other_threads_are_untouched_by_a_block(every: Debugger) -> None:
    seen = []
    thread = threading.Thread(target=lambda: seen.append(guarded(torch.zeros(8))))
    thread.start()
    thread.join()
    assert seen == [False]


@pytest.mark.parametrize("rule", ["some", "in:", "in:module", "auto,all", ""])
def test_rules_that_do_not_fit(rule: str) -> None:
    with pytest.raises(sg.UsageError, match="guard_eager must be"):
        sg.Settings(guard_eager=rule)


def test_a_result_over_memory_that_torch_did_not_allocate_is_not_moved() -> None:
    """Of a library's operator: moved, it would stand for other bytes."""
    with torch.library._scoped_library("shadowgraph_tests_rules", "FRAGMENT") as library:
        library.define("at(Tensor tensor) -> Tensor")

        def at(tensor: torch.Tensor) -> torch.Tensor:
            storage = torch._C._construct_storage_from_data_pointer(tensor.data_ptr(), tensor.device, tensor.nbytes)
            return torch.empty(0).set_(storage, 0, tensor.size(), tensor.stride())

        library.impl("at", at, "CPU")
        with sg.debug(backend="host", guard_eager="all"):
            x = torch.zeros(8)
            alias = torch.ops.shadowgraph_tests_rules.at(x)
            x.fill_(3)
            assert alias.data_ptr() == x.data_ptr()
            assert alias.tolist() == [3] * 8
