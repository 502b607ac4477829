"""Host reads that no dispatch mode sees: methods of torch.Tensor that hand bytes to Python."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from shadowgraph.faults import shielded
from shadowgraph.graphs.events import emit, listeners
from shadowgraph.graphs.tensors import is_plain
from shadowgraph.patching import PatchSet
from shadowgraph.tracking.stacks import current_stack
from shadowgraph.tracking.views import TensorView

_READS = ("tolist", "numpy", "__array__", "cpu", "to", "__dlpack__", "__repr__", "__reduce_ex__")
_HARMLESS_IN_CAPTURE = {"cpu", "to"}  # no-ops on the host, and copy nodes on CUDA


class _Local(threading.local):
    refuse: Callable[[str, torch.Tensor], None] | None = None
    busy = False


_local = _Local()
_patches = PatchSet()


def set_refuser(refuse: Callable[[str, torch.Tensor], None] | None) -> None:
    """During a capture in this thread: called with the method's name before a host read."""
    _local.refuse = refuse


def install() -> None:
    """Watch the methods; counted, undone by `uninstall`."""
    _patches.install([(torch.Tensor, name, _wrapper(name)) for name in _READS])


def uninstall() -> None:
    """Undo one `install`."""
    _patches.uninstall()


def note_read(tensor: torch.Tensor, how: str, waits: bool = True) -> None:
    """Tell the listeners that the host is about to read a tensor, and to wait for it unless `waits` is False."""
    if _local.busy or not listeners:
        return
    _local.busy = True
    try:
        view: TensorView | None = None
        with shielded("host read"):
            view = TensorView.of(tensor) if (tensor.is_cuda or is_plain(tensor)) else None
        if view is not None and view.nbytes:
            emit("host_read", view, how, current_stack(), waits)
    finally:
        _local.busy = False


def _wrapper(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if _local.busy or (name == "to" and not _to_cpu(args, kwargs)):
                return original(tensor, *args, **kwargs)
            if _local.refuse is None:
                note_read(tensor, name, not (kwargs.get("non_blocking") or True in args[1:]))
            elif name not in _HARMLESS_IN_CAPTURE:
                _local.refuse(name, tensor)
            _local.busy = True  # one read is one event: __array__ calls numpy, a torch function mode calls us twice
            try:
                return original(tensor, *args, **kwargs)
            finally:
                _local.busy = False

        read.__name__ = name
        return read

    return wrap


def _to_cpu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    targets = (*args[:1], kwargs.get("device"))
    return any(isinstance(t, str | torch.device) and str(t).startswith("cpu") for t in targets)
