"""How many CUDA captures run in this process: while one does, nobody may wait for the whole device, nor free memory.

What the garbage collector ends in the middle of a capture may free device memory or unload a module, which makes the
capture invalid. Torch collects no garbage before a capture any more, and watched ones run through far more Python. So
what is there when a capture begins is kept from the collector until no capture runs, as servers do for theirs.
"""

from __future__ import annotations

import gc
import threading


class Captures:
    """A count. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._froze = False
        self.running = 0

    def began(self) -> None:
        with self._lock:
            self.running += 1
            if self.running == 1 and not gc.get_freeze_count():  # else what the program froze would be thawed, too
                gc.freeze()
                self._froze = True

    def ended(self) -> None:
        with self._lock:
            self.running -= 1
            if self._froze and not self.running:
                self._froze = False
                gc.unfreeze()


captures = Captures()
