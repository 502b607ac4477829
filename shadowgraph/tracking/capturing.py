"""How many CUDA captures run in this process: while one does, nobody may wait for the whole device."""

from __future__ import annotations

import threading


class Captures:
    """A count. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.running = 0

    def began(self) -> None:
        with self._lock:
            self.running += 1

    def ended(self) -> None:
        with self._lock:
            self.running -= 1


captures = Captures()
