"""Names for tensors: the attribute paths that lead to them, found without running code of the program.

A walk reads stored values (instance dictionaries, slots, items of built-in containers, closure cells) through the
interpreter's own descriptors. Properties, `__getattr__`, `__iter__`, `__repr__`, `__hash__` and metaclass hooks of the
program are never called: they may launch kernels, take locks or change the state under test. Any thread; no lock.
"""

from __future__ import annotations

import enum
import json
import logging
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from shadowgraph.model.owners import Owner
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.pool_watch import Sight, borrowers

# One step of a walk: its formatter, the formatter's argument, and the value that it leads to.
Step = tuple[Callable[[Any], str], Any, object]

# Taken from `type` itself, because a metaclass may compute any attribute of its classes.
_mro: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
_members: Callable[[type], types.MappingProxyType[str, Any]] = type.__dict__["__dict__"].__get__
_class_name: Callable[[type], str] = type.__dict__["__name__"].__get__

_LEAVES = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, memoryview, type, enum.Enum),
    *(types.ModuleType, types.CodeType, types.FrameType, types.TracebackType, types.GeneratorType, types.CoroutineType),
    *(np.ndarray, np.generic, logging.Logger, logging.LoggerAdapter, threading.Thread, weakref.ReferenceType),
)
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_UNREADABLE = object()
# Children visited for each object that may be expanded: lists of a million token ids must not delay a server.
_LOOKS_PER_OBJECT = 50
_PLAIN_KEYS = (type(None), bool, int, float, complex, bytes, torch.dtype, torch.device)
_LONGEST_KEY = 80


@dataclass(frozen=True, slots=True)
class WalkResult:
    """The result of a walk.

    Attributes
    ----------
    owners : tuple of Owner
        In the order of the walk, fewest steps first. A tensor reached by two paths has two owners.
    truncated : bool
        The walk hit a bound, so that names may be missing.
    errors : int
        Number of attributes and objects that could not be read and were skipped.
    sights : tuple of Sight or None
        For each owner, when the storage of its tensor was first seen, if that owns none of its memory.
    """

    owners: tuple[Owner, ...]
    truncated: bool
    errors: int
    sights: tuple[Sight | None, ...]


def walk(
    root: object, name: str, *, without: Container[str] = (), max_objects: int = 20_000, max_depth: int = 12
) -> WalkResult:
    """Find the tensors reachable from an object.

    Parameters
    ----------
    root : object
        The start of the walk. Of a module, only the globals that are tensors, built-in containers or objects of
        a class that the module defines are followed.
    name : str
        Prefix of all paths.
    without : container of str
        Names of attributes that are not followed, whatever object has them.
    max_objects : int
        Largest number of expanded objects, and of owners.
    max_depth : int
        Largest number of steps from the root.

    Returns
    -------
    WalkResult
        Each object is expanded once, under a path with the fewest steps. Modules, classes, function globals, loggers,
        threads, weak references, dictionary keys, attributes of tensors and contents of numpy arrays
        are not followed. Tensors without memory of their own (meta, fake, sparse, wrappers) are left out.
        Objects are held until the walk ends and not after; no device is synchronised.
    """
    walker = Walker(max_objects, max_depth, without)
    walker.run(root, name)
    return WalkResult(tuple(walker.owners), walker.truncated, walker.errors, tuple(walker.sights))


@dataclass(frozen=True, slots=True)
class Layout:
    """The storage layout of a class's instances: computed once for each class and walk."""

    cls: type
    leaf: bool
    tensor: bool
    slots: tuple[tuple[str, Any], ...]
    namespace: Any

    @classmethod
    def of(cls, kind: type) -> Layout:
        leaf = issubclass(kind, _LEAVES) or _is_ours(kind)
        slots: dict[str, Any] = {}
        namespace = None
        for base in () if leaf else _mro(kind):
            members = _members(base).copy()  # a copy: another thread may add to the class meanwhile
            slots.update((k, v) for k, v in members.items() if type(v) is types.MemberDescriptorType and k not in slots)
            # A property called __dict__ is the program's code; the descriptor that the interpreter made is not.
            if namespace is None and issubclass(type(members.get("__dict__")), _DESCRIPTORS):
                namespace = members["__dict__"]
        slots.pop("__dict__", None)
        # Functions keep their globals in such a member, and struct sequences repeat their items there.
        if issubclass(kind, (types.FunctionType, tuple)):
            slots.clear()
        return cls(kind, leaf, issubclass(kind, torch.Tensor), tuple(slots.items()), namespace)


