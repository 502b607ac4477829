"""Accesses that are about to run into a fence, where the addresses of a launch are known before it accesses them: in
Triton's interpreter. The process dies right after the report.

`FenceHits.look` is called in the thread of the launch; no lock but that of the spans.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from shadowgraph.tracking.fences import FencedSpans

Met = Callable[[int, int, int, bool], None]


class FenceHits:
    """Compares addresses with what is not mapped behind some spans.

    Parameters
    ----------
    met
        Called with the first address of what is not mapped, the address and the size of the access, and whether it
        writes.
    """

    def __init__(self, spans: FencedSpans, met: Met) -> None:
        self._spans, self._met = spans, met

    def look(self, addresses: npt.NDArray[np.uint64], itemsize: int, writes: bool) -> None:
        """Tell of the first access, in the order of the lanes, that is about to fault."""
        if not addresses.size:
            return
        low, high = int(addresses.min()), int(addresses.max()) + itemsize
        for first, end in self._spans.beyond():
            if first < high and low < end:
                inside = (addresses + np.uint64(itemsize) > np.uint64(first)) & (addresses < np.uint64(end))
                if inside.any():
                    self._met(first, int(addresses[inside][0]), itemsize, writes)
                    return


current: FenceHits | None = None  # while a debugger with fences watches the host
