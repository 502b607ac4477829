"""What stands around a tensor's block."""

from __future__ import annotations

import torch

from shadowgraph.model.buffers import Buffer
from shadowgraph.model.canary import canary
from shadowgraph.tracking.allocator import HostAllocator, host_allocator


def buffer_of(tensor: torch.Tensor) -> Buffer:
    found = host_allocator().ledger.at(tensor.data_ptr())
    assert found is not None
    return found


def around(allocator: HostAllocator, buffer: Buffer) -> tuple[bytes, bytes]:
    arena = allocator.arena
    head = arena.view(buffer.start - buffer.head_guard, buffer.start)
    return head.tobytes(), arena.view(buffer.stop, buffer.stop + buffer.tail_guard).tobytes()


def intact(allocator: HostAllocator, buffer: Buffer) -> bool:
    base = allocator.arena.base
    head = canary(buffer.start - buffer.head_guard - base, buffer.head_guard)
    return around(allocator, buffer) == (head, canary(buffer.stop - base, buffer.tail_guard))
