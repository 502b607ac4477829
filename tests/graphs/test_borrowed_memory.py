"""Which functions that make tensors over memory of others are patched."""

from __future__ import annotations

import pytest
import torch

from shadowgraph.graphs.dispatch import borrowed_memory
from shadowgraph.tracking.allocator import HostAllocator


@pytest.mark.parametrize(("device", "of_host_memory"), [("cpu", True), ("cuda:0", False)])
def test_a_function_for_host_memory_alone_is_torchs_own_where_pools_lie_on_a_device(
    device: str, of_host_memory: bool
) -> None:
    before, allocator = (torch.frombuffer, torch._C._from_dlpack), HostAllocator()
    allocator.device = device
    borrowed_memory.install(allocator)
    try:
        assert (torch.frombuffer is not before[0]) is of_host_memory
        assert torch._C._from_dlpack is not before[1]
    finally:
        borrowed_memory.uninstall()
    assert (torch.frombuffer, torch._C._from_dlpack) == before
