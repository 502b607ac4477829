"""Code that hard-codes the CUDA device runs on the CPU inside the block, and only there."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shadowgraph.demos.sglang.host_device import host_device


def device_asked_for() -> str:
    """Where ``device="cuda"`` leads now; a machine without a GPU refuses it."""
    try:
        return torch.zeros(1, device="cuda").device.type
    except (AssertionError, RuntimeError):
        return "cuda"


def test_factories_and_moves_land_on_the_cpu() -> None:
    here = torch.ones(2)
    cuda = torch.device("cuda", 0)
    with host_device():
        made = [
            torch.zeros(2, device="cuda"),
            torch.empty((2, 2), dtype=torch.int32, device="cuda:0"),
            torch.tensor([1], device=cuda),
            torch.arange(3, device=0),
            torch.empty_like(here, device=cuda),
            here.new_full((2,), 3.0, device="cuda"),
            here.to("cuda"),
            here.to(cuda, torch.float64),
            here.to(device="cuda", dtype=torch.int64),
            here.to(0),
            here.cuda(),
            here.cuda(0, non_blocking=True),
        ]
        with torch.device("cuda"):
            made.append(torch.zeros(2))
        made += torch.nn.Linear(2, 2).to("cuda").parameters()
    assert {tensor.device.type for tensor in made} == {"cpu"}
    assert made[7].dtype == torch.float64
    assert made[8].dtype == torch.int64


def test_everything_else_passes_unchanged() -> None:
    here = torch.ones(2)
    with host_device():
        assert here.to(torch.int32).dtype == torch.int32
        assert here.to(torch.zeros(1, dtype=torch.float64)).dtype == torch.float64
        assert torch.zeros(2, device="meta").device.type == "meta"
        assert here.to("meta").device.type == "meta"
        assert torch.add(here, here, alpha=2).tolist() == [3.0, 3.0]


def test_nested_blocks_end_one_by_one() -> None:
    with host_device():
        with host_device():
            assert device_asked_for() == "cpu"
        assert device_asked_for() == "cpu"
    assert device_asked_for() == "cuda"


def test_block_ends_with_an_error() -> None:
    try:
        with host_device():
            raise KeyError
    except KeyError:
        pass
    assert device_asked_for() == "cuda"


class Devices(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[str, str]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen.append((func.__name__, str((kwargs or {}).get("device"))))
        return func(*args, **(kwargs or {}))


def test_dispatch_modes_see_a_cpu_call_inside_and_outside_the_block() -> None:
    with Devices() as outer, host_device():
        torch.zeros(2, device="cuda")
    with host_device(), Devices() as inner:
        torch.zeros(2, device="cuda")
    assert outer.seen == inner.seen == [("zeros.default", "cpu")]
