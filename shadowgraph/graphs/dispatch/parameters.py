"""Moves tensors out of guarded memory when they become parameters: these need no guards, and would use up the budget.
Large ones stay where they are: they would exist twice.

`torch.nn.Parameter.__new__` is patched; runs in the program's thread, without a lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.common.patching import PatchSet
from shadowgraph.graphs.dispatch.eager_guard import LARGEST
from shadowgraph.graphs.dispatch.tensors import is_plain
from shadowgraph.tracking.allocator import HostAllocator

_patches = PatchSet()
_OWNERS = 2  # references to a storage with one tensor: the tensor, and the handle used here


def install(allocator: HostAllocator) -> None:
    """Patch the construction of `torch.nn.Parameter`; counted, undone by `uninstall`."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def make(cls: type, data: Any = None, *args: Any, **kwargs: Any) -> Any:
            if isinstance(data, torch.Tensor):
                with error_barrier("parameter"):
                    leave_guards(data, allocator)
            return original(cls, data, *args, **kwargs)

        return make

    _patches.install([(torch.nn.Parameter, "__new__", wrap)])


def uninstall() -> None:
    """Undo one `install`."""
    _patches.uninstall()


def leave_guards(tensor: torch.Tensor, allocator: HostAllocator) -> bool:
    """Move a tensor's bytes out of guarded memory, if no other tensor shares them; returns whether they were moved."""
    if type(tensor) is not torch.Tensor or tensor.requires_grad:
        return False
    if not is_plain(tensor, torch.device(allocator.device).type) or not tensor.numel():
        return False
    storage = tensor.untyped_storage()
    if storage.resizable() or storage.nbytes() > LARGEST or not allocator.holds(storage.data_ptr()):
        return False
    owner = allocator.ledger.at(storage.data_ptr())
    if owner is not None and owner.fence >= 0:
        return False
    if torch._C._storage_Use_Count(storage._cdata) > _OWNERS:
        return False
    fresh = torch.UntypedStorage(storage.nbytes(), device=storage.device)
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        fresh.copy_(storage)
        tensor.set_(fresh, tensor.storage_offset(), tensor.size(), tensor.stride())
    return True
