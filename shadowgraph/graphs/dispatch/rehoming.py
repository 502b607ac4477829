"""New memory for all tensors on a storage that cannot grow.

torch resizes a storage in place, so that every tensor on it sees the new memory. A storage with guards has a fixed
size: its tensors are given another storage. Called by the dispatch modes in the thread of the operator; no lock.
"""

from __future__ import annotations

import gc

import torch

from shadowgraph.graphs.dispatch.stepping_aside import PARTED, stepped_aside

_OWN = 2  # references to the storage: by the tensor, and by its Python object


def rehome(tensor: torch.Tensor, old: torch.UntypedStorage, new: torch.UntypedStorage) -> None:
    """Give all tensors on a storage another one, at least as large, at the places that they had.

    Tensors that are not known, or that torch leaves no other storage, stay where they are, which is counted: they no
    longer share memory with `tensor` then.
    """
    with torch._C.DisableTorchFunction():  # of subclasses, which are the program's code
        others = sharers(tensor, old)
        _put(tensor, new)
        kept = others is None
        for each in others or ():
            try:
                _put(each, new)
            except RuntimeError:
                kept = True
    if kept:
        stepped_aside(PARTED)


def _put(tensor: torch.Tensor, storage: torch.UntypedStorage) -> None:
    tensor.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def sharers(tensor: torch.Tensor, storage: torch.UntypedStorage) -> list[torch.Tensor] | None:
    """The other tensors on the storage of a tensor; None where code in C++ holds it without a Python object.

    Lists all objects of the process, unless there are no others.
    """
    count = torch._C._storage_Use_Count(storage._cdata) - _OWN
    if count <= 0:
        return []
    found = [each for each in gc.get_objects() if _is_on(each, storage) and each is not tensor]
    return found if len(found) == count else None


def _is_on(value: object, storage: torch.UntypedStorage) -> bool:
    if not issubclass(type(value), torch.Tensor):  # `isinstance` may run code of the program
        return False
    try:
        return bool(torch.Tensor.untyped_storage(value)._cdata == storage._cdata)  # type: ignore[arg-type]
    except Exception:  # a tensor without memory of its own
        return False
