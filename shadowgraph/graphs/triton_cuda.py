"""Triton launches on a GPU: noted into the capture of their thread, or told to the listeners as eager launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from shadowgraph.faults import shielded
from shadowgraph.graphs import cuda_capture
from shadowgraph.graphs.events import emit, listeners
from shadowgraph.graphs.model import Access, Launch, LaunchKind, Pointer
from shadowgraph.graphs.tensors import is_plain, named_tensors, opened, view_facts
from shadowgraph.patching import PatchSet, Target
from shadowgraph.tracking.launches import CompiledCall
from shadowgraph.tracking.stacks import cell_label, current_stack

_patches = PatchSet()
# Of an argument of compiled code, by its name.
_PREFIXES = {"in_out_ptr": Access.READ_WRITE, "in_ptr": Access.READ, "out_ptr": Access.WRITE}


def install() -> None:
    """Hook the launcher where Triton is installed; counted, undone by `uninstall`."""
    try:
        from triton.runtime.jit import JITFunction
    except ImportError:
        return
    targets: list[Target] = [(JITFunction, "run", _wrap_run)]
    try:
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        targets.append((CachingAutotuner, "run", _wrap_inductor))
    except ImportError:  # another torch keeps it elsewhere: compiled kernels are not seen
        pass
    _patches.install(targets)


def uninstall() -> None:
    """Undo one `install`."""
    _patches.uninstall()


def _wrap_run(original: Callable[..., Any]) -> Callable[..., Any]:
    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        launch: Launch | None = None
        if not warmup and (listeners or cuda_capture.current() is not None):
            with shielded("triton launch"):
                launch = _describe(kernel, args, kwargs, grid)
        with _told(launch):
            return original(kernel, *args, grid=grid, warmup=warmup, **kwargs)

    return run


def _wrap_inductor(original: Callable[..., Any]) -> Callable[..., Any]:
    def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        launch: Launch | None = None
        if not kwargs.get("benchmark_run") and (listeners or cuda_capture.current() is not None):
            with shielded("compiled launch"):
                launch = _describe_compiled(kernel, args)
        with _told(launch):
            return original(kernel, *args, **kwargs)

    return run


@contextmanager
def _told(launch: Launch | None) -> Iterator[None]:
    """Tell who listens before a launch and after it, or the capture that it belongs to."""
    mode = cuda_capture.current()
    if launch is None:
        yield
    elif mode is not None:
        with mode.triton(launch):
            yield
    else:
        emit("launch_begins", launch, ())
        yield
        emit("launch_ran", launch, None)


def _describe_compiled(kernel: Any, args: tuple[Any, ...]) -> Launch:
    """A launch of compiled code: inductor says in an argument's name what the kernel does to it."""
    pointers, numbers = [], []
    for name, value in zip(kernel.fn.arg_names, args, strict=False):
        if isinstance(value, torch.Tensor) and is_plain(value, "cuda"):
            access = next((access for start, access in _PREFIXES.items() if name.startswith(start)), Access.UNKNOWN)
            pointers.append(Pointer(name, view_facts(value, _place(value.get_device())), access))
        elif isinstance(value, int):
            numbers.append((name, value))
    compiled = CompiledCall(kernel.fn, tuple(numbers), str(getattr(kernel, "filename", None) or ""))
    return Launch(LaunchKind.TRITON, kernel.fn.__name__, tuple(pointers), current_stack(), compiled=compiled)


@cache
def _place(index: int) -> str:
    return f"cuda:{index}"


def _describe(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any) -> Launch:
    names = tuple(parameter.name for parameter in kernel.params)
    pointers = [
        Pointer(name, view_facts(tensor, _place(tensor.get_device())), Access.UNKNOWN)
        for name, tensor in named_tensors(names, *opened(args, kwargs))
        if is_plain(tensor, "cuda")
    ]
    code = kernel.fn.__code__
    return Launch(
        kind=LaunchKind.TRITON,
        name=kernel.fn.__name__,
        pointers=tuple(pointers),
        stack=current_stack(),
        grid=None if callable(grid) else tuple(int(n) for n in grid),
        source=f"{cell_label(code.co_filename) or code.co_filename}:{code.co_firstlineno}",
    )
