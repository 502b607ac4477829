"""Twins: memories of one form, of which host code may refresh the wrong one. Pure functions over graphs and noted
copies, called by `LostRefreshes` under the debugger's lock."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import msgspec
import numpy as np
import torch

from shadowgraph.checks.base import Context
from shadowgraph.checks.rebound.drafts import input_of, is_read
from shadowgraph.checks.rebound.facts import Evidence
from shadowgraph.graphs.dispatch.operand_notes import Copied
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.graphs import Graph
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.foreign import track_storage


@dataclass(frozen=True, slots=True, eq=False)
class Twin:
    """A graph's memory and its twin.

    Attributes
    ----------
    home, buffer
        What the graph reads, and the buffer that holds it.
    where, other, dtype
        The twin, its buffer and the dtype of its elements.
    evidence
        Why it is taken for a twin.
    """

    home: TensorView
    buffer: Buffer
    where: ByteRange
    other: Buffer
    dtype: str
    evidence: Evidence

    def values(self, data: bytes) -> bytes:
        """The twin's bytes as elements of the graph's dtype."""
        if self.dtype == self.home.dtype:
            return data
        with np.errstate(all="ignore"):
            return np.frombuffer(data, self.dtype).astype(self.home.dtype).tobytes()


def copied_twins(
    context: Context, graph: Graph, reads: Sequence[TensorView], copies: Iterable[Copied]
) -> Iterator[Twin]:
    """Memories from which a graph's inputs were copied, or that were copied from them, and that no graph reads."""
    seen: set[tuple[int, int]] = set()
    near = RangeSet.of(view.hull for view in reads)
    for copied in reversed(list(copies)):
        source, target = copied.ranges
        if not (near.overlaps(source) or near.overlaps(target)) or source.overlaps(target) or not copied.alive:
            continue
        for side in _sides(copied):
            for home in (part for view in reads if (part := side.part(view)) is not None):
                where = side.beside(home)
                if (home.start, where.start) in seen or where.overlaps(home.hull) or is_read(context, where):
                    continue
                buffer, storage = input_of(graph, home), side.storage()
                if buffer is None or storage is None:
                    continue
                seen.add((home.start, where.start))
                kind = side.kind(home)
                shape = side.form if (storage.nbytes(), kind) == (side.theirs.nbytes, side.dtype) else None
                other = track_storage(context.ledger, storage, kind, shape, home.device)
                yield Twin(home, buffer, where, other, _name(kind), Evidence.COPY)


class _Side(NamedTuple):
    """A copy, of which one side is taken for the graph's memory and the other for its twin.

    Attributes
    ----------
    ours, own
        The graph's side, and the dtype of its elements.
    theirs, dtype, form, storage
        The other side: its bytes, dtype, shape and storage.
    """

    ours: ByteRange
    theirs: ByteRange
    own: torch.dtype
    dtype: torch.dtype
    form: tuple[int, ...]
    storage: weakref.ref[torch.UntypedStorage]

    def part(self, view: TensorView) -> TensorView | None:
        """The part of an input that lies in the graph's side; None where there is none, and where the copy converted
        elements that have another dtype there than the input."""
        common = self.ours.intersect(view.hull)
        if common is None or (self.own is not self.dtype and view.dtype != _name(self.own)):
            return None
        if common == view.hull:
            return view
        count = common.nbytes // view.itemsize
        return msgspec.structs.replace(view, address=common.start, shape=(count,), stride=(1,)) if count else None

    def beside(self, home: TensorView) -> ByteRange:
        """The bytes of the other side that correspond to those of an input."""
        num, den = (1, 1) if self.own is self.dtype else (self.dtype.itemsize, self.own.itemsize)
        start = self.theirs.start + (home.start - self.ours.start) * num // den
        return ByteRange(start, start + home.nbytes * num // den)

    def kind(self, home: TensorView) -> torch.dtype:
        """The dtype of the other side's elements; without a conversion it is the input's."""
        if self.own is self.dtype:
            return cast("torch.dtype", getattr(torch, home.dtype))
        return self.dtype


def _sides(copied: Copied) -> Iterator[_Side]:
    source, target = copied.ranges
    kinds, form = (copied.source_dtype, copied.target_dtype), tuple(copied.shape)
    yield _Side(target, source, kinds[1], kinds[0], form, copied.source_storage)
    yield _Side(source, target, *kinds, form, copied.target_storage)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def lone_windows(graph: Graph, reads: Sequence[TensorView]) -> Iterator[tuple[TensorView, ByteRange]]:
    """Inputs that are a part of a buffer of their dtype of which the graph uses nothing else, each with the buffer's
    range."""
    for home in reads:
        buffer = input_of(graph, home)
        if buffer is None or buffer.role is Role.POOL or buffer.dtype != home.dtype:
            continue
        used = graph.captured(buffer.range)
        if used == [home.hull] and home.nbytes < buffer.nbytes:
            yield home, buffer.range
