"""Host memory by address: storages and numpy views over a range of this process. Owns nothing."""

from __future__ import annotations

import ctypes
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from numpy.ctypeslib import as_array  # here: an interrupt in the middle of NumPy's lazy import breaks it for good

_CPU = torch.device("cpu")
construct_storage = torch._C._construct_storage_from_data_pointer  # the program's calls of it are noted, ours are not


def storage_at(start: int, nbytes: int) -> torch.UntypedStorage:
    """A storage over ``[start, start + nbytes)`` that owns nothing and cannot be resized."""
    return cast(torch.UntypedStorage, construct_storage(start, _CPU, nbytes))


def raw_bytes(start: int, nbytes: int) -> npt.NDArray[np.uint8]:
    """Writable view of ``[start, start + nbytes)``. Owns nothing; the caller knows that the memory is mapped."""
    if nbytes == 0:
        return np.empty(0, dtype=np.uint8)
    view: npt.NDArray[np.uint8] = as_array((ctypes.c_uint8 * nbytes).from_address(start))
    return view
