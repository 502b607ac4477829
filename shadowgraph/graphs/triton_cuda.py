"""Triton launches on a GPU: noted into the capture of their thread, or told to the listeners as eager launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shadowgraph.faults import shielded
from shadowgraph.graphs import cuda_capture
from shadowgraph.graphs.events import emit, listeners
from shadowgraph.graphs.model import Access, Launch, LaunchKind, Pointer
from shadowgraph.graphs.tensors import is_plain
from shadowgraph.patching import PatchSet
from shadowgraph.tracking.stacks import cell_label, current_stack
from shadowgraph.tracking.views import TensorView

_patches = PatchSet()


def install() -> None:
    """Hook the launcher where Triton is installed; counted, undone by `uninstall`."""
    try:
        from triton.runtime.jit import JITFunction
    except ImportError:
        return
    _patches.install([(JITFunction, "run", _wrap_run)])


def uninstall() -> None:
    """Undo one `install`."""
    _patches.uninstall()


def _wrap_run(original: Callable[..., Any]) -> Callable[..., Any]:
    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        result = original(kernel, *args, grid=grid, warmup=warmup, **kwargs)
        mode = cuda_capture.current()
        if not warmup and (mode is not None or listeners):
            with shielded("triton launch"):
                launch = _describe(kernel, args, kwargs, grid)
                if mode is not None:
                    mode.note_triton(launch)
                else:
                    emit("launch_ran", launch, None)
        return result

    return run


def _describe(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any) -> Launch:
    names = [parameter.name for parameter in kernel.params]
    pairs = [*zip(names, args, strict=False), *kwargs.items()]
    pointers = []
    for name, value in pairs:
        tensor = value if isinstance(value, torch.Tensor) else getattr(value, "base", None)
        if isinstance(tensor, torch.Tensor) and is_plain(tensor, "cuda"):
            pointers.append(Pointer(name, TensorView.of(tensor), Access.UNKNOWN))
    code = kernel.fn.__code__
    return Launch(
        kind=LaunchKind.TRITON,
        name=kernel.fn.__name__,
        pointers=tuple(pointers),
        stack=current_stack(),
        grid=None if callable(grid) else tuple(int(n) for n in grid),
        source=f"{cell_label(code.co_filename) or code.co_filename}:{code.co_firstlineno}",
    )
