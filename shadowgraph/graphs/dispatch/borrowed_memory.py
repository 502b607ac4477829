"""Tensors and storages over memory that they do not own, noted as they are made: raw pointers, Python buffers, DLPack.

No dispatch mode sees these functions. The replacements run in the program's threads, without a lock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.common.patching import PatchSet, Target, holders
from shadowgraph.graphs.dispatch.tensors import is_plain
from shadowgraph.tracking import passing
from shadowgraph.tracking.allocator import HostAllocator
from shadowgraph.tracking.foreign import note_alias
from shadowgraph.tracking.pool_watch import note_birth

_patches = PatchSet()
_RAW = "_construct_storage_from_data_pointer"  # its storages own nothing
_FUNCTIONS = (torch._C, _RAW), (torch._C, "_from_dlpack")
_OF_HOST_MEMORY = torch, "frombuffer"


def install(allocator: HostAllocator) -> None:
    """Patch the functions; counted, undone by `uninstall`."""
    if not _patches.installed:
        functions = (*_FUNCTIONS, _OF_HOST_MEMORY) if allocator.device == "cpu" else _FUNCTIONS
        places = [place for module, name in functions for place in holders(module, name)]
        targets: list[Target] = [(module, name, partial(_wrap, allocator)) for module, name in places]
        _patches.install(targets)
    else:
        _patches.install(())


def uninstall() -> None:
    """Undo one `install`."""
    _patches.uninstall()


def note_tensor(made: Any, allocator: HostAllocator, alias: bool = False) -> None:
    """Note a tensor or storage that was just made, if it owns none of its memory; of an `alias` that is known."""
    try:
        if isinstance(made, torch.Tensor):
            made = made.untyped_storage() if is_plain(made, made.device.type) else None
        if not isinstance(made, torch.UntypedStorage):
            return
        if alias:
            note_alias(made)
        if not passing.on and allocator.lends(made):
            note_birth(made, allocator.ledger)
    except Exception as error:
        internal_errors.note("memory of others", error)


def _wrap(allocator: HostAllocator, original: Callable[..., Any]) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        alias = original.__name__ == _RAW
        if alias or not passing.on:
            note_tensor(made, allocator, alias)
        return made

    make.__name__ = make.__qualname__ = original.__name__
    make.__doc__ = original.__doc__
    return make
