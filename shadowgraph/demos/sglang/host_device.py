"""Torch function mode that redirects hard-coded CUDA devices to the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_HOST = torch.device("cpu")


def _is_cuda(value: object) -> bool:
    """Whether a device argument means CUDA: ``"cuda"``, ``"cuda:1"``, a ``torch.device``, or a bare ordinal."""
    if isinstance(value, torch.device):
        return value.type == "cuda"
    if isinstance(value, str):
        return value == "cuda" or value.startswith("cuda:")
    return type(value) is int


class HostDeviceMode(TorchFunctionMode):
    """Rewrite CUDA device arguments of torch functions to the CPU.

    Works above dispatch: a ``TorchDispatchMode`` that is active at the same time sees the rewritten call as an ordinary
    CPU call. Enter it through `host_device`.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.cuda:
            return torch.Tensor.cpu(args[0], **{k: v for k, v in (kwargs or {}).items() if k == "memory_format"})
        if func is torch.Tensor.to and len(args) > 1 and _is_cuda(args[1]):
            args = (args[0], _HOST, *args[2:])
        if not kwargs:
            return func(*args)
        if _is_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": _HOST}
        return func(*args, **kwargs)


@contextmanager
def host_device() -> Iterator[None]:
    """Redirect ``device="cuda"`` of torch factories, ``Tensor.to`` and ``Tensor.cuda`` to the CPU inside the block.

    Yields
    ------
    None

    Notes
    -----
    Applies to the calling thread, may be nested, and ends with the block. As on a GPU, moving a tensor to the device
    that already holds it returns the tensor itself; unlike there, that includes tensors that came from the host. Pinned
    memory, streams, events and a default device set outside the block are not affected.
    """
    with HostDeviceMode():
        yield
