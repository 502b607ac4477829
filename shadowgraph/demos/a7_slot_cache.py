"""A7: sglang 34210. A graph is captured with an eager value from a cache of one slot; another key takes the slot.

The cache was the value's only owner. Its block goes to the next allocation of the same size, and the graph reads that.
"""

from __future__ import annotations

from typing import Any

import torch

from shadowgraph.demos.case import Case, Expected, require
from shadowgraph.demos.device import Buffers, Unwatched

ROWS = 32


class SlotCache:
    """Values by key; only the last few are kept."""

    def __init__(self, buffers: Buffers, slots: int) -> None:
        self.values: dict[int, torch.Tensor] = {}
        self._buffers, self._slots = buffers, slots

    def get(self, key: int) -> torch.Tensor:
        if key not in self.values:
            self.values[key] = self._buffers.zeros((ROWS,), torch.float32).fill_(key)
            if len(self.values) > self._slots:
                self._buffers.release(self.values.pop(next(iter(self.values))))
        return self.values[key]


class Backend:
    """A graph for each key, captured with the key's value."""

    def __init__(self, device: Any, buffers: Buffers, slots: int) -> None:
        self.cache = SlotCache(buffers, slots)
        self.hidden = buffers.zeros((ROWS,), torch.float32).fill_(1)
        self.victim: torch.Tensor | None = None
        self.addresses: dict[int, int] = {}
        self.graphs: dict[int, Any] = {}
        self.outputs: dict[int, torch.Tensor] = {}
        self._device, self._buffers = device, buffers

    def capture(self, key: int) -> None:
        """The eager part, and a capture over its value."""
        self.addresses[key] = self.cache.get(key).data_ptr()
        self.graphs[key] = self._device.graph()
        with self._device.capture(self.graphs[key]):
            self.outputs[key] = self.forward(key)

    def forward(self, key: int) -> torch.Tensor:
        return self.hidden * self.cache.get(key)


def program(device: Any, debugger: Any, fixed: bool, carve: int) -> Backend:
    """Two keys, one graph each, then the first graph again; the fixed twin's cache has a slot for each."""
    with debugger.guard():
        backend = Backend(device, Buffers(device.device, carve), slots=2 if fixed else 1)
        debugger.name("backend", backend)
        backend.capture(3)
        backend.graphs[3].replay()
        require(backend.outputs[3].tolist() == [3.0] * ROWS, "the first graph reads its value")
        backend.capture(5)
        backend.victim = backend._buffers.zeros((ROWS,), torch.float32).fill_(-1)
    backend.graphs[5].replay()
    backend.graphs[3].replay()
    return backend


def damage(device: Any) -> bool:
    """The first graph's output is computed from the victim's values."""
    backend = program(device, Unwatched(), False, 1 << 12)
    victim = backend.victim
    assert victim is not None
    require(victim.data_ptr() == backend.addresses[3], "the victim lies where the first value was")
    require(backend.outputs[5].tolist() == [5.0] * ROWS, "the second graph reads its value")
    return bool((backend.outputs[3] == -1).all())


CASES = (
    Case(
        id="A7",
        title="a graph's value in a cache of one slot",
        report="sglang 34210",
        program=program,
        damage=damage,
        expected=(
            Expected(
                "SG104",
                "backend.cache.values[3]",
                phase="replay",
                culprit="aten.mul.Tensor",
                replay=2,
                launched_in="forward",
                victim=".victim",
            ),
        ),
    ),
)
