"""A device played on the host: copies and reads are queued, and run in order when the test says so.

Host and device memory are both memory of this process; pinned is what the test says is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from shadowgraph.engines.base import Result
from shadowgraph.engines.numpy_engine import NumpyEngine
from shadowgraph.model.host_copies import HostBlock, HostKind
from shadowgraph.model.ranges import ByteRange


class _Queued:
    def __init__(self) -> None:
        self.done = False

    def passed(self) -> bool:
        return self.done


class PlayedDevice(NumpyEngine):
    """An engine whose work waits for `run`.

    Attributes
    ----------
    blocks
        What the driver says of addresses.
    """

    def __init__(self, origin: int = 0) -> None:
        super().__init__(origin)
        self.work: list[Callable[[], Any]] = []
        self.blocks: dict[int, HostBlock] = {}

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy."""
        to, at, nbytes = target.data_ptr(), source.data_ptr(), source.nbytes
        self.work.append(lambda: ctypes.memmove(to, at, nbytes))

    def then(self, work: Callable[[], Any]) -> None:
        """Queue a kernel."""
        self.work.append(work)

    def run(self) -> None:
        """Do all that was queued."""
        work, self.work = self.work, []
        for each in work:
            each()

    def fetch(self, tag: object, parts: Sequence[tuple[object, ByteRange]]) -> _Queued:
        queued = _Queued()

        def arrive() -> None:
            self._results.append(Result(tag, (), tuple((key, self.read(where)) for key, where in parts)))
            queued.done = True

        self.work.append(arrive)
        return queued

    def poll(self, wait: bool = False, here: bool = False) -> list[Result]:
        if wait:
            self.run()
        return super().poll(wait, here)

    def host_block(self, address: int) -> HostBlock | None:
        return self.blocks.get(address, HostBlock(HostKind.PAGEABLE))
