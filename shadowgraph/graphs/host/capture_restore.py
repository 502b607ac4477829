"""State that a host capture restores when it ends, since a CUDA capture runs no work: input bytes and generator states.

Used by the recorder in the capturing thread; no lock.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from shadowgraph.tracking.memory import raw_bytes


class SavedInputs:
    """Bytes of storages as they were before a capture first wrote them."""

    def __init__(self) -> None:
        self._saved: dict[int, tuple[StorageWeakRef, npt.NDArray[np.uint8]]] = {}

    def save(self, storage: torch.UntypedStorage) -> None:
        """Copy a storage's bytes, unless they were saved before."""
        start = storage.data_ptr()
        if storage.nbytes() and start not in self._saved:
            self._saved[start] = (StorageWeakRef(storage), raw_bytes(start, storage.nbytes()).copy())

    def restore(self) -> None:
        """Write the bytes back, except to storages that were freed or moved since: their memory may have been
        reused."""
        for start, (reference, kept) in self._saved.items():
            storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            if storage is not None and storage.data_ptr() == start and storage.nbytes() >= kept.nbytes:
                raw_bytes(start, kept.nbytes)[:] = kept
        self._saved.clear()


class Generators:
    """Random number generators that a capture drew from, and the state in which it left each."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[torch.Generator, torch.Tensor, torch.Tensor]] = {}
        self.untouched(None)

    def untouched(self, generator: torch.Generator | None) -> bool:
        """Whether only captured operators have changed a generator (None: the default one) since the capture began."""
        generator = generator or torch.default_generator
        state = generator.get_state()
        _, _, last = self._known.setdefault(id(generator), (generator, state, state))
        return torch.equal(state, last)

    def drew(self, generator: torch.Generator | None) -> None:
        """A captured operator drew numbers."""
        generator = generator or torch.default_generator
        self._known[id(generator)] = (*self._known[id(generator)][:2], generator.get_state())

    def restore(self) -> None:
        """Set every generator back to its first state."""
        for generator, first, _ in self._known.values():
            generator.set_state(first)
        self._known.clear()
