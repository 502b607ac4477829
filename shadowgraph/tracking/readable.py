"""Whether a buffer's memory may be read now. Any thread; no lock."""

from __future__ import annotations

from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.tracking.allocator import HostAllocator
from shadowgraph.tracking.foreign import still_there


def readable(buffer: Buffer, allocator: HostAllocator) -> bool:
    """Whether a buffer's memory, guards included, may be read: a freed tenant's may as long as its block has a
    tenant."""
    if buffer.role is Role.FOREIGN:
        return still_there(buffer)
    return buffer.alive or buffer.start in allocator.guards.tenants
