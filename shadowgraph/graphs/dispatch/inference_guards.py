"""Keeps torch's dispatch keys in step with its stack of modes at the end of `torch.inference_mode`.

That block restores the thread's dispatch keys as they were when it began. Where a mode was taken off the stack inside,
operators without tensors would look for a mode that is not there, and torch fails; where one was put back, the mode
would see nothing. Servers run each step in such a block, and their replays begin and end the steady state. The patch
stays after a debugger that ends inside of a block, and under a patch that the program has laid over it meanwhile, where
it then does nothing. Runs in the program's threads; no lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.common.patching import PatchSet

_depth = torch._C._len_torch_dispatch_stack
_included, _include = torch._C._dispatch_tls_is_dispatch_key_included, torch._C._dispatch_tls_set_dispatch_key_included
# Included as long as there is a mode. Not their names: torch makes an object for each look-up by name, which costs more
# than all else here, and a server's step ends several such blocks.
_PYTHON = torch._C.DispatchKey.Python
_KEYS = (torch._C.DispatchKey.PythonTLSSnapshot, _PYTHON)
_patches = PatchSet(keeps_later=True)


def install() -> None:
    """Patch the end of the block, unless that is done."""
    if not _patches.installed:
        _patches.install([(torch._C._InferenceMode, "__exit__", _in_step)])


def uninstall() -> None:
    """Undo it, where no mode is away from the stack of a thread that may be in such a block; not in such a block."""
    while _patches.installed and not torch.is_inference_mode_enabled():  # two threads may have installed it at once
        _patches.uninstall()


def _in_step(original: Callable[..., Any]) -> Callable[..., Any]:
    def leave(guard: Any, *given: Any) -> Any:
        result = original(guard, *given)
        try:
            wanted = _depth() > 0
            if _included(_PYTHON) is not wanted:
                for key in _KEYS:
                    _include(key, wanted)
        except Exception as error:  # as `error_barrier_all`, without its cost
            internal_errors.note("inference mode", error)
        return result

    return leave
