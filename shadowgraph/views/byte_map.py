"""Data of a byte map: rows of bytes around a finding, with the owner, the found and the expected value of each byte.
Drawn by `shadowgraph.render.plots.byte_map`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec import structs

from shadowgraph.common.errors import UsageError
from shadowgraph.common.words import form
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Finding
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.views.byte_dump import DumpedBuffer, Mark, dumped_buffer
from shadowgraph.views.byte_rows import ROW, ByteCell, ByteRow, Fate, Ground, places_of
from shadowgraph.views.byte_values import decoded_runs
from shadowgraph.views.dumped_rows import held_bytes, seen_bytes
from shadowgraph.views.source import Source, Watched, source_of

_LISTED = 16  # ranges that a finding lists


@dataclass(frozen=True, slots=True)
class ByteFold:
    """Rows ``[offset, stop)`` that are not drawn, with `changed` changed bytes."""

    offset: int
    stop: int
    changed: int


@dataclass(frozen=True, slots=True)
class ByteEdge:
    """A boundary of a buffer, guard or owner, before the byte at `offset`."""

    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class ByteMap:
    """Bytes of one buffer and around it.

    Attributes
    ----------
    findings
        Ids and codes of the findings on these bytes.
    missing
        Number of shown bytes with an unknown value.
    """

    name: str
    form: str
    address: int
    nbytes: int
    dtype: str
    rows: tuple[ByteRow, ...]
    edges: tuple[ByteEdge, ...]
    findings: tuple[tuple[int, str], ...] = ()
    missing: int = 0

    @classmethod
    def of(cls, watched: Watched, *, finding: int | None = None, buffer: str | None = None) -> ByteMap:
        """The bytes around a finding of a debugger or of an open dump. Owned data.

        Parameters
        ----------
        finding
            Its id; when None, the first finding on bytes (of `buffer`, if given).
        buffer
            A buffer to show where no finding is on its bytes: an owner name, the end of an owner name, or an address.

        Raises
        ------
        UsageError
            For a finding that does not exist or has no bytes; without any finding, when no buffer is named.
        UnknownBufferError
            For an unknown buffer.
        """
        source = source_of(watched, contents=True)
        return made_of(*shown_bytes(source, finding, buffer), source)


def shown_bytes(source: Source, finding: int | None, buffer: str | None) -> tuple[DumpedBuffer, Buffer]:
    """The held bytes for `ByteMap.of`; raises the same errors."""
    home = source.buffers(buffer)[-1] if buffer is not None else None
    around = _around(source, finding, home)
    if home is None and around is not None:
        home = _home(source, around)
    if home is None:
        raise UsageError("no finding is about bytes of a buffer that is known; name a buffer")
    shown = dumped_buffer(source.dump, home, source.book.name(home), around, None, None)
    if around is not None:  # another finding may have seen other values in the same place
        shown = structs.replace(shown, marks=tuple(mark for mark in shown.marks if mark.finding == around.id))
    return shown, home


def _around(source: Source, number: int | None, home: Buffer | None) -> Finding | None:
    if number is not None:
        finding = source.finding(number)
        if finding.bytes is None:
            raise UsageError(f"finding #{number} ({finding.code}) is about no bytes of its own")
        if home is not None and finding.buffer.serial != home.serial:
            raise UsageError(f"finding #{number} is about {finding.buffer.name}, not about {source.book.name(home)}")
        return finding
    about = (f for f in source.findings if f.bytes is not None)
    return next((f for f in about if home is None or f.buffer.serial == home.serial), None)


def _home(source: Source, finding: Finding) -> Buffer | None:
    serial = finding.buffer.serial
    return next((b for b in (*source.dump.buffers, *source.dump.freed) if b.serial == serial), None)


def made_of(shown: DumpedBuffer, home: Buffer, source: Source) -> ByteMap:
    """The byte map of a dumped buffer."""
    near = _neighbours(source, home, home.start + shown.first, home.start + shown.stop)
    grounds = RangeSet.of(ByteRange(b.start - home.start, b.stop - home.start) for b in near if b.nbytes)
    cells = _Cells(shown, grounds)
    first, stop = shown.first // ROW * ROW, -(-shown.stop // ROW) * ROW
    rows = tuple(_row(cells, offset, shown.dtype) for offset in range(first, stop, ROW))
    return ByteMap(
        shown.name,
        form(shown.dtype, shown.shape),
        shown.address,
        shown.nbytes,
        shown.dtype,
        rows,
        tuple(_edges(shown, source, home, near, first, stop)),
        tuple((mark.finding, mark.code) for mark in shown.marks),
        sum(cell.value is None for row in rows for cell in row.cells if cell.ground is not Ground.FREE),
    )


def _neighbours(source: Source, home: Buffer, start: int, stop: int) -> list[Buffer]:
    """The other buffers in a range of addresses."""
    near = [buffer for buffer in source.dump.buffers if buffer.start < stop and start < buffer.stop]
    return [buffer for buffer in near if buffer.serial != home.serial]


class _Cells:
    """Values and fates of all bytes, merged from the dump and the findings, which saw them at the right moment."""

    def __init__(self, shown: DumpedBuffer, others: RangeSet) -> None:
        self._shown, self._others = shown, others
        self._values = held_bytes(shown)
        self._expected: dict[int, int] = {}
        self._changed: set[int] = set()
        for mark in shown.marks:
            self._changed |= _in_ranges(mark, shown.first, shown.stop)
            for at, (found, expected) in seen_bytes(mark).items():
                if shown.first <= at < shown.stop and (at in self._changed or at not in self._expected):
                    self._values[at], self._expected[at] = found, expected
        self._within = [(mark.ranges[0][0], mark.ranges[-1][1]) for mark in shown.marks]

    def cell(self, offset: int) -> ByteCell:
        ground, fate = self._ground(offset), self._fate(offset)
        value, expected = self._values.get(offset), self._expected.get(offset)
        if fate is Fate.CHANGED and expected is None and ground is Ground.GUARD:
            value = None  # the guard was armed again since
        return ByteCell(offset, value, expected, ground, fate)

    def _ground(self, offset: int) -> Ground:
        own = self._shown.ground(offset)
        return Ground.OTHER if own is not Ground.OWN and offset in self._others else own

    def _fate(self, offset: int) -> Fate:
        if offset in self._changed:
            return Fate.CHANGED
        return Fate.AS_WAS if any(first <= offset <= last for first, last in self._within) else Fate.APART


def _in_ranges(mark: Mark, start: int, stop: int) -> set[int]:
    """The bytes between two offsets that a finding names: of SG108 whole elements, of which some bytes may be equal."""
    named = {at for first, last in mark.ranges for at in range(max(first, start), min(last + 1, stop))}
    if mark.ranges_total > _LISTED:  # only the outermost bounds of the others are known
        named -= {at for at, (found, expected) in seen_bytes(mark).items() if found == expected}
    return named


def _row(cells: _Cells, offset: int, dtype: str) -> ByteRow:
    made = tuple(cells.cell(at) for at in places_of(offset))
    changed = any(cell.changed for cell in made)
    grounds = {cell.ground for cell in made}
    canary = grounds == {Ground.GUARD} and not changed
    return ByteRow(
        offset,
        made,
        "" if canary else _decoded([cell.value for cell in made], dtype, offset),
        _decoded([cell.expected for cell in made], dtype, offset) if changed and grounds == {Ground.OWN} else "",
    )


def _decoded(row: Sequence[int | None], dtype: str, offset: int) -> str:
    """The values of a row, empty where a byte of the row is missing."""
    return "" if None in row else decoded_runs(row, dtype, offset)


def _edges(
    shown: DumpedBuffer, source: Source, home: Buffer, near: Sequence[Buffer], first: int, stop: int
) -> Iterator[ByteEdge]:
    """Boundaries of the buffer, its guards, its owners and other buffers inside the shown range."""
    edges = [ByteEdge(0, f"{shown.name} begins"), ByteEdge(shown.nbytes, f"{shown.name} ends"), *_guard_edges(shown)]
    owners = [(o.path, o.view.start, o.view.stop) for o in source.book.owners(home) if o.path != shown.name]
    owners += [(source.book.name(buffer), buffer.start, buffer.stop) for buffer in near]
    for name, low, high in owners:
        edges += [ByteEdge(low - home.start, f"{name} begins"), ByteEdge(high - home.start, f"{name} ends")]
    yield from sorted((e for e in edges if first < e.offset < stop or e.offset == 0 == first), key=lambda e: e.offset)


def _guard_edges(shown: DumpedBuffer) -> Iterator[ByteEdge]:
    """Boundaries of the guards, except where the buffer itself begins or ends."""
    tail = shown.nbytes + shown.gap
    if shown.head_guard:
        yield ByteEdge(-shown.head_guard, "guard begins")
    if shown.tail_guard:
        if shown.gap:
            yield ByteEdge(tail, "guard begins")
        yield ByteEdge(tail + shown.tail_guard, "guard ends")


def folded(rows: Sequence[ByteRow], limit: int) -> list[ByteRow | ByteFold]:
    """At most about `limit` rows: rows at the ends of changed stretches first, then their neighbours."""
    if len(rows) <= limit:
        return list(rows)
    kept = _kept(rows, limit)
    found: list[ByteRow | ByteFold] = []
    place = 0
    while place < len(rows):
        end = place
        while end < len(rows) and end not in kept:
            end += 1
        if end - place > 1:
            count = sum(cell.changed for row in rows[place:end] for cell in row.cells)
            found.append(ByteFold(rows[place].offset, rows[end - 1].offset + ROW, count))
            place = end
        else:
            found.append(rows[place])
            place += 1
    return found


def _kept(rows: Sequence[ByteRow], limit: int) -> set[int]:
    """The places of the `limit` rows that are nearest to an end of a changed stretch."""
    changed = [row.changed for row in rows]
    turns = [
        p for p in range(len(rows)) if changed[p] and not (0 < p < len(rows) - 1 and changed[p - 1] and changed[p + 1])
    ]
    far = {place: min((abs(place - turn) for turn in turns), default=place) for place in range(len(rows))}
    return set(sorted(far, key=lambda place: (far[place], place))[:limit])
