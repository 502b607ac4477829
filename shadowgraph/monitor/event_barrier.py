"""What an event must survive: a device that is lost, and faults of our own."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from shadowgraph.common.errors import ShadowgraphError
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.engines.losses import is_device_loss
from shadowgraph.monitor.program_hooks import ProgramHooks

P = ParamSpec("P")


class Watcher(Protocol):
    """Whose methods are told of events, and how long they may take."""

    @property
    def outside(self) -> ProgramHooks: ...

    def lose(self, error: Exception) -> None:
        """The device is gone."""


W = TypeVar("W", bound=Watcher)


def event_handler(method: Callable[Concatenate[W, P], None]) -> Callable[Concatenate[W, P], None]:
    """A device that is lost ends the checking, not the program; other faults of ours are counted and go no further."""

    @wraps(method)
    def watched(self: W, /, *args: P.args, **kwargs: P.kwargs) -> None:
        limit = self.outside.limit
        began = limit.enter() if limit.measured else None
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            if is_device_loss(error):
                self.lose(error)
            elif isinstance(error, ShadowgraphError):
                raise
            else:
                internal_errors.note(method.__name__, error)
        finally:
            if began is not None:
                limit.leave(began)

    return watched
