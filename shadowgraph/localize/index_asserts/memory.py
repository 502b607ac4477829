"""Device memory as seen by the evaluator: loads are answered from copies of the arguments, stores make bytes
unknown."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from shadowgraph.localize.index_asserts.values import DTYPES, SIZES, Integers, Value, unknown


class Memory:
    """Copies by address. Bytes that the kernel itself may have written are unknown from then on."""

    def __init__(self, copies: Iterable[tuple[int, bytes]]) -> None:
        self._parts = [(start, data, np.zeros(len(data), dtype=np.bool_)) for start, data in copies]

    def load(self, pointer: Value, active: Value, other: Value | None) -> Value:
        """The values at the addresses of the active lanes; the other lanes hold `other`, or are unknown."""
        dtype, shape = pointer.pointer, np.broadcast_shapes(pointer.data.shape, active.data.shape)
        if dtype not in DTYPES or dtype not in SIZES:
            return unknown(shape)
        where, size = np.broadcast_to(pointer.data, shape), SIZES[dtype]
        data, known = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.bool_)
        for start, held, written in self._parts:
            count = len(held) // size
            if not count:
                continue
            place, misfit = np.divmod(where - start, size)
            here = (misfit == 0) & (place >= 0) & (place < count)
            values = np.frombuffer(held, dtype=dtype, count=count).astype(np.int64)
            fresh = np.logical_not(written[: count * size].reshape(count, size).any(1))
            place = np.clip(place, 0, count - 1)
            data = np.where(here, values[place], data)
            known = np.where(here, fresh[place], known)
        on = active.data != 0
        rest = unknown() if other is None else other
        known = active.known & np.where(on, known & pointer.known, rest.known)
        return Value(np.where(on, data, rest.data), known, dtype)

    def store(self, pointer: Value, active: Value) -> None:
        """Mark the bytes at the addresses of active lanes as unknown."""
        maybe = (active.data != 0) | ~active.known
        shape = np.broadcast_shapes(pointer.data.shape, maybe.shape)
        maybe, sure = np.broadcast_to(maybe, shape), np.broadcast_to(pointer.known, shape)
        if pointer.pointer not in SIZES or bool((maybe & ~sure).any()):
            self.forget()
            return
        self._forget(np.broadcast_to(pointer.data, shape)[maybe], SIZES[pointer.pointer])

    def forget(self) -> None:
        """Mark all bytes as unknown: a store went to an unknown address."""
        for _, _, written in self._parts:
            written[:] = True

    def _forget(self, places: Integers, size: int) -> None:
        for start, held, written in self._parts:
            for byte in range(size):
                offset = places - start + byte
                written[offset[(offset >= 0) & (offset < len(held))]] = True
