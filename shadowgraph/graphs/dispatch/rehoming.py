"""New memory behind tensors whose storage cannot grow, as torch puts it behind one that can.

torch resizes a storage, and with it every tensor on it. A storage with guards has a fixed size, so that its tensors get
another one, all of them or the one that is resized alone. Called by the dispatch modes in the thread of the operator;
no lock.
"""

from __future__ import annotations

import gc

import torch

from shadowgraph.graphs.dispatch.stepping_aside import PARTED, stepped_aside

_OWN = 2  # references to the storage: of the tensor, and of the object that stands for it here


def rehome(tensor: torch.Tensor, old: torch.UntypedStorage, new: torch.UntypedStorage) -> None:
    """Give all tensors on a storage another one, at least as large, at the places that they had.

    Where not all of them are known, the others stay where they are, which is counted: their memory and that of `tensor`
    part.
    """
    others = sharers(tensor, old)
    if others is None:
        stepped_aside(PARTED)
    for each in (tensor, *(others or ())):
        each.set_(new, each.storage_offset(), each.size(), each.stride())


def sharers(tensor: torch.Tensor, storage: torch.UntypedStorage) -> list[torch.Tensor] | None:
    """The other tensors on the storage of a tensor; None where something else holds it, or tensors without a Python
    object. Looks through all objects, in the rare case that there are any."""
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
