"""Trails: from an object or a running function by stored values to a tensor, to be followed again later.

A graph keeps addresses; host code keeps names. A trail says where a name leads at a later time, without running code of
the program, which `isinstance` may: it reads instance dictionaries, slots, items of built-in containers and variables
of running functions. Of the program it keeps code objects alive, nothing else. Any thread; no lock.
"""

from __future__ import annotations

import inspect
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from types import CodeType, FrameType
from typing import Any, NamedTuple, cast

import torch

from shadowgraph.common.compat import weak_reference
from shadowgraph.model.owners import Owner
from shadowgraph.model.stacks import is_machinery
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.names import (
    Layout,
    Step,
    Walker,
    write_attribute,
    write_child,
    write_index,
    write_key,
    write_local,
)

SHARE = 0.1  # of the time since, for a further walk from one start, and for all further walks since the debugger began
_STARTS, _KEPT = 256, 2_048  # starts that are remembered, and trails from each
_FRAMES = 8  # innermost functions whose variables are searched
_OBJECTS, _DEPTH = 1_500, 8  # expanded from each start, and steps from there
_KEYS = (str, int, bool)
_NO_ROOTS = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type, str, bytes, int, float, type(None))
Read = Callable[[Any], object]  # one step of a trail: from an object to a value stored in it
Start = Callable[[], object]  # the object at which a trail starts, or None
Taken = tuple[object, Any, Any]  # a step of a walk: from an object, with the step's formatter and its argument


@dataclass(frozen=True, slots=True, eq=False)
class Trail:
    """A way to a tensor.

    Attributes
    ----------
    path
        The way in words, such as ``backend.metadata.page_table``.
    name
        The same as links, from the start on: ``("backend", ".metadata", ".page_table")``.
    view
        The tensor's memory when the trail was found.
    """

    path: str
    name: tuple[str, ...]
    view: TensorView
    start: Start
    steps: tuple[Read, ...]

    def now(self) -> torch.Tensor | None:
        """The tensor to which it leads now; None for anything else, and where the trail ends before."""
        value = self.start()
        for read in self.steps:
            if value is None:
                return None
            value = read(value)
        return cast("torch.Tensor", value) if issubclass(type(value), torch.Tensor) else None


class _Root(NamedTuple):
    """Where trails start: an object, or a variable, whose value may be another one at each search.

    Attributes
    ----------
    key
        Tells one start from another: the object's id, or the function or module and the variable's name.
    variable
        The variable's name; empty for an object.
    """

    key: object
    now: Start
    name: str
    value: object
    variable: str


@dataclass(slots=True)
class _Walked:
    """What the latest walk from a start has found, the seconds that it took, and when the next one is due."""

    now: Start
    trails: list[Trail]
    took: float
    due: float


class TrailSearch:
    """Searches trails at each capture, and walks all objects anew only as often as their number allows.

    A walk takes milliseconds, more than some captures. So from each start there is a walk at the first search, and
    another one once it takes no more than `SHARE` of the time since, and all such walks together no more than `SHARE`
    of the time since the search was made. Until then its trails are followed again.

    Parameters
    ----------
    wanted
        Whether a tensor's memory is of interest.
    seconds
        For the walks of one search, and for all first walks of the process.
    """

    def __init__(self, wanted: Callable[[TensorView], bool], seconds: tuple[float, float] = (0.2, 2.0)) -> None:
        self._wanted = wanted
        self._once, self._left = seconds
        self._began, self._renewing = time.monotonic(), 0.0  # the seconds that walks took that were not the first
        self._walked: dict[object, _Walked] = {}

    def search(self, roots: Iterable[tuple[str, object]], frame: FrameType | None) -> list[Trail]:
        """Trails from named objects, and from the variables of a running function and its callers; from each start one
        to each place."""
        deadline = time.monotonic() + self._once
        found: dict[object, list[Trail]] = {}
        starts = list(_starts(roots, frame))
        for start in sorted(starts, key=self._due):
            known = self._walked.pop(start.key, None)
            if known is not None and not start.variable and known.now() is not start.value:
                known = None  # another object with the id of one that is gone
            now = time.monotonic()
            if now < deadline and (self._left > 0 if known is None else self._may_renew(known, now)):
                trails = self._walk(start)
                ended = time.monotonic()
                took = ended - now
                if known is None:
                    self._left -= took
                else:
                    self._renewing += took
                known = _Walked(start.now, trails[:_KEPT], took, ended + took / SHARE)
                found[start.key] = trails
            elif known is not None:
                found[start.key] = list(self._again(known.trails))
            if known is not None:
                self._walked[start.key] = known  # the latest last
        for key in list(self._walked)[:-_STARTS]:
            del self._walked[key]
        return [trail for start in starts for trail in found.get(start.key, ())]

    def _due(self, start: _Root) -> float:
        """When a walk from a start is due; new starts come first."""
        known = self._walked.get(start.key)
        return known.due if known is not None else 0.0

    def _may_renew(self, known: _Walked, now: float) -> bool:
        """Whether there is time for another walk, taken to last as long as the one before."""
        return now >= known.due and self._renewing + known.took <= SHARE * (now - self._began)

    def _walk(self, start: _Root) -> list[Trail]:
        trails: list[Trail] = []
        _Trails(self._wanted, start.now, start.name, start.variable, trails).run(start.value, start.name)
        return trails

    def _again(self, trails: Iterable[Trail]) -> Iterator[Trail]:
        """Trails that were found before, with the memory that they lead to now."""
        for trail in trails:
            tensor = trail.now()
            try:
                view = TensorView.of(tensor) if tensor is not None else None
            except ValueError:
                continue
            if view is not None and self._wanted(view):
                yield replace(trail, view=view)


