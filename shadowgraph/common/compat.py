"""Differences between versions of torch, cupy and cuda-bindings, and requirement checks that name the installed
version, the required one and the command that fixes it."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch

from shadowgraph.common.errors import BackendError, MissingPackageError
from shadowgraph.common.install_hint import install_command

OLDEST_TORCH = (2, 10)
T = TypeVar("T")


def torch_version() -> tuple[int, ...]:
    """The major and minor version of torch."""
    return tuple(int(part) for part in str(torch.__version__).split("+")[0].split(".")[:2])


def require_torch() -> None:
    """Raise unless torch is new enough."""
    if torch_version() < OLDEST_TORCH:
        need = ".".join(map(str, OLDEST_TORCH))
        raise BackendError(f"have torch {torch.__version__}, need {need} or later; run: pip install -U torch")


def require_gpu() -> None:
    """Raise unless a CUDA device can be used in this process."""
    require_torch()
    if torch.version.cuda is None:
        raise BackendError(
            f"have torch {torch.__version__} without CUDA; install a CUDA build, or use backend='host' (HostGraph)"
        )
    if not torch.cuda.is_available():
        raise BackendError(
            "no CUDA device is visible here; use backend='host' (HostGraph), or run on a machine with a GPU"
        )


@cache
def require_cupy() -> Any:
    """The cupy module, if it is built for torch's CUDA version.

    Raises
    ------
    MissingPackageError
        When cupy is missing, or built for another major version of CUDA.
    """
    major = (torch.version.cuda or "0").split(".")[0]
    wanted = install_command(f"cuda{major}")
    try:
        import cupy
    except ImportError as error:
        raise MissingPackageError(f"checks on a GPU need cupy ({error}); run: {wanted}") from None
    have = str(cupy.cuda.runtime.runtimeGetVersion() // 1000)
    if have != major:
        raise MissingPackageError(f"have a cupy for CUDA {have}, need one for CUDA {major}; run: {wanted}")
    return cupy


@cache
def _runtime() -> Any:
    try:
        from cuda.bindings import runtime
    except ImportError:
        try:
            from cuda import cudart as runtime  # cuda-python before 12.8
        except ImportError:
            raise _no_bindings("reading CUDA graphs") from None
    return runtime


@cache
def require_driver() -> Any:
    """The driver's module of cuda-bindings.

    Raises
    ------
    MissingPackageError
        When it is missing.
    """
    try:
        from cuda.bindings import driver
    except ImportError:
        try:
            from cuda import cuda as driver  # cuda-python before 12.8
        except ImportError:
            raise _no_bindings("fenced memory") from None
    return driver


def _no_bindings(what: str) -> MissingPackageError:
    major = (torch.version.cuda or "13").split(".")[0]
    return MissingPackageError(f"{what} needs cuda-bindings; run: {install_command(f'cuda{major}', 'cuda-bindings')}")


@contextmanager
def relaxed_capture() -> Iterator[None]:
    """Allow this thread calls that a capture elsewhere in the process would forbid (allocation, a wait).

    A thread-local switch of the CUDA runtime; torch does the same around its allocator.
    """
    runtime = _runtime()
    mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed
    error, before = runtime.cudaThreadExchangeStreamCaptureMode(mode)
    try:
        yield
    finally:
        if int(error) == 0:
            runtime.cudaThreadExchangeStreamCaptureMode(before)


def resolved(backend: str) -> str:
    """Resolve ``auto`` to a backend's name. Asks the driver's management library, which starts nothing on the
    device."""
    if backend != "auto":
        return backend
    if torch.version.cuda is None:
        return "host"
    count: Any = torch.cuda._device_count_nvml()
    return "cuda" if count > 0 or (count < 0 and os.path.exists("/dev/nvidiactl")) else "host"


# Types in C whose objects clear their weak references as they end; subclasses written in Python inherit that.
_SOUND = (set, frozenset, deque, torch.Tensor, torch.UntypedStorage)


def weak_reference(value: T, callback: Callable[[weakref.ref[T]], object] | None = None) -> weakref.ref[T]:
    """A weak reference to an object of the program's, whatever it is.

    Raises
    ------
    TypeError
        For objects that cannot be referenced so, and for those of which it is not known that they clear their weak
        references as they end. torch's CUDA streams and events do not before torch 2.13 (pytorch #183403): a reference
        that outlives its stream is written to freed memory when it ends itself, and the process dies.
    """
    kind = type(value)
    if not (any("__weakref__" in each.__dict__ for each in kind.__mro__) or issubclass(kind, _SOUND)):
        raise TypeError(f"weak references to {kind.__qualname__!r} are not known to be cleared")
    return weakref.ref(value, callback)
