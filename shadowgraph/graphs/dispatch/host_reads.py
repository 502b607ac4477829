"""Hooks for host reads that no dispatch mode sees: methods of torch.Tensor that return bytes to Python.

Patched for instances only. Tensors are queried here with ``__torch_function__`` disabled: the program's subclasses and
torch function modes see only the calls that the program makes, with torch's own functions. Runs in the reading thread
without a lock; `_settling` is held while methods are replaced.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.common.patching import PatchSet
from shadowgraph.graphs.dispatch.tensors import is_plain, view_of_memory
from shadowgraph.graphs.events import events, listeners
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.pool_watch import watch

_READS = ("tolist", "numpy", "__array__", "cpu", "to", "__dlpack__", "__repr__", "__reduce_ex__")
_HARMLESS_IN_CAPTURE = {"cpu", "to"}  # no-ops on the host, and copy nodes on CUDA


class _Local(threading.local):
    refuse: Callable[[str, torch.Tensor], None] | None = None
    busy = False


_local = _Local()
_patches = PatchSet(instances_only=True)
_resting = False
_refusers = 0  # threads that refuse reads now
_lifted = _applying = False
_lifts_left = 200 if sys.version_info >= (3, 13) else None  # a class has 1,000 versions for its caches there, no more
_settling = fork_safe(threading.RLock())
_of_host_memory = 0  # number of installs that also observe reads of host memory


def set_refuser(refuse: Callable[[str, torch.Tensor], None] | None) -> None:
    """Set a function that is called with the method's name before a host read, during a capture in this thread."""
    global _refusers
    with _settling:
        _refusers += (refuse is not None) - (_local.refuse is not None)
        _local.refuse = refuse
        _settle()


def install(of_host_memory: bool = True) -> None:
    """Patch the methods; counted, undone by `uninstall`.

    Parameters
    ----------
    of_host_memory
        Also report reads of tensors in host memory. A server reads these all the time, and CUDA graphs do not use them.
    """
    global _of_host_memory, _lifted
    with _settling:
        _of_host_memory += of_host_memory
        _lifted = _lifted and _patches.installed
        _patches.install([(torch.Tensor, name, _wrapper(name)) for name in _READS])
        _settle()


def uninstall(of_host_memory: bool = True) -> None:
    """Undo one `install` with the same argument."""
    global _of_host_memory
    with _settling:
        _of_host_memory -= of_host_memory
        _patches.uninstall()


def rest(on: bool) -> None:
    """Stop or resume reporting reads; a capture still refuses them. The methods are torch's own meanwhile: even to pass
    a call on costs microseconds, at each of a server's reads."""
    global _resting
    with _settling:
        _resting = on
        _settle()


def _settle() -> None:
    """Lift or lay the methods as is wanted. A signal handler in between leaves that to the call that it interrupted."""
    global _lifted, _applying, _lifts_left
    if _applying:
        return
    _applying = True
    try:
        while (wanted := _resting and not _refusers) is not _lifted:
            if wanted and _lifts_left == 0:
                break
            if wanted and _lifts_left is not None:
                _lifts_left -= 1
            _lifted = wanted
            _patches.lift() if wanted else _patches.lay()
    finally:
        _applying = False


def resting() -> bool:
    """Whether reads are not reported now."""
    return _resting


def reading() -> bool:
    """Whether this thread is in the middle of a read that was reported: operators that it runs are no reads of their
    own."""
    return _local.busy


def note_read(tensor: torch.Tensor, how: str, waits: bool = True) -> None:
    """Report that the host is about to read a tensor, and to wait for it unless `waits` is False."""
    if _resting or _local.busy or not listeners:
        return
    _local.busy = True
    try:
        view: TensorView | None = None
        with error_barrier("host read"), torch._C.DisableTorchFunction():
            view = _view_of(tensor)
        if view is not None and view.nbytes:
            events.host_read(view, how, waits)
            if watch.on and watch.covers(view.address):
                events.pool_read(tensor, view, how)
    finally:
        _local.busy = False


def _view_of(tensor: torch.Tensor) -> TensorView | None:
    if not tensor.is_cuda:
        return TensorView.of(tensor) if _of_host_memory and is_plain(tensor) else None
    return view_of_memory(tensor)


def _wrapper(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    to = name == "to"

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if (_resting and _local.refuse is None) or _local.busy or (to and not _to_cpu(args, kwargs)):
                return original(tensor, *args, **kwargs)
            if _local.refuse is None:
                note_read(tensor, name, not (kwargs.get("non_blocking") or True in args[1:]))
            elif name not in _HARMLESS_IN_CAPTURE:
                with torch._C.DisableTorchFunction():
                    _local.refuse(name, tensor)
            _local.busy = True  # one read is one event: __array__ calls numpy
            try:
                return original(tensor, *args, **kwargs)
            finally:
                _local.busy = False

        read.__name__ = name
        return read

    return wrap


def _to_cpu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    target = args[0] if args else None
    if not isinstance(target, str | torch.device):
        target = kwargs.get("device") if kwargs else None
    if isinstance(target, torch.device):
        return target.type == "cpu"
    return isinstance(target, str) and target.startswith("cpu")
