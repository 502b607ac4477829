"""Error barrier around event handlers: a lost device ends checking, and an internal error is counted, not raised.

Wraps the listener methods of `Monitor`; runs in the thread of the event, outside the debugger's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from shadowgraph.common.errors import ShadowgraphError
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.engines.losses import is_device_loss
from shadowgraph.monitor.overhead_limiter import OverheadLimiter

P = ParamSpec("P")


class Watcher(Protocol):
    """An object with event handlers, and the limit on their run time."""

    @property
    def limit(self) -> OverheadLimiter: ...

    def lose(self, error: Exception) -> None:
        """The device is lost."""


W = TypeVar("W", bound=Watcher)


def event_handler(method: Callable[Concatenate[W, P], None]) -> Callable[Concatenate[W, P], None]:
    """Decorator: a lost device ends checking, not the program; an internal error is counted and not propagated."""

    @wraps(method)
    def watched(self: W, /, *args: P.args, **kwargs: P.kwargs) -> None:
        limit = self.limit
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