def _is_ours(kind: type) -> bool:
    """Whether a class is shadowgraph's: its references to the program's tensors do not count as owners."""
    module = _members(kind).get("__module__")
    if type(module) is not str or not module.startswith("shadowgraph."):
        return False
    return module.split(".")[1] not in {"demos", "integrations"}  # programs under test, and fakes


def stored(owner: object, attribute: str) -> object:
    """What an attribute holds by the object's instance dictionary, by a module's tables or by its slots; None where it
    is in none of these. Runs no code of the object."""
    held: Any = owner if issubclass(type(owner), dict) else _instance_dict(owner)
    for table in (held, *(held.get(name) for name in _MODULE_TABLES)):
        if isinstance(table, dict) and attribute in table:
            return table[attribute]
    for each in type(owner).__mro__:
        slot = each.__dict__.get(attribute)
        if type(slot) is types.MemberDescriptorType:
            try:
                return slot.__get__(owner)
            except AttributeError:  # it holds nothing
                return None
    return None


def _instance_dict(owner: object) -> dict[Any, Any]:
    try:
        held = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return held if isinstance(held, dict) else {}


class _BoundMet(Exception):
    """The walk hit a bound: the results so far stand."""


class Walker:
    """The state of one walk."""

    def __init__(self, max_objects: int, max_depth: int, without: Container[str] = ()) -> None:
        self.owners: list[Owner] = []
        self.sights: list[Sight | None] = []
        self.truncated = False
        self.errors = 0
        self._max_objects = max_objects
        self._max_depth = max_depth
        self._without = without
        self._looks_left = max_objects * _LOOKS_PER_OBJECT
        self._expanded = 0
        self._layouts: dict[int, Layout] = {}
        # Values are kept, so that no later object reuses an id during the walk.
        self._seen: dict[int, object] = {}
        self._queue: deque[tuple[object, str, int]] = deque()

    def run(self, root: object, name: str) -> None:
        try:
            if issubclass(type(root), types.ModuleType):
                self._seen[id(root)] = root
                self._follow(_global_steps(root), name, 0)
            else:
                self._meet(root, name, 0)
            while self._queue:
                value, path, depth = self._queue.popleft()
                self._follow(self._steps(value), path, depth)
        except _BoundMet:
            self.truncated = True

    def _follow(self, steps: Iterator[Step], path: str, depth: int) -> None:
        counted = False
        for write, key, value in steps:
            if self._without and write is write_attribute and key in self._without:
                continue
            if not counted:  # empty objects cost nothing, so they do not count
                counted = True
                self._expanded += 1
            self._looks_left -= 1
            if self._looks_left < 0 or self._expanded > self._max_objects:
                raise _BoundMet
            if value is _UNREADABLE:
                self.errors += 1
            elif id(value) not in self._seen and not self._layout(type(value)).leaf and not _is_globals(value):
                if depth >= self._max_depth:
                    self.truncated = True
                    return
                self._meet(value, path + write(key), depth + 1)

    def _meet(self, value: object, path: str, depth: int) -> None:
        layout = self._layout(type(value))
        if layout.tensor:
            self._record(value, path)
        elif not layout.leaf:
            self._seen[id(value)] = value
            self._queue.append((value, path, depth))

    def _record(self, tensor: Any, path: str) -> None:
        try:
            view, sight = TensorView.of(tensor), borrowers.sight_of(tensor)
        except ValueError:
            return
        except Exception:
            self.errors += 1
            return
        if len(self.owners) >= self._max_objects:
            raise _BoundMet
        self.owners.append(Owner(path, view))
        self.sights.append(sight)

    def _layout(self, kind: type) -> Layout:
        # By id, because a metaclass may define the hash and equality of its classes.
        layout = self._layouts.get(id(kind))
        if layout is None:
            layout = self._layouts[id(kind)] = Layout.of(kind)
        return layout

    def _steps(self, value: object) -> Iterator[Step]:
        try:
            yield from _item_steps(value)
            yield from _attribute_steps(value, self._layout(type(value)))
        except Exception:  # a container that another thread changes meanwhile, a descriptor of a C type
            yield write_attribute, "", _UNREADABLE


def _item_steps(value: Any) -> Iterator[Step]:
    """The items of built-in containers, and the closures and defaults of callables."""
    kind = type(value)
    if issubclass(kind, dict):
        for position, (key, item) in enumerate(list(dict.items(value))):
            yield write_key, (position, key), item
    elif issubclass(kind, tuple):
        yield from _tuple_steps(value)
    elif issubclass(kind, (list, deque)):
        yield from _indexed(list.copy(value) if issubclass(kind, list) else deque.__iter__(value))
    elif issubclass(kind, (set, frozenset)):
        yield from _set_steps(value)
    elif kind is types.FunctionType:
        yield from _function_steps(value)
    elif kind is types.BuiltinFunctionType:
        yield write_attribute, "__self__", value.__self__


