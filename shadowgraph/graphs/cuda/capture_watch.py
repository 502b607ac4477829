"""Tracer for launches that no dispatch mode sees: C functions that Python calls while a capture runs.

At every return of a C function the tracer checks whether the capture has new nodes. From Python 3.12 on
`sys.monitoring` reports the calls; a call site is no longer reported once it has called a function that cannot launch
(`len`, methods of built-in types), so that a launch by a later call from there has no owner. Before 3.12 the thread's
profile function reports them, chained behind an existing Python one; behind one in C, such as a profiler's, nothing is
seen. Marks only launches of the thread that called `begin`.
"""

from __future__ import annotations

import os
import sys
import threading
import types
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch

from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.graphs.cuda.node_attribution import NodeMarks
from shadowgraph.model.stacks import is_own
from shadowgraph.tracking.traces import Trace, gather

_monitoring: Any = getattr(sys, "monitoring", None)
_TOOLS = (3, 4, 2, 5)  # tool ids, unassigned ones first
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_FILES = {os.path.join(_TORCH, *parts) for parts in (("_ops.py",), ("utils", "_python_dispatch.py"))}
_C: Any = torch._C  # its stubs omit some of its modules
_MODULES = (_C._nn, _C._fft, _C._linalg, _C._special)
_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)


class Called(NamedTuple):
    """A C function that had launched nodes when it returned, and the stack it was called from."""

    name: str
    trace: Trace


class CaptureTracer:
    """Attributes the launches of C functions, between `begin` and `end`, in the thread of `begin`."""

    def __init__(self, marks: NodeMarks) -> None:
        self._marks = marks
        self._thread = threading.get_ident()
        self._tool: int | None = None
        self._profile: Callable[..., Any] | None = None
        self._profiling = False

    def begin(self) -> None:
        """Start; where every tool id is taken, nothing is seen."""
        if _monitoring is None:
            self._profile = sys.getprofile()
            self._profiling = self._profile is None or callable(self._profile)
            if self._profiling:
                sys.setprofile(self._on_profile)
            return
        self._tool = next((tool for tool in _TOOLS if _monitoring.get_tool(tool) is None), None)
        if self._tool is None:
            return
        events = _monitoring.events
        _monitoring.use_tool_id(self._tool, "shadowgraph")
        _monitoring.register_callback(self._tool, events.CALL, self._on_call)
        _monitoring.register_callback(self._tool, events.C_RETURN, self._on_return)
        _monitoring.set_events(self._tool, events.CALL)

    def end(self) -> None:
        """Stop, and restore the interpreter's hooks."""
        if self._profiling:
            self._profiling = False
            if sys.getprofile() == self._on_profile:
                sys.setprofile(self._profile)
        if self._tool is not None:
            tool, self._tool = self._tool, None
            _monitoring.set_events(tool, 0)
            _monitoring.register_callback(tool, _monitoring.events.CALL, None)
            _monitoring.register_callback(tool, _monitoring.events.C_RETURN, None)
            _monitoring.free_tool_id(tool)

    def _on_call(self, code: Any, offset: int, function: Any, first: Any) -> Any:
        try:
            return _monitoring.DISABLE if is_seen_elsewhere(function, code.co_filename) else None
        except Exception as error:
            internal_errors.note("capture watch", error)
            return None

    def _on_return(self, code: Any, offset: int, function: Any, first: Any) -> None:
        marks = self._marks
        if marks.open or threading.get_ident() != self._thread:
            return
        try:
            newest = marks.advanced()
            if newest is not None:
                marks.mark(Called(_name(function), gather()), newest)
        except Exception as error:
            internal_errors.note("capture watch", error)

    def _on_profile(self, frame: Any, event: str, argument: Any) -> None:
        if self._profile is not None:
            self._profile(frame, event, argument)
        if event == "c_return" and self._profiling:
            self._on_return(None, 0, argument, None)


def is_seen_elsewhere(function: Any, filename: str) -> bool:
    """Whether a C function, called from a file, launches nothing, or is an operator that a dispatch mode sees
    anyway."""
    if launches_nothing(function) or is_plumbing(filename):
        return True
    return is_operator(function) and not is_compiled(filename)  # no mode looks into compiled code


def is_operator(function: Any) -> bool:
    """Whether a C function is a tensor's method or one of torch's own functions, all of which go through the
    dispatcher."""
    if type(function) in _METHODS:
        return function.__objclass__ is torch._C.TensorBase
    if type(function) is not types.BuiltinFunctionType:
        return False
    owner = function.__self__
    return any(owner is module for module in _MODULES) or function.__qualname__.startswith("_VariableFunctionsClass.")


def is_compiled(filename: str) -> bool:
    """Whether a file was generated by inductor."""
    cache_dir = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return "torchinductor_" in filename or bool(cache_dir and filename.startswith(cache_dir))


@cache
def is_plumbing(filename: str) -> bool:
    """Whether a file's code calls C only on the way to an operator that a dispatch mode sees: this package, torch's
    dispatcher."""
    place = os.path.abspath(filename)
    return is_own(place) or place in _FILES


def launches_nothing(function: Any) -> bool:
    """Whether a C function belongs to Python itself, or is a built-in type: none of these launches a kernel by
    itself."""
    kind = type(function)
    if kind is types.BuiltinFunctionType:
        owner = function.__self__
        if owner is None or isinstance(owner, types.ModuleType):
            return function.__module__ in ("builtins", "_operator", "time", "math", "itertools", "_functools")
        return (owner if isinstance(owner, type) else type(owner)).__module__ == "builtins"
    if kind in _METHODS:
        return bool(function.__objclass__.__module__ == "builtins")
    return isinstance(function, type) and function.__module__ == "builtins"


def _name(function: Any) -> str:
    named = (getattr(function, attribute, None) for attribute in ("__qualname__", "__name__"))
    name = str(next(filter(None, named), type(function).__name__))
    return name.rsplit(".", 1)[-1] if name.startswith("pybind11_detail") else name
