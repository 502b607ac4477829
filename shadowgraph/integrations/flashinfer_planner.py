"""Looks over the shoulder of a wrapper's compiled module: what its planner and its kernels are given.

Every way to plan, flashinfer's own, its fast one and those of servers, and every way to run goes through the wrapper's
attribute ``_cached_module``. A descriptor of that name on the class hands out the module behind a thin proxy. It stays
where it was, in the instance, and is handed out itself while nobody watches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from shadowgraph.graphs import passing

MODULE = "_cached_module"
RUNS = frozenset({"run", "paged_run", "ragged_run"})


class Onlooker(Protocol):
    """Hears of the calls. Neither method may change what is given, returned or raised.

    Attributes
    ----------
    steady
        What stands for a wrapper's module while replays pass, by the wrapper's id.
    """

    steady: dict[int, StandIn]

    @property
    def watching(self) -> bool:
        """Whether anybody wants to hear."""

    def plan(self, wrapper: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a planner."""

    def run(self, wrapper: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Launch a kernel."""


class StandIn:
    """What is handed out in place of a compiled module; anything but planner and kernels is the module's own."""

    __slots__ = ("_module", "_onlooker")

    def __init__(self, module: Any, onlooker: Onlooker) -> None:
        self._module, self._onlooker = module, onlooker

    def _owner(self) -> Any:
        """The wrapper that it belongs to; None where that is gone."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if name == "plan":
            return partial(self._onlooker.plan, self._owner(), found)
        if name in RUNS:
            return partial(self._onlooker.run, self._owner(), found)
        return found


class WatchedModule(StandIn):
    """Stands for a compiled module while somebody watches."""

    __slots__ = ("_wrapper",)

    def __init__(self, module: Any, wrapper: Any, onlooker: Onlooker) -> None:
        super().__init__(module, onlooker)
        self._wrapper = wrapper

    def _owner(self) -> Any:
        return self._wrapper


class ModuleAttribute:
    """The descriptor. It keeps nothing: values are in the instances' own dictionaries, under the same name.

    Parameters
    ----------
    before
        What the class has under that name, or None.
    """

    def __init__(self, onlooker: Onlooker, before: Any = None) -> None:
        self._onlooker, self.before = onlooker, before

    def __get__(self, wrapper: Any, kind: type | None = None) -> Any:
        if wrapper is None:
            return self
        try:
            module = vars(wrapper)[MODULE]
        except KeyError:
            if self.before is not None:
                return self.before
            raise AttributeError(f"{type(wrapper).__name__!r} object has no attribute {MODULE!r}") from None
        if passing.on:
            steady = self._onlooker.steady.get(id(wrapper))
            if steady is not None and steady._module is module and steady._owner() is wrapper:
                return steady
        if module is None or not self._onlooker.watching:
            return module
        return WatchedModule(module, wrapper, self._onlooker)

    def __set__(self, wrapper: Any, module: Any) -> None:
        vars(wrapper)[MODULE] = module._module if isinstance(module, StandIn) else module

    def __delete__(self, wrapper: Any) -> None:
        try:
            del vars(wrapper)[MODULE]
        except KeyError:
            raise AttributeError(MODULE) from None
