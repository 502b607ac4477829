"""`UntypedStorage.resize_` on memory of ours, which has one size: what does not have to grow is left as it is.

Sharded optimisers free a tensor's storage so, and give it its old size back later. Torch refuses both for memory that
it did not allocate; a program that did not ask for guards must not see that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shadowgraph.patching import PatchSet
from shadowgraph.tracking.allocator import HostAllocator

_patches = PatchSet()


def install(allocator: HostAllocator) -> None:
    """Watch storages being resized; counted, undone by `uninstall`."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def resize_(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            fixed = not storage.resizable() and isinstance(size, int) and size <= storage.nbytes()
            if fixed and allocator.holds(storage.data_ptr()):
                return storage
            result: torch.UntypedStorage = original(storage, size)
            return result

        return resize_

    _patches.install([(torch.UntypedStorage, "resize_", wrap)])


def uninstall() -> None:
    """Undo one `install`."""
    _patches.uninstall()
