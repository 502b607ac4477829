"""Hooks for resizing guarded memory, which has a fixed size, where no dispatch mode sees the resize.

`UntypedStorage.resize_` is no operator: a resize that does not have to grow the storage leaves it unchanged.

Sharded optimisers free a tensor's storage that way, and restore its size later. Torch refuses both for memory that it
did not allocate; a program that did not ask for guards must not see that. `Tensor.resize_` is an operator, and the mode
that sees it makes room first; if the mode is off the thread's stack, it must return before. A large buffer on a device
has memory of torch's, which is resized as ever; the guard behind what it had is given up. Any thread; no lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.common.patching import PatchSet
from shadowgraph.graphs.dispatch.eager_guard import LARGEST
from shadowgraph.graphs.dispatch.tensors import is_lazy_copy
from shadowgraph.tracking.allocator import HostAllocator

_storages = PatchSet()
_tensors = PatchSet(instances_only=True)


def install(allocator: HostAllocator, observe_all: Callable[[], None]) -> None:
    """Patch the resize methods of storages and tensors; counted, undone by `uninstall`.

    Parameters
    ----------
    observe_all
        Called before a tensor in guarded memory is resized: from then on this thread's operators are seen.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def resize_(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            fixed = not storage.resizable() and isinstance(size, int) and size <= storage.nbytes()
            if fixed and allocator.holds(storage.data_ptr()):
                return storage
            large = storage.is_cuda and storage.nbytes() > LARGEST
            result: torch.UntypedStorage = original(storage, size)
            if large:
                with error_barrier("resize of a large buffer"):
                    allocator.sweep_large()
            return result

        return resize_

    def wrap_tensors(original: Callable[..., Any]) -> Callable[..., Any]:
        def resize(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            with error_barrier("resize of a tensor"), torch._C.DisableTorchFunction():
                if tensor.layout is torch.strided and _is_fixed(tensor) and allocator.holds(tensor.data_ptr()):
                    observe_all()
            return original(tensor, *args, **kwargs)

        return resize

    _storages.install([(torch.UntypedStorage, "resize_", wrap)])
    _tensors.install([(torch.Tensor, name, wrap_tensors) for name in ("resize_", "resize_as_")])


def uninstall() -> None:
    """Undo one `install`."""
    _tensors.uninstall()
    _storages.uninstall()


def _is_fixed(tensor: torch.Tensor) -> bool:
    return not (is_lazy_copy(tensor) or tensor.untyped_storage().resizable())
