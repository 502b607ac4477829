"""Tracks whether the program routes allocations to a memory pool: tensors allocated there must stay there.

`torch.cuda.use_mem_pool`, cudagraph trees of `torch.compile`, NCCL symmetric memory and memory savers all begin and end
with the same functions of torch's allocator, whose state cannot be queried. They are patched in every module that has
imported them. Called by the program, on any thread, without a lock; `eager` asks `routed` before it moves an
allocation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.common.patching import PatchSet, Target, holders

_BEGIN = "_cuda_beginAllocateCurrentThreadToPool"  # for one thread
_BEGIN_ALL = ("_cuda_beginAllocateToPool", "_cuda_beginAllocateCurrentStreamToPool")  # for any thread
_END = ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool")

entered: list[Callable[[tuple[int, int]], object]] = []  # called with a pool whose route has begun, outside a capture

_patches = PatchSet()
_routes: dict[tuple[Any, ...], int | None] = {}  # by device and pool: the thread, or None for any


def install() -> None:
    """Patch the functions; counted, undone by `uninstall`. Names that this torch lacks are left out."""
    _patches.install(
        [
            *_targets(_BEGIN, _noting(lambda key: _begin(key, threading.get_ident()))),
            *(target for name in _BEGIN_ALL for target in _targets(name, _noting(lambda key: _begin(key, None)))),
            *(target for name in _END for target in _targets(name, _noting(lambda key: _routes.pop(key, None)))),
        ]
    )


def uninstall() -> None:
    """Undo one `install`."""
    _patches.uninstall()
    if not _patches.installed:
        _routes.clear()


def routed() -> bool:
    """Whether an allocation by this thread may go to one of the program's pools now."""
    return bool(_routes) and any(thread in (None, threading.get_ident()) for thread in list(_routes.values()))


def leads_to(pool: tuple[int, int]) -> bool:
    """Whether allocations outside of captures may go to a pool now, by any thread."""
    return any((key[1], key[2]) == pool for key in list(_routes))


def _begin(key: tuple[Any, ...], thread: int | None) -> None:
    # A capture ends its pool's route itself, unseen; no allocation is moved in a capture anyway.
    if not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
        _routes[key] = thread
        for entry in entered:
            entry((int(key[1]), int(key[2])))


def _targets(name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> list[Target]:
    return [(module, name, wrap) for module, name in holders(torch._C, name)]


def _noting(note: Callable[[tuple[Any, ...]], object]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def route(device: Any, pool: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(device, pool, *args, **kwargs)
            with error_barrier("memory pool"):
                note((int(device), *pool))
            return result

        return route

    return wrap
