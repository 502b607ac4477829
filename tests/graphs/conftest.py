"""The process's allocator for one test at a time, and the compiled observer for a module of tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from support.compiled_observer import cache_with_the_library

from shadowgraph.common.finalizer_safe_lock import run_deferred
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.graphs.observer import building
from shadowgraph.graphs.observer.library import Library, loaded
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


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    home = cache_with_the_library(tmp_path_factory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home))
        patch.delenv("CXX", raising=False)
        yield loaded(building.library())
