"""Validation of node stores, write sets and row histories in a manifest, beyond field types."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from shadowgraph.dumps.schema import Manifest
from shadowgraph.model.row_history import InputRows, RowStretch
from shadowgraph.model.write_sets import Written

_MOST = 1 << 64  # upper bound of addresses
_ROWS = 1 << 32


def require_history(manifest: Manifest) -> None:
    """Check every range and every number of a row against its bounds.

    Raises
    ------
    ValueError
        At the first violation.
    """
    for stored in manifest.stores:
        if any(not start < stop < _MOST for start, stop in stored.ranges):
            raise ValueError(f"the stores of node {stored.node} of graph {stored.graph} are no ranges")
    for sets in manifest.write_sets:
        if not all(_is_extent(one) for one in sets.written):
            raise ValueError(f"the write sets of graph {sets.graph} are no ranges")
    for rows in manifest.input_rows:
        if not _are_rows(rows):
            raise ValueError(f"the rows that graph {rows.graph} reads of buffer {rows.buffer} cannot be")


def _is_extent(written: Written) -> bool:
    if min(written.node, written.count) < 0:
        return False
    return written.first <= written.last and max(abs(written.first), abs(written.last)) < _MOST


def _are_rows(rows: InputRows) -> bool:
    return _is_view(rows) and all(_in_order(rows, at.rows) for at in rows.replays)


def _is_view(rows: InputRows) -> bool:
    return 0 < rows.count < _ROWS and 0 < rows.nbytes <= rows.stride < _MOST and abs(rows.offset) < _MOST


def _in_order(rows: InputRows, stretches: Sequence[RowStretch]) -> bool:
    """Whether stretches lie inside the rows, in order and without overlap."""
    pairs = [(each.first, each.last) for each in stretches]
    inside = all(0 <= first <= last < rows.count for first, last in pairs)
    return inside and all(one[1] < other[0] for one, other in pairwise(pairs))
