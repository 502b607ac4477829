"""Resized guarded tensors keep what shares their memory: views and aliases follow, as they do without a debugger."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from blocks import buffer_of, intact

import shadowgraph as sg
from shadowgraph.graphs.dispatch import rehoming
from shadowgraph.graphs.dispatch.eager import EagerMode, guard_allocations
from shadowgraph.graphs.dispatch.stepping_aside import PARTED, begin_count
from shadowgraph.model.guards import GuardPolicy
from shadowgraph.tracking.allocator import HostAllocator

Share = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture
def mode(allocator: HostAllocator, policy: GuardPolicy) -> Iterator[EagerMode]:
    with EagerMode(allocator, lambda where: True) as entered:
        yield entered


class Alias(torch.Tensor):
    """A subclass of the program's, whose code must not run for a resize of another tensor."""

    resizing = False

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not cls.resizing, func
        return super().__torch_function__(func, types, args, kwargs)


SHARES: dict[str, Share] = {
    "view": lambda x: x[2:6],
    "strided view": lambda x: x[::2],
    "detached": torch.Tensor.detach,
    "of another dtype": lambda x: x.view(torch.int32)[1:],
    "of a subclass": lambda x: x[1:4].as_subclass(Alias),
    "parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
}
RESIZES: dict[str, Callable[[torch.Tensor], object]] = {
    "resize_": lambda x: x.resize_(500),
    "resize_as_": lambda x: x.resize_as_(torch.zeros(20, 25)),
    "out=": lambda x: torch.add(torch.arange(500.0), 1, out=x),
}


def run(share: Share, resize: Callable[[torch.Tensor], object], x: torch.Tensor) -> list[object]:
    """What a program sees of two tensors that share memory, around a resize of one."""
    other = share(x)
    Alias.resizing = True
    try:
        resize(x)
    finally:
        Alias.resizing = False
    seen = [
        other.tolist(),
        other.storage_offset(),
        other.untyped_storage().data_ptr() == x.untyped_storage().data_ptr(),
    ]
    other.fill_(7)
    return [*seen, x.flatten()[:8].tolist(), tuple(x.shape), type(other)]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("resize", RESIZES.values(), ids=RESIZES)
@pytest.mark.parametrize("share", SHARES.values(), ids=SHARES)
def test_what_shares_the_memory_follows(
    allocator: HostAllocator, policy: GuardPolicy, share: Share, resize: Callable[[torch.Tensor], object]
) -> None:
    plain = run(share, resize, torch.arange(8.0))
    with EagerMode(allocator, lambda where: True):
        with guard_allocations():
            x = torch.arange(8.0)
        before = buffer_of(x)
        assert run(share, resize, x) == plain
        assert plain[2] is True, "invalid: they part without a debugger"
        assert not before.alive
        assert intact(allocator, buffer_of(x))


def test_several_at_once(mode: EagerMode) -> None:
    with guard_allocations():
        x = torch.zeros(4)
    views = [x[at:] for at in range(4)]
    x.resize_(300)
    for at, view in enumerate(views):
        view.fill_(at)
    assert x[:4].tolist() == [0, 1, 2, 3]


def test_tensors_without_a_python_object_stay_and_are_counted(allocator: HostAllocator, policy: GuardPolicy) -> None:
    """Autograd keeps a transposed weight that was made in C++."""
    counts, modes = begin_count(), (EagerMode(allocator, lambda where: True) for _ in range(2))
    with next(modes), guard_allocations():
        weight = torch.ones(4, 4)
    inputs = torch.ones(2, 4, requires_grad=True)
    made = torch.nn.functional.linear(inputs, weight)
    with next(modes):
        weight.data.resize_(300)
    assert counts[PARTED] == 1
    made.sum().backward()
    assert inputs.grad is not None
    assert inputs.grad.tolist() == [[4.0] * 4] * 2


def test_a_tensor_that_torch_leaves_no_other_memory_stays_and_is_counted(
    mode: EagerMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resize itself is not lost by that."""
    put, counts = rehoming._put, begin_count()

    def refuse(tensor: torch.Tensor, storage: torch.UntypedStorage) -> None:
        if tensor is view:
            raise RuntimeError("not this one")
        put(tensor, storage)

    monkeypatch.setattr(rehoming, "_put", refuse)
    with guard_allocations():
        x = torch.arange(4.0)
    view, other = x[:2], x[1:]
    x.resize_(300)
    assert x[:4].tolist() == [0, 1, 2, 3]
    assert other.data_ptr() == x.data_ptr() + 4
    assert view.tolist() == [0, 1]
    assert counts[PARTED] == 1


def test_without_others_no_object_is_looked_at(mode: EagerMode, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> list[object]:
        raise AssertionError("all objects were listed")

    monkeypatch.setattr(gc, "get_objects", never)
    with guard_allocations():
        x = torch.zeros(4)
    x.resize_(300)
    assert x[:4].tolist() == [0] * 4


def test_in_a_capture() -> None:
    """A view of a buffer that grows in the captured code: each replay writes what the view shows."""
    with sg.debug(backend="host") as debugger:
        with debugger.guard():
            x = torch.zeros(4)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            made = x + 1
            head = made[:2]
            made.resize_(200)
            head.add_(10)
            total = made[:4].sum()
        for value in (0, 5):
            x.fill_(value)
            graph.replay()
            assert total.item() == 4 * (value + 1) + 20
        assert debugger.findings == ()


def test_a_graph_that_was_captured_with_a_view_has_lost_its_memory() -> None:
    with sg.debug(backend="host") as debugger:
        with debugger.guard():
            work = torch.zeros(8)
        head = work[:4]
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            head.add_(1)
        graph.replay()
        work.resize_(300)
        graph.replay()
        assert [finding.code for finding in debugger.findings] == ["SG104"]
        assert head.data_ptr() == work.data_ptr()
