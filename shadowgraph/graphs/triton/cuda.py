"""Triton launches on a GPU: recorded in the capture of their thread, or reported to the listeners as eager launches.

The patched launchers run in the launching thread, without a lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.common.patching import PatchSet, Target
from shadowgraph.graphs import launch_rows
from shadowgraph.graphs.cuda import capture as cuda_capture
from shadowgraph.graphs.dispatch.tensors import is_plain, named_tensors, opened, place_of, view_facts
from shadowgraph.graphs.events import events, listeners
from shadowgraph.graphs.triton.compiled import note_code
from shadowgraph.model.graphs import Access, Launch, LaunchKind, Pointer
from shadowgraph.model.launches import CompiledCall
from shadowgraph.model.stacks import cell_label, current_stack
from shadowgraph.tracking import passing
from shadowgraph.tracking.pointer_tables import tables

_patches = PatchSet()
_KERNELS = 4096  # most kernels with cached parameters
_Signature = tuple[Any, tuple[str, ...], str, int]  # the code, its parameters, its file and line
_signatures: dict[int, _Signature] = {}
# Access to an argument of compiled code, by prefix of its name.
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
    # The kernel is the first of the arguments throughout: taken apart and put together again, these would cost more.
    def run(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("warmup"):
            kernel, grid = args[0], kwargs.get("grid")
            launch_rows.see_grid(kernel, grid)  # first: it may end the passing
            if passing.on:
                function = getattr(kernel, "fn", kernel)  # which rows keep alive: the rest of it is large
                launch_rows.note(function, args, kwargs, grid, launch_rows.stream())
                return original(*args, **kwargs)
        return seen(*args, **kwargs)

    def seen(kernel: Any, /, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        launch: Launch | None = None
        mode = cuda_capture.current()
        if not warmup and (mode is not None or listeners):
            with error_barrier("triton launch"):
                launch = _describe(kernel, args, kwargs, grid)
        if launch is None:
            return original(kernel, *args, grid=grid, warmup=warmup, **kwargs)
        if mode is not None:
            with mode.triton(launch):
                result = original(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            note_code(launch, result)
            return result
        events.launch_begins(launch, ())
        result = original(kernel, *args, grid=grid, warmup=warmup, **kwargs)
        note_code(launch, result)
        events.launch_ran(launch, None)
        return result

    return launch_rows.quickened(run, original, seen)


def _wrap_inductor(original: Callable[..., Any]) -> Callable[..., Any]:
    def run(kernel: Any, /, *args: Any, **kwargs: Any) -> Any:
        if passing.on and not kwargs.get("benchmark_run"):
            launch_rows.note(getattr(kernel, "fn", kernel), args, {}, None, kwargs.get("stream", 0))
            return original(kernel, *args, **kwargs)
        return seen(kernel, *args, **kwargs)

    def seen(kernel: Any, /, *args: Any, **kwargs: Any) -> Any:
        launch: Launch | None = None
        mode = cuda_capture.current()
        if (mode is not None or listeners) and not kwargs.get("benchmark_run"):
            with error_barrier("compiled launch"):
                launch = _describe_compiled(kernel, args)
        if launch is None:
            return original(kernel, *args, **kwargs)
        if mode is not None:
            with mode.triton(launch):
                return original(kernel, *args, **kwargs)
        events.launch_begins(launch, ())
        result = original(kernel, *args, **kwargs)
        events.launch_ran(launch, None)
        return result

    return launch_rows.quickened(run, original, seen, compiled=True)


def _describe_compiled(kernel: Any, args: tuple[Any, ...]) -> Launch:
    """A launch of compiled code: inductor encodes in an argument's name how the kernel accesses it."""
    pointers, numbers = [], []
    for name, value in zip(kernel.fn.arg_names, args, strict=False):
        if isinstance(value, torch.Tensor) and is_plain(value, "cuda"):
            access = next((access for start, access in _PREFIXES.items() if name.startswith(start)), Access.UNKNOWN)
            pointers.append(Pointer(name, view_facts(value, place_of(value)), access))
        elif isinstance(value, int):
            numbers.append((name, value))
    compiled = CompiledCall(kernel.fn, tuple(numbers), str(getattr(kernel, "filename", None) or ""))
    return Launch(LaunchKind.TRITON, kernel.fn.__name__, tuple(pointers), current_stack(), compiled=compiled)


def _describe(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any) -> Launch:
    function = kernel.fn
    code = function.__code__
    known = _signatures.get(id(code))
    if known is None or known[0] is not code:
        known = _signature(kernel)
    _, names, file, line = known
    pointers = [
        Pointer(name, view_facts(tensor, place_of(tensor)), Access.UNKNOWN)
        for name, tensor in named_tensors(names, *opened(args, kwargs))
        if is_plain(tensor, "cuda")
    ]
    return Launch(
        LaunchKind.TRITON,
        function.__name__,
        (*pointers, *tables.behind(pointers)),
        current_stack(),
        None if callable(grid) else tuple(map(int, grid)),
        f"{cell_label(file) or file}:{line}",
    )


def _signature(kernel: Any) -> _Signature:
    function = kernel.fn
    if len(_signatures) >= _KERNELS:
        _signatures.clear()
    code, names = function.__code__, tuple(parameter.name for parameter in kernel.params)
    known = _signatures[id(code)] = code, names, code.co_filename, code.co_firstlineno
    return known  # keeps the code alive, so that its id is not reused