def _tuple_steps(value: Any) -> Iterator[Step]:
    fields = _fields(value)
    items = tuple.__iter__(value)
    return ((write_attribute, *pair) for pair in zip(fields, items, strict=True)) if fields else _indexed(items)


def _set_steps(value: Any) -> Iterator[Step]:
    base: Any = set if issubclass(type(value), set) else frozenset
    return ((write_element, index, item) for index, item in enumerate(list(base.__iter__(value))))


def _function_steps(function: types.FunctionType) -> Iterator[Step]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield from _read(write_local, name, partial(getattr, cell, "cell_contents"), ValueError)
    yield write_attribute, "__defaults__", function.__defaults__
    yield write_attribute, "__kwdefaults__", function.__kwdefaults__


def _attribute_steps(value: object, layout: Layout) -> Iterator[Step]:
    for name, slot in layout.slots:
        yield from _read(write_attribute, name, partial(slot.__get__, value), AttributeError)
    if layout.namespace is None:
        return
    attributes = list(dict.items(layout.namespace.__get__(value)))
    if issubclass(layout.cls, torch.nn.Module):
        yield from _child_steps(attributes)
        attributes = [pair for pair in attributes if not _is_module_table(*pair)]
    yield from ((write_attribute, name, item) for name, item in attributes)


def _child_steps(attributes: list[tuple[Any, Any]]) -> Iterator[Step]:
    """Parameters, buffers and submodules of a module."""
    tables = [table for name, table in attributes if _is_module_table(name, table)]
    return ((write_child, name, item) for table in tables for name, item in list(dict.items(table)))


def _is_globals(value: Any) -> bool:
    """Whether a value is a module's globals: compiled kernels, for example, keep those of their functions."""
    return type(value) is dict and "__builtins__" in value and "__name__" in value


def _global_steps(module: Any) -> Iterator[Step]:
    attributes: dict[str, object] = vars(types.ModuleType)["__dict__"].__get__(module)
    for name, value in list(attributes.items()):
        kind = type(value)
        own = _members(kind).get("__module__") == attributes.get("__name__")
        followed = own or issubclass(kind, (torch.Tensor, *_CONTAINERS))
        if followed and type(name) is str and not name.startswith("__"):
            yield write_attribute, name, value


def _read(write: Callable[[Any], str], name: str, get: Callable[[], object], absent: type[Exception]) -> Iterator[Step]:
    try:
        value = get()
    except absent:  # a slot or cell that is still empty
        return
    except Exception:
        value = _UNREADABLE
    yield write, name, value


def _indexed(items: Any) -> Iterator[Step]:
    return ((write_index, index, item) for index, item in enumerate(items))


def _fields(value: Any) -> tuple[str, ...]:
    """Field names, if the value is a named tuple."""
    for base in _mro(type(value)):
        fields = _members(base).get("_fields")
        if type(fields) is tuple and all(type(field) is str for field in fields):
            return fields if len(fields) == tuple.__len__(value) else ()
    return ()


def _is_module_table(name: object, value: object) -> bool:
    return type(name) is str and name in _MODULE_TABLES and issubclass(type(value), dict)


def write_attribute(name: object) -> str:
    return f".{name}" if type(name) is str and name.isidentifier() else f".__dict__[{_key_text(0, name)}]"


def write_child(name: object) -> str:
    return f".{name}" if type(name) is str and name.isprintable() else f"[{_key_text(0, name)}]"


def write_index(index: int) -> str:
    return f"[{index}]"


def write_element(index: int) -> str:
    return f"{{{index}}}"


def write_local(name: str) -> str:
    return f".<locals>.{name}"


def write_key(place: tuple[int, object]) -> str:
    return f"[{_key_text(*place)}]"


def _key_text(position: int, key: Any) -> str:
    """A dictionary key as text; for a class of the program only its name, because its repr is the program's code."""
    kind = type(key)
    if issubclass(kind, str) and not issubclass(kind, enum.Enum):
        return _quoted(str.__str__(key))
    if any(kind is plain for plain in _PLAIN_KEYS) and key.__sizeof__() <= 2 * _LONGEST_KEY:
        return repr(key)
    if kind is tuple:
        items = [_key_text(index, item) for index, item in enumerate(key)]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    if issubclass(kind, enum.Enum):
        return f"{_class_name(kind)}.{object.__getattribute__(key, '_name_')}"
    return f"<{_class_name(kind)} #{position}>"


def _quoted(text: str) -> str:
    text = text if len(text) <= _LONGEST_KEY else f"{text[:_LONGEST_KEY]}..."
    return json.dumps(text, ensure_ascii=not text.isprintable())
