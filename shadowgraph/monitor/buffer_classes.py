"""What a buffer is to the program: a static input, a workspace, a part of the KV pool or of a graph's pool, a weight.

`GraphRegistry` asks when it introduces a graph, for the coverage by class. A class follows from a buffer's role, from
the names of its owners, and from the functions that allocated it; nothing else depends on it. Names are those that
adapters and `Debugger.name` gave: attribute paths as sglang, vLLM, transformers and flashinfer have them. Where nothing
tells, the class is `OTHER`.
"""

from __future__ import annotations

import os
import re

from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.coverage import BufferClass
from shadowgraph.tracking.aliases import NameBook

_WORKSPACE = re.compile(r"workspace|scratch", re.IGNORECASE)
_KV = re.compile(
    r"kv_?(cache|pool|buffer)s?(?![a-z])|(?<![a-z])(k|v|key|value)_(cache|buffer|pool)s?(?![a-z])",
    re.IGNORECASE,
)
# Functions of sglang and of transformers whose own names do not tell; a stack has no classes.
_KV_FILES = {
    "memory_pool.py": re.compile("^_create_buffers$"),
    "cache_utils.py": re.compile("^(__init__|lazy_initialization)$"),
}
_WEIGHT = re.compile(r"(?:^|[._])(weight|bias|qweight|qzeros|scales|weight_scale(_inv)?)(_v|_g)?$")
_FRAMES = 4  # of the allocating stack


class BufferClasses:
    """Classes of buffers, each worked out once."""

    def __init__(self, names: NameBook) -> None:
        self._names = names
        self._known: dict[int, BufferClass] = {}

    def of(self, buffer: Buffer) -> BufferClass:
        """The class of a buffer."""
        known = self._known.get(buffer.serial)
        if known is None:
            pooled = buffer.role is Role.POOL  # most are, and need no names
            owners = [] if pooled else self._names.owners_of(buffer.range, buffer.serial)
            paths = [owner.path for owner in owners]
            known = self._known[buffer.serial] = classified(buffer, paths)
        return known


def classified(buffer: Buffer, paths: list[str]) -> BufferClass:
    """The class of a buffer with these owners. The line that allocated it counts where no owner tells."""
    if buffer.role is Role.POOL:
        return BufferClass.GRAPH_POOL
    by_name = next(filter(None, map(_by_words, paths)), None)
    if by_name is None and any(_WEIGHT.search(path) for path in paths):
        by_name = BufferClass.WEIGHTS
    found = by_name or _by_stack(buffer)
    if found is not None:
        return found
    return BufferClass.STATIC if buffer.role is Role.STATIC else BufferClass.OTHER


def _by_words(text: str) -> BufferClass | None:
    if _WORKSPACE.search(text):
        return BufferClass.WORKSPACE
    return BufferClass.KV_POOL if _KV.search(text) else None


def _by_stack(buffer: Buffer) -> BufferClass | None:
    for frame in buffer.stack[:_FRAMES]:
        inside = _KV_FILES.get(os.path.basename(frame.file))
        if inside is not None and inside.search(frame.function):
            return BufferClass.KV_POOL
        found = _by_words(frame.function)
        if found is not None:
            return found
    return None
