"""The tables that a launch was given, as 2-D views, whatever form it was given them in. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from shadowgraph.model.buffers import Buffer
from shadowgraph.model.views import TensorView


def tables_of(view: TensorView, buffer: Buffer) -> Iterator[TensorView]:
    """A view of a buffer as a table: itself where it has two dimensions; with more the inner ones, as far as a row may
    go, taken together; with one dimension, as for a pointer to the first row, the buffer as it was allocated."""
    if len(view.shape) == 2:
        yield view
    elif len(view.shape) > 2:
        yield from _folded(view)
    elif view.start == buffer.start and view.itemsize == buffer.itemsize and len(buffer.shape) >= 2:
        whole = _contiguous(view, buffer.shape)
        if whole.nbytes == buffer.nbytes:
            yield from _folded(whole)


def _folded(view: TensorView) -> Iterator[TensorView]:
    """A view without gaps cut into rows at each of its dimensions, the longest rows first."""
    if view.contiguous:
        for dim in range(1, len(view.shape)):
            yield _contiguous(view, (math.prod(view.shape[:dim]), math.prod(view.shape[dim:])))


def _contiguous(view: TensorView, shape: tuple[int, ...]) -> TensorView:
    stride = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
    return msgspec.structs.replace(view, shape=shape, stride=stride)
