"""Which GPU an eager operator works on: that of the first one is the one that the debugger of a process watches."""

from __future__ import annotations

from typing import Any

import torch

from shadowgraph.graphs.dispatch.tensors import is_plain, tensors_in


def device_index(args: Any, kwargs: Any) -> int | None:
    """The index of the CUDA device that an operator is given a tensor of, or told to make one on; None for none.

    A rank of a server often initialises CUDA before it chooses its device, so that the current one says nothing yet.
    """
    told = (
        each for each in (*args, *(kwargs or {}).values()) if isinstance(each, torch.device) and each.type == "cuda"
    )
    device = next(told, None)
    if device is not None:
        return torch.cuda.current_device() if device.index is None else device.index
    with torch._C.DisableTorchFunctionSubclass():  # what a subclass says of itself is the program's own affair
        tensors = (tensor for tensor in tensors_in((args, kwargs)) if is_plain(tensor, "cuda"))
        return next((tensor.get_device() for tensor in tensors), None)
