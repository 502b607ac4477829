"""What vLLM catches in its worker and its engine core is joined with what is known before it is lost; ranks."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import shadowgraph as sg
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.integrations import notices
from shadowgraph.integrations.vllm.hooks import Hooks
from shadowgraph.integrations.vllm.runners import rank_of

ERROR = RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE_CUDA_DSA")


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    made = Hooks()
    before = internal_errors.total
    yield made
    made.forget()
    assert internal_errors.total == before, internal_errors.counts


def fails(*args: Any) -> None:
    raise ERROR


@pytest.mark.parametrize(
    ("hook", "where"),
    [
        ("engine", "vLLM's engine core"),
        ("work", "vLLM's worker"),
        ("sample", "vLLM's sampling"),
        ("output", "vLLM's output"),
        ("execute", "vLLM's model runner"),
    ],
)
def test_exceptions_are_joined_and_handed_on(hooks: Hooks, hook: str, where: str) -> None:
    with sg.debug() as debugger:
        with debugger.guard():
            rows = torch.arange(4, dtype=torch.int32)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            rows + 1
        graph.replay()
        with pytest.raises(RuntimeError) as raised:
            getattr(hooks, hook)(fails)(object())
        (failure,) = debugger.facts().failures
        assert getattr(hooks, hook)(lambda owner, value: value)(object(), 5) == 5
    assert raised.value is ERROR
    assert (failure.kind, failure.where, failure.graph, failure.replay) == ("device", where, graph.model.name, 1)


def test_an_error_that_passes_several_is_joined_once(hooks: Hooks) -> None:
    with sg.debug() as debugger:
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            torch.ones(2)
        graph.replay()
        with pytest.raises(RuntimeError):
            hooks.engine(hooks.work(fails))(object())
        assert [failure.where for failure in debugger.facts().failures] == ["vLLM's worker"]


def test_other_exceptions_are_the_programs_own(hooks: Hooks) -> None:
    def leaves(core: object) -> None:
        raise SystemExit

    with sg.debug() as debugger:
        with pytest.raises(SystemExit):
            hooks.engine(leaves)(object())
        assert debugger.facts().failures == ()
    with pytest.raises(RuntimeError):
        hooks.engine(fails)(object())  # nothing watches


@pytest.mark.parametrize(
    ("world", "replicas", "replica", "rank", "said"),
    [(1, 1, 0, 0, None), (4, 1, 0, 3, 3), (2, 2, 1, 1, 3), (1, 2, 1, 0, 1), (1, 1, 1, 0, 1)],
)
def test_the_rank_of_a_worker(
    hooks: Hooks,
    world: int,
    replicas: int,
    replica: int,
    rank: int,
    said: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine of replicas without experts is told that it is the only one; its index stays."""
    config = SimpleNamespace(world_size=world, data_parallel_size=replicas, data_parallel_index=replica)
    worker = SimpleNamespace(parallel_config=config, rank=rank)
    assert rank_of(worker) == said
    places: list[int] = []
    monkeypatch.setattr(notices, "_place", places.append)
    assert hooks.device(lambda worker: 7)(worker) == 7
    assert places == ([] if said is None else [said])


@pytest.mark.parametrize(("device", "by_user", "said"), [("cuda:0", None, 1), ("cuda:0", 1 << 30, 0), ("cpu", None, 0)])
def test_memory_that_vllm_found_taken(
    hooks: Hooks, device: str, by_user: int | None, said: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(notices, "_tell", lines.append)
    monkeypatch.setattr(notices, "_told", set())
    interface = SimpleNamespace(device=device, reserved_bytes=3 << 20)
    monkeypatch.setattr(hooks, "_adapter", lambda: interface)
    cache = SimpleNamespace(kv_cache_memory_bytes=by_user)
    runner: Any = SimpleNamespace(kv_cache_config=SimpleNamespace(num_blocks=1234), cache_config=cache)
    for _ in range(2):
        hooks._tell_memory(runner)
    assert len(lines) == said
    for line in lines:
        assert "3 MiB of cuda:0 were shadowgraph's when vllm sized its KV cache" in line
        assert "1,234" in line
