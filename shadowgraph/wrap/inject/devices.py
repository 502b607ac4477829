"""Device of an eager operator: the debugger of a process watches the GPU of the first one.

Called from the dispatch mode, in the thread of the operator.
"""

from __future__ import annotations

from typing import Any

import torch

from shadowgraph.graphs.dispatch.tensors import is_plain, tensors_in


def device_index(args: Any, kwargs: Any) -> int | None:
    """The index of the CUDA device of an operator's tensors, or of the device it is told to use; None for neither.

    A server's rank often initialises CUDA before it chooses its device, so the current device is not yet meaningful.
    """
    told = (
        each for each in (*args, *(kwargs or {}).values()) if isinstance(each, torch.device) and each.type == "cuda"
    )
    device = next(told, None)
    if device is not None:
        return torch.cuda.current_device() if device.index is None else device.index
    with torch._C.DisableTorchFunctionSubclass():  # a subclass's own overrides must not run
        tensors = (tensor for tensor in tensors_in((args, kwargs)) if is_plain(tensor, "cuda"))
        return next((tensor.get_device() for tensor in tensors), None)
