"""The process's allocator for one test at a time."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from shadowgraph.common.finalizer_safe_lock import run_deferred
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.model.guards import GuardPolicy
from shadowgraph.tracking.allocator import HostAllocator, host_allocator


@pytest.fixture
def allocator() -> Iterator[HostAllocator]:
    """The process's allocator with its switches put back, and no fault of ours on the way."""
    gc.collect()
    run_deferred()
    made, before = host_allocator(), internal_errors.total
    yield made
    made.policy, made.guards.last_check, made.isolate_captures = None, None, False
    assert internal_errors.total == before, internal_errors.counts


@pytest.fixture
def policy(allocator: HostAllocator) -> GuardPolicy:
    allocator.policy = GuardPolicy(near=512, far=1024, budget=1 << 20)
    return allocator.policy
