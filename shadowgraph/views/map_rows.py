"""Layout of a memory map: buffers with a row of their own, and runs of buffers folded into one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from shadowgraph.common.errors import UsageError
from shadowgraph.views.memory_map import MapBuffer, MapDamage, MemoryMap

MOST_ROWS = 200  # PDF readers cannot open a taller page
_ZOOMS = 60
_ZOOMS_PER_BUFFER = 3
_OWNERS_PER_BUFFER = 5


@dataclass(frozen=True, slots=True)
class OwnerLine:
    """Owners with the same view of a buffer."""

    names: tuple[str, ...]
    relation: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Row:
    """A buffer with a row of its own.

    Attributes
    ----------
    index
        Into `MemoryMap.buffers`.
    damages
        All findings on it; `zooms` are the findings with a line of their own for the bytes around them.
    owners
        Lines for other owners; `more_owners` counts the lines left out.
    """

    index: int
    damages: tuple[MapDamage, ...]
    zooms: tuple[MapDamage, ...]
    owners: tuple[OwnerLine, ...]
    more_owners: int


@dataclass(frozen=True, slots=True)
class Fold:
    """A run of buffers that share one line: indices ``[first, stop)``."""

    first: int
    stop: int
    nbytes: int
    damaged: int

    @property
    def count(self) -> int:
        return self.stop - self.first


def rows_of(memory: MemoryMap, limit: int) -> tuple[Row | Fold, ...]:
    """Rows in order of address.

    Every damaged buffer keeps its row (the first 200 of them: a fold counts the others); then their neighbours by
    address, named buffers and the largest ones fill up to `limit` rows. A run of one is never folded.

    Raises
    ------
    UsageError
        When `limit` is not in 1 to 200.
    """
    require_limit(limit)
    chosen = _chosen(memory, limit)
    damages = memory.damages_of()
    zoomed = _zoomed(damages, chosen)
    rows: list[Row | Fold] = []
    for first, stop in runs(len(memory.buffers), chosen):
        if stop - first > 1 or first in damages:
            part = memory.buffers[first:stop]
            damaged = sum(index in damages for index in range(first, stop))
            rows.append(Fold(first, stop, sum(buffer.nbytes for buffer in part), damaged))
        else:
            chosen.add(first)
    rows += [_row(index, memory.buffers[index], damages.get(index, ()), zoomed) for index in chosen]
    return tuple(sorted(rows, key=lambda row: row.first if isinstance(row, Fold) else row.index))


def require_limit(limit: int) -> None:
    """Refuse a limit of rows that no picture can have.

    Raises
    ------
    UsageError
        When it is not in 1 to 200.
    """
    if not 1 <= limit <= MOST_ROWS:
        raise UsageError(f"limit must be from 1 to {MOST_ROWS}, not {limit}")


def _chosen(memory: MemoryMap, limit: int) -> set[int]:
    everything = range(len(memory.buffers))
    if len(everything) <= limit:
        return set(everything)
    damaged = memory.damaged[:MOST_ROWS]
    by_size = sorted(everything, key=lambda index: -memory.buffers[index].nbytes)
    chosen = set(damaged)
    for index in (*_neighbours(damaged, len(everything)), *_named(memory, by_size), *by_size):
        if len(chosen) >= limit:
            break
        chosen.add(index)
    return chosen


def _neighbours(damaged: Iterable[int], count: int) -> Iterator[int]:
    for index in damaged:
        yield from (near for near in (index - 1, index + 1) if 0 <= near < count)


def _named(memory: MemoryMap, by_size: Iterable[int]) -> Iterator[int]:
    return (index for index in by_size if memory.buffers[index].names)


def runs(count: int, chosen: set[int]) -> list[tuple[int, int]]:
    """Runs ``[first, stop)`` of indices outside of `chosen`."""
    edges = [-1, *sorted(chosen), count]
    return [(one + 1, other) for one, other in pairwise(edges) if other - one > 1]


def _zoomed(damages: dict[int, tuple[MapDamage, ...]], chosen: set[int]) -> set[int]:
    """Ids of findings with a line of bytes: the first ones, at most a few for each buffer."""
    found = [
        damage.finding
        for index, of_buffer in damages.items()
        if index in chosen
        for damage in of_buffer[:_ZOOMS_PER_BUFFER]
    ]
    return set(sorted(found)[:_ZOOMS])


def _row(index: int, buffer: MapBuffer, damages: tuple[MapDamage, ...], zoomed: set[int]) -> Row:
    groups: dict[tuple[int, int, str], list[str]] = {}
    for alias in buffer.aliases:
        groups.setdefault((alias.start, alias.stop, alias.relation), []).append(alias.name)
    lines = [
        OwnerLine(tuple(sorted(names, key=lambda name: (len(name), name))), relation, start, stop)
        for (start, stop, relation), names in groups.items()
    ]
    lines.sort(key=lambda line: (line.start, -line.stop, line.relation))
    return Row(
        index=index,
        damages=damages,
        zooms=tuple(damage for damage in damages if damage.finding in zoomed),
        owners=tuple(lines[:_OWNERS_PER_BUFFER]),
        more_owners=len(lines[_OWNERS_PER_BUFFER:]),
    )
