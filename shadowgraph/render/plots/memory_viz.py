"""The ledger as torch's memory snapshot, for pytorch.org/memory_viz and `torch.cuda._memory_viz`.

A segment is a range of memory that buffers with their guards fill almost without gaps; it is cut into blocks as torch's
allocator does it: a live buffer is ``active_allocated``, the guard behind it counts as rounding (`size` beyond
`requested_size`), all else is ``inactive``. The trace has allocations and frees in the order of the ledger. The format
has no place for further names, views, graphs and their nodes, findings, times: they are left out.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from shadowgraph.common.atomic_files import atomic_write
from shadowgraph.common.words import form
from shadowgraph.model.buffers import Buffer
from shadowgraph.views.source import Source, Watched, source_of

PROTOCOL = 4  # pickle protocol that the viewer reads
_NEAR = 4096  # bytes between two buffers of one segment, at most
_SMALL = 1 << 20  # torch calls a segment "large" above this size

Entry = dict[str, Any]


def memory_snapshot(watched: Watched) -> Entry:
    """The buffers of a debugger or of an open dump in the format of ``torch.cuda.memory._snapshot()``.

    Parameters
    ----------
    watched
        A debugger, or an open dump.

    Returns
    -------
    dict
        ``segments`` and ``device_traces``; host memory counts as device 0. Plain types, owned by the caller.
    """
    source = source_of(watched)
    live = sorted((b for b in source.dump.buffers if b.nbytes), key=lambda b: (_device(b), b.start, -b.nbytes))
    segments = [_segment(source, part) for part in _segments(_apart(live))]
    known = [*source.dump.freed, *source.dump.buffers]
    count = max((_device(buffer) for buffer in known), default=0) + 1
    traces: list[list[Entry]] = [[] for _ in range(count)]
    for _, device, entry in sorted(_events(source, known), key=lambda event: event[0]):
        traces[device].append(entry)
    return {"segments": segments, "device_traces": traces, "allocator_settings": {}, "external_annotations": []}


def save_memory_viz(watched: Watched, path: str | os.PathLike[str]) -> Path:
    """Pickle `memory_snapshot` into a file, atomically.

    Parameters
    ----------
    watched
        A debugger, or an open dump.
    path
        The file; an existing one is replaced.

    Raises
    ------
    MissingFileError
        When the file cannot be written.
    """
    return atomic_write(path, pickle.dumps(memory_snapshot(watched), protocol=PROTOCOL))


def _device(buffer: Buffer) -> int:
    number = re.fullmatch(r"[a-z]+:(\d{1,3})", buffer.device)
    return int(number[1]) if number else 0


def _apart(buffers: Iterable[Buffer]) -> Iterator[Buffer]:
    """Buffers in order, without buffers inside an earlier one: a block has one tenant."""
    reach: tuple[int, int] = (-1, 0)
    for buffer in buffers:
        if (_device(buffer), buffer.start) >= reach:
            yield buffer
            reach = _device(buffer), buffer.stop


def _segments(buffers: Iterable[Buffer]) -> list[list[Buffer]]:
    """Buffers, split at gaps between their guards."""
    parts: list[list[Buffer]] = []
    for buffer in buffers:
        last = parts[-1][-1] if parts else None
        same = last is not None and (_device(last), last.pool) == (_device(buffer), buffer.pool)
        if last is not None and same and buffer.start - buffer.head_guard - _end(last) <= _NEAR:
            parts[-1].append(buffer)
        else:
            parts.append([buffer])
    return parts


def _end(buffer: Buffer) -> int:
    return buffer.guard_start + buffer.tail_guard if buffer.tail_guard else buffer.stop


def _segment(source: Source, buffers: list[Buffer]) -> Entry:
    start = at = buffers[0].start - buffers[0].head_guard
    blocks: list[Entry] = []
    for buffer, after in zip(buffers, [*buffers[1:], None], strict=True):
        if buffer.start > at:
            blocks.append(_free(at, buffer.start - at))
        at = _end(buffer) if after is None else min(_end(buffer), after.start)
        frames = _frames(source, buffer)
        size = {"size": at - buffer.start, "requested_size": buffer.nbytes}
        blocks.append({"address": buffer.start, **size, "state": "active_allocated", "frames": frames})
    used = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    return {
        "device": _device(buffers[0]),
        "address": start,
        "total_size": at - start,
        "allocated_size": used,
        "active_size": used,
        "requested_size": sum(buffer.nbytes for buffer in buffers),
        "stream": 0,
        "segment_type": "large" if at - start > _SMALL else "small",
        "segment_pool_id": (0, buffers[0].pool or 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def _free(start: int, nbytes: int) -> Entry:
    return {"address": start, "size": nbytes, "requested_size": 0, "state": "inactive", "frames": []}


def _frames(source: Source, buffer: Buffer) -> list[Entry]:
    """The stack that allocated a buffer, innermost first, after a frame with the buffer's name."""
    named = f"{source.book.name(buffer)} {form(buffer.dtype, buffer.shape)} {buffer.role}"
    known = [{"filename": frame.file, "line": frame.line, "name": frame.function} for frame in buffer.stack]
    return [{"filename": "shadowgraph", "line": buffer.serial, "name": named}, *known]


def _events(source: Source, buffers: Iterable[Buffer]) -> Iterator[tuple[int, int, Entry]]:
    """Order, device and entry of each event: allocations and frees share one sequence of serials."""
    for buffer in buffers:
        facts = {"addr": buffer.start, "size": buffer.nbytes, "stream": 0, "frames": _frames(source, buffer)}
        yield buffer.serial, _device(buffer), {"action": "alloc", **facts}
        if buffer.freed_at is not None:
            yield buffer.freed_at, _device(buffer), {"action": "free_requested", **facts}
            yield buffer.freed_at, _device(buffer), {"action": "free_completed", **facts}
