"""Validation of a graph's device nodes in a manifest, beyond field types."""

from __future__ import annotations

from collections.abc import Sequence

from shadowgraph.dumps.device_rows import DEPTH
from shadowgraph.dumps.schema import DeviceRow, GraphRow

_MOST = 1 << 64  # upper bound of addresses and program counts
_AXES = 3


def require_nodes(graph: GraphRow, texts: int, stacks: int) -> None:
    """Check every index of a graph's device nodes against its table, and every number against its bounds.

    Raises
    ------
    ValueError
        At the first violation.
    """
    if graph.device is not None:
        _require(graph.device, len(graph.nodes), texts, stacks, f"graph {graph.serial}", DEPTH)


def _require(rows: Sequence[DeviceRow], launches: int, texts: int, stacks: int, where: str, deeper: int) -> None:
    for place, row in enumerate(rows):
        wrong = _wrong(row, len(rows), launches, texts, stacks)
        if wrong is not None:
            raise ValueError(f"device node {place} of {where} {wrong}")
        if row.inner:
            if not deeper:
                raise ValueError(f"device nodes of {where} lie deeper inside one another than any")
            _require(row.inner, launches, texts, stacks, where, deeper - 1)
    if any(place <= before for place, row in enumerate(rows) for before in row.after) and _circular(rows):
        raise ValueError(f"device nodes of {where} wait for one another in a circle")


def _wrong(row: DeviceRow, nodes: int, launches: int, texts: int, stacks: int) -> str | None:
    """What is wrong with one node, those inside it aside; None where nothing is."""
    if _names_missing(row, texts, stacks):
        return "names a text or a stack that is not there"
    if row.launch is not None and row.launch >= launches:
        return "names a launch that is not there"
    if not (_is_extent(row.grid) and _is_extent(row.block) and _in_memory(row)):
        return "has numbers that cannot be"
    return "waits for a node that is not there" if max(row.after, default=-1) >= nodes else None


def _names_missing(row: DeviceRow, texts: int, stacks: int) -> bool:
    """Whether a node names a text or a stack beyond the manifest's."""
    named = max(row.name, row.note or 0, *(word.name for word in row.words))
    return named >= texts or (row.stack is not None and row.stack >= stacks)


def _is_extent(numbers: tuple[int, ...] | None) -> bool:
    return numbers is None or (len(numbers) <= _AXES and max(numbers, default=0) < _MOST)


def _in_memory(row: DeviceRow) -> bool:
    words = all(max(word.argument, word.offset, word.address, abs(word.at)) < _MOST for word in row.words)
    return words and all(each.start + each.nbytes + abs(each.at) < _MOST for each in (*row.reads, *row.writes))


def _circular(rows: Sequence[DeviceRow]) -> bool:
    """Whether the dependencies of nodes contain a cycle."""
    waits = [len(row.after) for row in rows]
    followers: list[list[int]] = [[] for _ in rows]
    for place, row in enumerate(rows):
        for before in row.after:
            followers[before].append(place)
    ready = [place for place, count in enumerate(waits) if not count]
    done = 0
    while ready:
        done += 1
        for place in followers[ready.pop()]:
            waits[place] -= 1
            if not waits[place]:
                ready.append(place)
    return done < len(rows)