def _starts(roots: Iterable[tuple[str, object]], frame: FrameType | None) -> Iterator[_Root]:
    """Starts of trails; a variable where it may be rebound itself."""
    seen: set[int] = set()
    for name, value in roots:
        seen.add(id(value))
        yield _Root(id(value), weak_reference(value), name, value, "")
    for key, variable, value, now in _variables_of(frame):
        if issubclass(type(value), _NO_ROOTS) or id(value) in seen:
            continue
        seen.add(id(value))
        if issubclass(type(value), (torch.Tensor, dict, list, tuple)):
            yield _Root(key, now, variable, value, variable)
        else:
            try:
                start = weak_reference(value)
            except TypeError:
                continue
            yield _Root(id(value), start, type(value).__name__ if variable == "self" else variable, value, "")


def _variables_of(frame: FrameType | None) -> Iterator[tuple[object, str, object, Start]]:
    """Variables of the program's running functions and of their modules, each with a key of its own and with what tells
    its value later."""
    functions = list(_functions(frame))
    for each in functions:
        for name, value in variables_of(each):
            yield (each.f_code, name), name, value, partial(_variable_now, each.f_code, name)
    for module in dict.fromkeys(each.f_globals.get("__name__") for each in functions):
        held = getattr(sys.modules.get(str(module)), "__dict__", {})
        if any(each.f_globals is held for each in functions):
            for name, value in list(held.items()):
                if not name.startswith("__"):
                    yield (module, name), name, value, partial(_global_now, str(module), name)


def _functions(frame: FrameType | None) -> Iterator[FrameType]:
    """The program's running functions, innermost first."""
    found = 0
    while frame is not None and found < _FRAMES:
        if not is_machinery(frame.f_code.co_filename):
            found += 1
            yield frame
        frame = frame.f_back


def variables_of(frame: FrameType) -> list[tuple[str, object]]:
    variables = frame.f_locals
    found = [(name, value) for name, value in list(variables.items()) if type(name) is str and name.isidentifier()]
    _leave(frame, variables)
    return [(name, value) for name, value in found if not name.startswith("__")]


def _leave(frame: FrameType, variables: Any) -> None:
    """Before Python 3.13 a function keeps a copy of its variables once it was asked for: empty it, unless the program
    has asked as well."""
    ours_alone = sys.getrefcount(variables) <= 4  # the frame, the caller, this function, and the call
    if ours_alone and type(variables) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        variables.clear()


def _variable_now(code: CodeType, name: str) -> object:
    """The value of a variable of the innermost running call of a function, in this thread."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    if frame is None:
        return None
    variables = frame.f_locals
    value = variables.get(name)
    _leave(frame, variables)
    return value


def _global_now(module: str, name: str) -> object:
    """The value of a module's variable."""
    held: dict[str, object] = getattr(sys.modules.get(module), "__dict__", {})
    return held.get(name)


