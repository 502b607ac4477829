"""The table of guards, as far as it needs no device: which pause is published last."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from shadowgraph.engines.listed_guards import ListedGuards


def table(launched: Callable[[bool], None]) -> ListedGuards:
    made: Any = ListedGuards.__new__(ListedGuards)
    made._lock, made._paused, made._halts = threading.RLock(), False, deque[None]()
    made._device = SimpleNamespace(arming=SimpleNamespace(ptr=7))
    made._pauses = [SimpleNamespace(launch=lambda *_, paused=paused: launched(bool(paused))) for paused in range(2)]
    return made


def test_a_halt_that_begins_while_another_ends_is_published_last() -> None:
    """A graph may be finalized anywhere, also between the look at the halts and the launch."""
    published: list[bool] = []

    def launched(paused: bool) -> None:
        if not paused and len(published) == 1:
            guards.halt()  # before this launch reaches the stream
        published.append(paused)

    guards = table(launched)
    guards.halt()
    guards.go_on()
    assert published[-1], published
    guards.go_on()
    assert not published[-1]
