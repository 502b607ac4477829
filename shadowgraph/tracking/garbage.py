"""Garbage that is there when a capture begins stays until no capture runs.

What the collector ends in the middle of a capture, a graph or a pool of memory, may free device memory or unload a
module, which makes the capture invalid. Torch collects no garbage before a capture any more, and a watched one runs
through far more Python. So what is there is kept from the collector, as servers do by themselves; where the program has
done so already, with `gc.freeze`, nothing is done: it would be thawed with ours.
"""

from __future__ import annotations

import gc
import threading

from shadowgraph.forking import forkable


class Kept:
    """A capture's share in it."""

    def __init__(self, keeper: GarbageKeeper) -> None:
        self._keeper: GarbageKeeper | None = keeper

    def end(self) -> None:
        """The capture is over; again, nothing happens."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.end()


class GarbageKeeper:
    """Thread-safe; nothing of it runs Python of anybody else."""

    def __init__(self) -> None:
        self._lock = forkable(threading.RLock())
        self._captures = 0
        self._frozen = 0  # objects that we froze

    def keep(self) -> Kept:
        """A capture is about to begin: its share, to be ended."""
        with self._lock:
            self._captures += 1
            if self._captures == 1 and not gc.get_freeze_count():
                gc.freeze()
                self._frozen = gc.get_freeze_count()
        return Kept(self)

    def end(self) -> None:
        """A capture is over."""
        with self._lock:
            self._captures -= 1
            if self._frozen and not self._captures:
                if gc.get_freeze_count() <= self._frozen:  # else the program has frozen more: it wants that
                    gc.unfreeze()
                self._frozen = 0


garbage = GarbageKeeper()
