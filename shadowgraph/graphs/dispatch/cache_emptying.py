"""Before the program has torch's allocator give its cache back to CUDA, large buffers that died give up their tails.

A tensor in a reference cycle dies in the garbage collector, where no lock may be taken: its end is only queued
(`finalizer_safe_lock`). Its segment must be whole again before ``torch.cuda.empty_cache()`` looks for free ones. Called
by the program, on any thread, without a lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shadowgraph.common.finalizer_safe_lock import run_deferred
from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.common.patching import PatchSet, holders

_patches = PatchSet()


def install(sweep: Callable[[], None]) -> None:
    """Patch the function; counted, undone by `uninstall`.

    Parameters
    ----------
    sweep
        Gives up the guards of buffers whose memory the program has freed.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def empty(*args: Any, **kwargs: Any) -> Any:
            with error_barrier("emptying of the cache"):
                run_deferred()
                sweep()
            return original(*args, **kwargs)

        return empty

    _patches.install([(module, name, wrap) for module, name in holders(torch._C, "_cuda_emptyCache")])


def uninstall() -> None:
    """Undo one `install`."""
    _patches.uninstall()
