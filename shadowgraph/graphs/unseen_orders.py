"""Whether code that is not seen may order streams: another library that the program drives CUDA with, collectives, or
events that are not those of ``torch.cuda``.

Called before SG115 is reported, under the debugger's lock; nothing else asks. It looks at the functions that run in
this thread, at their modules, and at the modules of the program that these use. No code of an object runs.
"""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from itertools import islice
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any

import torch

from shadowgraph.tracking.trails import variables_of

_LIBRARIES = frozenset(("cupy", "cupy_backends", "cupyx", "numba", "pycuda", "cuda", "jax", "tensorflow"))
_INSTALLED = ("site-packages", "dist-packages")
_MEMBERS = 256  # attributes of one object that are looked at


def unseen_orders() -> str | None:
    """Why orders of streams may be unseen now, or None."""
    ranks = torch.distributed
    if ranks.is_available() and ranks.is_initialized() and ranks.get_world_size() > 1:
        return "collectives run on streams of their own"
    frames = [frame for frame in _frames() if _is_own(sys.modules.get(_module_of(frame)))]
    modules = {_module_of(frame): frame.f_globals for frame in frames}
    for name in {used for names in list(modules.values()) for used in _used(names.values())}:
        module = sys.modules.get(name)
        if module is not None and _is_own(module):
            modules.setdefault(name, vars(module))
    for name, values in modules.items():
        if any(map(_orders_unseen, list(values.values()))):
            return f"{name} orders streams by other means than torch.cuda"
    for frame in frames:
        values_now = [value for _, value in variables_of(frame)]
        if any(_orders_unseen(value) or any(map(_is_generic, _members(value))) for value in values_now):
            return f"{frame.f_code.co_name} orders streams by other means than torch.cuda"
    return None


def _orders_unseen(value: Any) -> bool:
    return _drives_cuda(value) or _is_generic(value)


def _drives_cuda(value: Any) -> bool:
    """Whether a value belongs to another library for CUDA."""
    if issubclass(type(value), ctypes.CDLL):
        return "cuda" in str(value._name)
    name = _home_of(value)
    return name is not None and name.partition(".")[0] in _LIBRARIES


def _is_generic(value: Any) -> bool:
    """Whether a value is an event or stream of ``torch`` itself, whose methods cannot be patched."""
    return type(value) is torch.Event or type(value) is torch.Stream


def _members(value: Any) -> list[Any]:
    """What an object holds, from its instance dictionary, so that no code of it runs."""
    if type(value) in (list, tuple):
        return list(value[:_MEMBERS])
    held = value
    if type(value) is not dict:
        try:
            held = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return []
    return list(islice(held.values(), _MEMBERS)) if type(held) is dict else []


def _home_of(value: Any) -> str | None:
    """The module that a value is, or was defined in."""
    kind = type(value)  # `isinstance` would ask the object
    name = kind.__module__
    if kind is ModuleType:
        name = value.__name__
    elif kind in (type, FunctionType, BuiltinFunctionType):
        name = value.__module__
    return name if isinstance(name, str) else None


def _used(values: Iterable[Any]) -> Iterator[str]:
    for value in list(values):
        name = _home_of(value)
        if name is not None:
            yield name


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _is_own(module: ModuleType | None) -> bool:
    """Whether a module is the program's own, and no installed library's, Python's or ours."""
    if module is None or module.__name__.partition(".")[0] == "shadowgraph":
        return False
    file = getattr(module, "__file__", None)
    if file is None:
        return module.__name__ == "__main__"  # a notebook
    inside = os.path.abspath(file)
    return not inside.startswith(sysconfig.get_path("stdlib")) and not any(part in inside for part in _INSTALLED)