class _Trails(Walker):
    """A walk that remembers how it came to each object."""

    def __init__(
        self,
        wanted: Callable[[TensorView], bool],
        start: Start,
        root: str,
        variable: str,
        found: list[Trail],
    ) -> None:
        super().__init__(_OBJECTS, _DEPTH)
        self._wanted, self._start, self._root, self._variable = wanted, start, root, variable
        self._found = found
        self._at: Taken | None = None
        self._came: dict[int, Taken] = {}  # by the object's id

    def _steps(self, value: object) -> Iterator[Step]:
        for write, key, child in super()._steps(value):
            self._at = value, write, key
            yield write, key, child

    def _meet(self, value: object, path: str, depth: int) -> None:
        if self._at is not None and id(value) not in self._seen:
            self._came.setdefault(id(value), self._at)
        super()._meet(value, path, depth)

    def _record(self, tensor: Any, path: str) -> None:
        if issubclass(type(tensor), torch.nn.Parameter):
            return
        before = len(self.owners)
        super()._record(tensor, path)
        if len(self.owners) > before and self._wanted(self.owners[-1].view):
            self._note(self.owners[-1])

    def _note(self, owner: Owner) -> None:
        """Enter the trail to a tensor, unless one of its steps cannot be taken again."""
        taken = self._taken()
        steps = [reread(write, key) for _, write, key in taken]
        reads = tuple(step for step in steps if step is not None)
        if len(reads) < len(steps) or not (reads or self._variable):
            return
        trail = Trail(owner.path, _name(self._variable or self._root, taken), owner.view, self._start, reads)
        self._found.append(trail)

    def _taken(self) -> list[Taken]:
        """The steps from the start to the tensor that was just met."""
        taken, at = [], self._at
        while at is not None:
            taken.append(at)
            at = self._came.get(id(at[0]))
        return taken[::-1]


def _name(start: str, taken: list[Taken]) -> tuple[str, ...]:
    """A way as links of a name: ``.attribute``, ``["key"]``, and ``[]`` for an item without a name."""
    found = [start]
    for _, write, key in taken:
        if write is write_key and type(key[1]) is str:
            found.append(f'["{key[1]}"]')
        elif write in (write_attribute, write_child):
            found.append(f".{key}")
        else:
            found = [str(key)] if write is write_local else [*found, "[]"]
    return tuple(found)


def reread(write: Any, key: Any) -> Read | None:
    """What takes a step of a walk again, given what it starts from; None for a step that depends on more than a
    name."""
    if write is write_attribute:
        return _Attribute(str(key))
    if write is write_child:
        return _Child(str(key))
    if write is write_local:
        return partial(_cell_of, str(key))
    if write is write_index:
        return partial(_item_of, (list, tuple), key)
    if write is write_key and type(key[1]) in _KEYS:
        return partial(_item_of, (dict,), key[1])
    return None


class _Attribute:
    """Reads a stored attribute; what it knows of the latest class makes it fast, as it is called at each replay."""

    __slots__ = ("_class", "_name", "_namespace", "_slot")

    def __init__(self, name: str) -> None:
        self._name = name
        self._class: type | None = None

    def __call__(self, value: object) -> object:
        if type(value) is not self._class:
            self._settle(type(value))
        if self._namespace is not None:
            found: object = dict.get(cast("dict[str, object]", self._namespace(value)), self._name)
            if found is not None:
                return found
        return self._slot(value) if self._slot is not None else None

    def _settle(self, kind: type) -> None:
        layout = Layout.of(kind)
        descriptor, slot = layout.namespace, dict(layout.slots).get(self._name)
        self._namespace: Read | None = descriptor.__get__ if descriptor is not None else None
        self._slot: Read | None = partial(_slot_of, slot) if slot is not None else _field(kind, self._name)
        self._class = kind


def _slot_of(slot: Any, value: object) -> object:
    try:
        return cast("object", slot.__get__(value))
    except AttributeError:  # it is empty
        return None


def _field(kind: type, name: str) -> Read | None:
    """Reads a field of a named tuple."""
    fields = kind.__dict__.get("_fields") if issubclass(kind, tuple) else None
    if type(fields) is not tuple or name not in fields:
        return None
    return partial(_item_of, (tuple,), fields.index(name))


class _Child:
    """Reads a parameter, buffer or submodule of a module."""

    __slots__ = ("_name", "_tables")

    def __init__(self, name: str) -> None:
        self._name = name
        self._tables = [_Attribute(table) for table in ("_buffers", "_modules", "_parameters")]

    def __call__(self, value: object) -> object:
        for place, table in enumerate(self._tables):
            held: Any = table(value)
            if issubclass(type(held), dict) and (found := dict.get(held, self._name)) is not None:
                if place:
                    self._tables.insert(0, self._tables.pop(place))  # the first to be asked
                return cast("object", found)
        return None


def _cell_of(name: str, value: object) -> object:
    if type(value) is not types.FunctionType or name not in value.__code__.co_freevars:
        return None
    try:
        return (value.__closure__ or ())[value.__code__.co_freevars.index(name)].cell_contents
    except ValueError:  # it is empty
        return None


def _item_of(kinds: tuple[Any, ...], key: Any, value: object) -> object:
    for kind in kinds:
        if issubclass(type(value), kind):
            try:
                return cast("object", kind.__getitem__(value, key))
            except (KeyError, IndexError):
                return None
    return None
