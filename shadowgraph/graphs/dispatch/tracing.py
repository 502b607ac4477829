"""Keeps our modes off the thread's stack while `torch.jit` traces, so that a trace is the same as without them.

Its tracer works above dispatch modes and leaves the parts of some operators to be recorded below them, where a mode
keeps them from being recorded. All tracing ends up in five functions of torch's. Patched while a debugger or a mode is
active; called by the program, on any thread, without a lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shadowgraph.common.patching import PatchSet, Target, holders
from shadowgraph.graphs.dispatch.mode_sensitive import all_step_aside, mode_stack, taken_off
from shadowgraph.graphs.dispatch.stepping_aside import TRACED, stepped_aside

_FUNCTIONS = ("_create_graph_by_tracing", "_create_function_from_trace", "_create_function_from_trace_with_dict")
_METHODS = ("_create_method_from_trace", "_create_method_from_trace_with_dict")

_patches = PatchSet()


def install() -> None:
    """Patch the functions; counted, undone by `uninstall`. Names that this torch lacks are left out."""
    functions: list[Target] = [(module, name, _untroubled) for module, name in holders(torch._C, *_FUNCTIONS)]
    module = torch._C.ScriptModule
    _patches.install([*functions, *((module, name, _untroubled) for name in _METHODS if hasattr(module, name))])


def uninstall() -> None:
    """Undo one `install`."""
    _patches.uninstall()


def _untroubled(original: Callable[..., Any]) -> Callable[..., Any]:
    def trace(*args: Any, **kwargs: Any) -> Any:
        stack = mode_stack()
        if not all_step_aside(stack):  # a mode of the program's affects its trace with and without ours
            return original(*args, **kwargs)
        stepped_aside(TRACED)
        with taken_off(stack):
            return original(*args, **kwargs)

    return trace
