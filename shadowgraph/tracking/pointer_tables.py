"""Tensors that hold addresses: a kernel that is given one reaches the buffers behind it without being given them.

vLLM gathers block tables so, and zeroes blocks of its cache. A table is ``torch.tensor`` of addresses as uint64; hardly
anything else has that dtype. Its words are read once, as it is made, in the program's thread; a launch that is given it
counts as given the buffers as well. Any thread; no lock: a table is entered whole.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import NamedTuple

import torch

from shadowgraph.model.buffers import Buffer, Ledger
from shadowgraph.model.launches import Access, Pointer
from shadowgraph.tracking.aliases import buffer_view

MOST = 1024  # words of a table
_KEPT = 256  # tables


class _Table(NamedTuple):
    storage: weakref.ref[torch.UntypedStorage]
    buffers: tuple[tuple[int, Buffer], ...]  # by word


class PointerTables:
    """The tables that live, and the buffers whose addresses they hold."""

    def __init__(self) -> None:
        self._tables: dict[int, _Table] = {}  # by address

    def clear(self) -> None:
        """A debugger ends: its buffers mean nothing to the next one."""
        self._tables = {}

    def note(self, tensor: torch.Tensor, ledger: Ledger) -> None:
        """Enter a tensor that was just made, if its words are addresses of buffers of the ledger. Waits for the copy of
        the words."""
        if tensor.dtype != torch.uint64 or not 0 < tensor.numel() <= MOST or not tensor.is_contiguous():
            return
        words = tensor.reshape(-1).tolist()
        owners = ((at, ledger.owner(word, word + 1)) for at, word in enumerate(words) if word)
        found = tuple((at, buffer) for at, buffer in owners if buffer is not None)
        if found:
            start = tensor.data_ptr()
            self._tables[start] = _Table(weakref.ref(tensor.untyped_storage()), found)
            for address in list(self._tables)[:-_KEPT]:
                self._tables.pop(address, None)

    def behind(self, pointers: Iterable[Pointer]) -> tuple[Pointer, ...]:
        """Pointers to the buffers behind the tables among some pointers, as ``argument[word]``."""
        if not self._tables:
            return ()
        found: list[Pointer] = []
        for pointer in pointers:
            table = self._tables.get(pointer.view.start) if pointer.view.itemsize == 8 else None
            if table is None:
                continue
            if table.storage() is None:
                self._tables.pop(pointer.view.start, None)  # other memory stands there now
                continue
            found += (
                Pointer(f"{pointer.argument}[{at}]", buffer_view(buffer), Access.UNKNOWN)
                for at, buffer in table.buffers
                if buffer.alive and pointer.view.start + 8 * at < pointer.view.stop
            )
        return tuple(found)


tables = PointerTables()
