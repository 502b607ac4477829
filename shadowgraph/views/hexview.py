"""Hex view of a finding's bytes: offset, expected bytes, found bytes, and the values in the buffer's dtype."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shadowgraph.model.findings import Finding
from shadowgraph.views.small_floats import SMALL_FLOATS, table

ROW = 16
ROWS = 4


@dataclass(frozen=True, slots=True)
class HexRow:
    """One row of bytes; `changed` marks the bytes that differ, `values` decodes the found bytes."""

    offset: int
    expected: bytes
    found: bytes
    changed: tuple[bool, ...]
    values: str


def hex_rows(finding: Finding) -> list[HexRow]:
    """Up to four rows of 16 bytes, only rows with changed bytes, in order of address."""
    window = finding.window
    if window is None:
        return []
    expected, found = bytes.fromhex(window.expected), bytes.fromhex(window.found)
    # Rows are aligned to the buffer's elements, so that values decode.
    lead = -window.offset % ROW
    rows = []
    for start in range(lead - ROW if lead else 0, len(found), ROW):
        low, high = max(start, 0), min(start + ROW, len(found))
        changed = tuple(expected[i] != found[i] for i in range(low, high))
        if any(changed):
            values = decoded(found[low:high], finding.buffer.dtype, window.offset + low)
            rows.append(HexRow(window.offset + low, expected[low:high], found[low:high], changed, values))
    return rows[:ROWS]


def decoded(data: bytes, dtype: str, offset: int = 0) -> str:
    """Bytes as values of a dtype; `offset` counts from the start of an element. Empty for an unknown dtype."""
    if dtype in SMALL_FLOATS:
        return " ".join(f"{value:g}" for value in table(dtype)[np.frombuffer(data, dtype=np.uint8)])
    halves = dtype == "bfloat16"  # the upper halves of float32; numpy has no bfloat16
    try:
        kind = np.dtype(np.uint16 if halves else dtype)
    except TypeError:
        return ""
    skip = -offset % kind.itemsize
    usable = (len(data) - skip) // kind.itemsize * kind.itemsize
    if usable <= 0:
        return ""
    values = np.frombuffer(data[skip : skip + usable], dtype=kind)
    if halves:
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return " ".join(str(value) for value in values)


DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *SMALL_FLOATS,
)
