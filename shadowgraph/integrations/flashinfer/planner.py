"""Proxy for a wrapper's compiled module, which reports the arguments of its planner and its kernels.

Every way to plan, whether flashinfer's own, its fast one or a server's, and every way to run goes through the wrapper's
attribute ``_cached_module``. A descriptor of that name on the class returns the module behind a thin proxy. The module
itself stays in the instance, and is returned unchanged while no debugger watches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from shadowgraph.adapter_interface import passing

MODULE = "_cached_module"
RUNS = frozenset({"run", "paged_run", "ragged_run"})


class Onlooker(Protocol):
    """Receives the calls. Its methods must not change arguments, results or exceptions."""

    @property
    def watching(self) -> bool:
        """Whether a debugger is active."""

    def stand_in(self, module: Any, wrapper: Any) -> StandIn:
        """The proxy for a wrapper's module."""

    def plan(self, wrapper: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a planner."""

    def run(self, wrapper: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Launch a kernel."""


class StandIn:
    """Proxy for a compiled module while a debugger watches; other attributes are the module's own.

    A copy of the proxy is a copy of the module.
    """

    __slots__ = ("_module", "_onlooker", "_wrapper")

    def __init__(self, module: Any, wrapper: Any, onlooker: Onlooker) -> None:
        self._module, self._wrapper, self._onlooker = module, wrapper, onlooker

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if name == "plan":
            return partial(self._onlooker.plan, self._wrapper, found)
        if name in RUNS:
            return partial(self._onlooker.run, self._wrapper, found)
        return found

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._module.__reduce_ex__(protocol)


class ModuleAttribute:
    """The descriptor. It holds no values: these are in the instances' own dictionaries, under the same name.

    Parameters
    ----------
    before
        The class's attribute of that name, or None.
    """

    def __init__(self, onlooker: Onlooker, before: Any = None) -> None:
        self._onlooker, self.before = onlooker, before

    def __get__(self, wrapper: Any, kind: type | None = None) -> Any:
        if wrapper is None:
            return self
        try:
            module = wrapper.__dict__[MODULE]
        except KeyError:
            if self.before is not None:
                return self.before
            raise AttributeError(f"{type(wrapper).__name__!r} object has no attribute {MODULE!r}") from None
        if module is None or not (passing.on or self._onlooker.watching):  # `passing.on` implies a debugger
            return module
        return self._onlooker.stand_in(module, wrapper)

    def __set__(self, wrapper: Any, module: Any) -> None:
        vars(wrapper)[MODULE] = module._module if isinstance(module, StandIn) else module

    def __delete__(self, wrapper: Any) -> None:
        try:
            del vars(wrapper)[MODULE]
        except KeyError:
            raise AttributeError(MODULE) from None
