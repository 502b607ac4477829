"""Which GPU an eager operator works on: that of the first one is the one that the debugger of a process watches."""

from __future__ import annotations

from typing import Any

import torch

from shadowgraph.graphs.tensors import is_plain, tensors_in


def device_index(args: Any, kwargs: Any) -> int | None:
    """The index of the CUDA device that an operator is given a tensor of, or told to make one on; None for none.

    A rank of a server often initialises CUDA before it chooses its device, so that the current one says nothing yet.
    """
    told = kwargs.get("device") if kwargs else None
    if isinstance(told, torch.device) and told.type == "cuda":
        return torch.cuda.current_device() if told.index is None else told.index
    tensors = (tensor for tensor in tensors_in(args) if is_plain(tensor, "cuda"))
    return next((tensor.get_device() for tensor in tensors), None)
