"""Large results of allocating operators: a guard where they are made, on the host; a program cannot tell."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.utils import deterministic
from torch.utils._python_dispatch import TorchDispatchMode

import shadowgraph as sg
from shadowgraph import Debugger
from shadowgraph.common.finalizer_safe_lock import run_deferred
from shadowgraph.graphs.dispatch import eager, eager_guard, large, parameters
from shadowgraph.graphs.dispatch.stepping_aside import LARGE, POOLED
from shadowgraph.tracking.allocator import HostAllocator, host_allocator
from shadowgraph.tracking.large_buffers import NO_MEMORY

SMALL = 4096  # what counts as large in most tests
ROWS = 3000


def guarded(tensor: torch.Tensor) -> bool:
    return host_allocator().holds(tensor.untyped_storage().data_ptr())


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of the results that are moved to guarded memory."""
    moved: list[int] = []
    original = eager.Rehomed

    def note(results: object, *args: object) -> object:
        moved.append(results.untyped_storage().nbytes())  # type: ignore[attr-defined]
        return original(results, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(eager, "Rehomed", note)
    return moved


def lower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let results of more than `SMALL` bytes be large."""
    for module in (large, eager_guard, parameters):
        monkeypatch.setattr(module, "LARGEST", SMALL)


@pytest.fixture
def auto(monkeypatch: pytest.MonkeyPatch) -> Iterator[Debugger]:
    lower(monkeypatch)
    with sg.debug(guard_eager="auto", backend="host") as debugger:
        yield debugger
    assert not debugger.facts().faults


X = torch.arange(float(ROWS)).view(-1, 3)
IMAGES = torch.ones((2, 40, 30, 40)).to(memory_format=torch.channels_last)
MAKERS: list[Callable[[], torch.Tensor]] = [
    lambda: torch.zeros(ROWS),
    lambda: torch.zeros((ROWS, 2), dtype=torch.bfloat16),
    lambda: torch.ones(ROWS, dtype=torch.int64),
    lambda: torch.ones(2 * SMALL, dtype=torch.bool),
    lambda: torch.full((ROWS, 2), -0.0),
    lambda: torch.full((ROWS,), 3),
    lambda: torch.full((ROWS,), 1.5 + 2j),
    lambda: torch.full((ROWS,), float("nan"), dtype=torch.float16),
    lambda: torch.zeros_like(X),
    lambda: torch.zeros_like(X.t()),
    lambda: torch.ones_like(X, dtype=torch.float64),
    lambda: torch.full_like(X, 7, dtype=torch.int32),
    lambda: X.new_zeros(ROWS),
    lambda: X.new_ones((ROWS, 2)),
    lambda: X.new_full((ROWS,), 4, dtype=torch.int64),
    lambda: torch.zeros(ROWS, requires_grad=True),
    lambda: torch.zeros_like(IMAGES, memory_format=torch.channels_last),
    lambda: torch.empty_like(IMAGES).fill_(2),
]


def facts(tensor: torch.Tensor) -> tuple[object, ...]:
    shape = (
        tuple(tensor.shape),
        tensor.stride(),
        tensor.storage_offset(),
        tensor.dtype,
        tensor.untyped_storage().nbytes(),
    )
    flags = (
        tensor.requires_grad,
        tensor.is_leaf,
        tensor.is_inference() or tensor._version,
        tensor.is_inference(),
        type(tensor),
    )
    return *shape, *flags, tensor.detach().reshape(-1).view(torch.uint8).tolist()


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("make", MAKERS)
def test_results_are_those_of_the_operator(
    make: Callable[[], torch.Tensor], inference: bool, moves: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    around = torch.inference_mode if inference else contextlib.nullcontext
    with around():
        plain = facts(make())
        lower(monkeypatch)
        with sg.debug(guard_eager="auto", backend="host") as debugger:
            made, moved = make(), tuple(moves)
            assert guarded(made)
            assert facts(made) == plain
    assert not debugger.facts().faults
    assert moved == (), "no byte of it is moved"


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(ROWS),
        lambda: torch.empty((ROWS,), dtype=torch.int32),
        lambda: torch.empty_like(X),
        lambda: torch.empty_strided((ROWS, 2), (4, 1)),
        lambda: torch.empty_permuted((ROWS, 2), (1, 0)),
        lambda: X.new_empty(ROWS),
        lambda: X.new_empty_strided((ROWS, 2), (1, ROWS)),
    ],
)
def test_fresh_memory(make: Callable[[], torch.Tensor], auto: Debugger, moves: list[int]) -> None:
    made = make()
    auto.stop()
    plain = make()
    assert (made.shape, made.stride(), made.dtype) == (plain.shape, plain.stride(), plain.dtype)
    assert made.untyped_storage().nbytes() == plain.untyped_storage().nbytes()
    assert (guarded(made), guarded(plain), moves) == (True, False, [])


@pytest.mark.parametrize("nbytes", [80 << 20, (32 << 10 | 1) * 2048])
def test_a_guard_of_a_mebibyte_and_no_copy(nbytes: int, auto: Debugger, moves: list[int]) -> None:
    made = torch.zeros(nbytes, dtype=torch.uint8)
    buffer = next(each for each in auto.buffers if each.start == made.data_ptr())
    assert (buffer.exact, buffer.tail_guard >= 1 << 20, moves) == (True, True, [])
    now = host_allocator().large.now
    assert (now.buffers, now.nbytes) == (1, nbytes)
    assert now.added * 20 < now.nbytes, "at most five per cent more"


@pytest.mark.parametrize("fixed", [False, True])
def test_a_write_past_the_end_of_a_kv_pool(fixed: bool) -> None:
    with sg.debug(guard_eager="auto", backend="host") as debugger:
        pool = Pool(80 << 20)
        debugger.name("target.token_to_kv_pool", pool)
        rows = pool.k_buffer[0].view(-1, 1 << 20)
        graph = sg.HostGraph()
        at = torch.tensor([79])
        with sg.host_graph(graph):
            rows[-1:].add_(1)
            store(pool.k_buffer[0], at)
        graph.replay()
        assert debugger.check() == ()
        at.fill_(79 if fixed else 80)
        graph.replay()
        found = debugger.check()
        coverage = debugger.coverage()
    assert len(found) == (not fixed)
    for each in found:
        assert (each.code, each.phase, each.replay) == ("SG101", "replay", 2)
        assert each.buffer.name == "target.token_to_kv_pool.k_buffer[0]"
        assert (each.bytes.distance, each.past_end, each.culprit.name) == (0, 8, "store_row")
    assert [(row.name, row.percent) for row in coverage.classes if row.name == "KV pool"] == [("KV pool", 100)]
    assert (coverage.unguarded, coverage.large.buffers) == ((), 1)


class Pool:
    def __init__(self, nbytes: int) -> None:
        self.k_buffer = [torch.zeros(nbytes, dtype=torch.uint8)]


def store(tensor: torch.Tensor, at: torch.Tensor) -> None:
    from large_kernels import store_row

    store_row[(1,)](tensor, at, ROW=1 << 20, BLOCK=8)


def test_the_memory_goes_back_with_the_tensor(auto: Debugger) -> None:
    gc.collect()  # what tests before this one left
    run_deferred()
    allocator = host_allocator()
    before, guards = allocator.arena.used, auto._policy.used
    made = torch.zeros(80 << 20, dtype=torch.uint8)
    view = made[5:]
    del made
    assert allocator.arena.used > before + (80 << 20)
    del view
    gc.collect()
    run_deferred()
    assert (allocator.arena.used, auto._policy.used, allocator.large.now.buffers) == (before, guards, 0)


def test_without_memory_the_program_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    lower(monkeypatch)
    with sg.debug(guard_eager="auto", backend="host", guard_memory=0) as debugger:
        made = torch.zeros(ROWS)
        assert (guarded(made), made.sum().item()) == (False, 0)
        assert debugger.facts().stepped_aside == {LARGE + NO_MEMORY: 1}
        assert LARGE + NO_MEMORY in str(debugger.report(quiet=True))


def test_a_failure_of_ours_is_ours(auto: Debugger, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: HostAllocator, request: object) -> None:
        raise ZeroDivisionError("ours")

    with monkeypatch.context() as patched:
        patched.setattr(HostAllocator, "make_large", fail)
        assert torch.zeros(ROWS).sum().item() == 0
    (fault,) = auto.facts().faults
    assert "large allocation" in fault
    monkeypatch.setattr(type(auto), "facts", lambda self: type("Facts", (), {"faults": {}}))


def test_errors_of_the_program_are_the_operators(auto: Debugger) -> None:
    for make in (lambda: torch.zeros(-ROWS, -ROWS), lambda: torch.full((ROWS,), "x")):  # type: ignore[call-overload]
        with pytest.raises((RuntimeError, TypeError)):
            make()
    assert auto.facts().stepped_aside == {}


class Sees(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))  # type: ignore[operator, misc]


def test_a_mode_of_the_programs_sees_its_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    lower(monkeypatch)
    with Sees() as mode, sg.debug(guard_eager="auto", backend="host") as debugger:
        torch.zeros(ROWS)
        assert debugger.facts().stepped_aside == {f"{LARGE}{large.OTHER_MODE}": 1}
    assert "aten.zeros.default" in mode.seen


def test_memory_that_torch_fills(auto: Debugger) -> None:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert deterministic.fill_uninitialized_memory  # type: ignore[attr-defined, unused-ignore]
        assert torch.empty(ROWS).isnan().all()
        assert guarded(torch.zeros(ROWS))
    finally:
        torch.use_deterministic_algorithms(before)
    assert auto.facts().stepped_aside == {f"{LARGE}{large.FILLED}": 1}


def test_an_active_pool_keeps_its_memory(auto: Debugger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager.active_pools, "routed", lambda: True)
    assert not guarded(torch.zeros(ROWS))
    assert auto.facts().stepped_aside == {POOLED: 1}


class Deep(nn.Module):
    def forward(self, depth: int) -> torch.Tensor:
        return self.forward(depth - 1) if depth else torch.zeros(ROWS)


def test_memory_of_a_running_module_and_parameters(auto: Debugger) -> None:
    assert not guarded(Deep()(2))
    assert not guarded(Deep()(12))
    assert not guarded(nn.Linear(100, 100).weight)
    assert auto.facts().stepped_aside == {}


def test_a_large_parameter_is_not_moved_again(auto: Debugger) -> None:
    made = torch.zeros(ROWS)
    where = made.data_ptr()
    assert nn.Parameter(made).data_ptr() == where


def test_a_rule_for_a_function_holds_in_modules_too(monkeypatch: pytest.MonkeyPatch) -> None:
    lower(monkeypatch)
    with sg.debug(guard_eager=f"in:{__name__}:Deep.forward", backend="host"):
        assert guarded(Deep()(1))
        assert not guarded(torch.zeros(ROWS))


@pytest.mark.parametrize("where", ["meta", "sparse", "pinned"])
def test_other_memory(where: str, auto: Debugger) -> None:
    if where == "meta":
        assert torch.zeros(ROWS, device="meta").is_meta
    elif where == "sparse":
        assert torch.zeros((ROWS, 2), layout=torch.sparse_coo).is_sparse
    else:
        assert torch.zeros(ROWS, pin_memory=False).sum().item() == 0
    assert auto.facts().stepped_aside == {}
