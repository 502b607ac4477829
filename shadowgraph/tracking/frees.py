"""The end of a buffer, as its storage's finalizer sees it: where the program dropped the last reference.

Called by finalizers, in the thread that dropped the last reference, under any of its locks; takes none.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from shadowgraph.common.finalizer_safe_lock import collects_garbage, defer
from shadowgraph.common.internal_errors import error_barrier_all
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.stacks import current_stack


def finalized(buffer: Buffer, work: Callable[[], None]) -> None:
    """Note which line of the program freed a buffer that a graph was captured with, then `defer` the work.

    The garbage collector runs at any line, which says nothing of the free.
    """
    if buffer.captured and not collects_garbage():
        with error_barrier_all("end of a buffer"):
            buffer.freed_by = tuple(frame for frame in current_stack() if frame.file != weakref.__file__)
    defer(work)
