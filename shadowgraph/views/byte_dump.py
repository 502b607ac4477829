"""Bytes of a buffer that a dump holds, the bytes that findings marked, and the bytes that are missing. Pure data.
Used by `shadowgraph hexdump`, by byte maps and by the byte tables of HTML pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from shadowgraph.dumps.reader import Dump
from shadowgraph.dumps.schema import PayloadRow, Why
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Finding
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.views.buffer_head import BufferHead, head_of
from shadowgraph.views.byte_rows import ROW, Ground

MOST = 4_096  # bytes shown by default
AROUND = 64  # bytes shown on either side of a finding's own
_WINDOW = 1_024  # most of a finding's own bytes, from its first on

# Sources of bytes, the most reliable last: a read by the dump overrides a mirror taken when a replay began.
_ORDER = (Why.SHADOW, Why.WINDOW, Why.WHOLE, Why.FINDING)


class Stretch(msgspec.Struct, frozen=True):
    """Bytes that the dump holds, at `offset` from the buffer's start; `why` they were dumped."""

    offset: int
    why: Why
    hex: str

    @property
    def data(self) -> bytes:
        return bytes.fromhex(self.hex)


class Missing(msgspec.Struct, frozen=True):
    """Bytes of the buffer that the dump does not hold."""

    offset: int
    nbytes: int
    reason: str


class Mark(msgspec.Struct, frozen=True):
    """Bytes that a finding marks, as pairs inclusive of the last, and their values as the finding saw them.

    Attributes
    ----------
    window, expected, found
        Hexadecimal bytes as the finding saw them, from offset `window` on; guards are armed again afterwards. Empty
        where the finding kept none.
    """

    finding: int
    code: str
    ranges: tuple[tuple[int, int], ...]
    ranges_total: int
    window: int = 0
    expected: str = ""
    found: str = ""


class DumpedBuffer(BufferHead, frozen=True):
    """A buffer and its bytes.

    Attributes
    ----------
    first, stop
        The requested range, from the buffer's start; negative in the guard before it.
    stretches
        Held bytes of the range, in order, without overlaps.
    more
        Number of held bytes outside the requested ranges.
    """

    head_guard: int
    tail_guard: int
    gap: int
    fence: int
    first: int
    stop: int
    stretches: tuple[Stretch, ...]
    missing: tuple[Missing, ...]
    marks: tuple[Mark, ...]
    more: int = 0

    def ground(self, offset: int) -> Ground:
        """The memory that a byte belongs to, as far as this buffer knows."""
        if 0 <= offset < self.nbytes:
            return Ground.OWN
        tail = self.nbytes + self.gap
        guarded = -self.head_guard <= offset < 0 or tail <= offset < tail + self.tail_guard
        return Ground.GUARD if guarded else Ground.FREE


def dumped_buffer(
    dump: Dump, buffer: Buffer, name: str, around: Finding | None, start: int | None, count: int | None
) -> DumpedBuffer:
    """The bytes of a buffer that a dump holds.

    Parameters
    ----------
    around
        Show the bytes around this finding.
    start, count
        Show `count` bytes from `start` on. By default all held bytes, up to `MOST`: the bytes around findings first.
    """
    about = _findings_on(dump, buffer)
    rows = _payloads_of(dump, buffer)
    held = RangeSet.of(ByteRange(row.offset, row.offset + row.nbytes) for row in rows)
    asked = around is not None or start is not None or count is not None
    wanted = RangeSet.of([_asked(buffer, around, start, count)]) if asked else _unasked(buffer, held, about)
    first, stop = _extent(wanted, buffer)
    return DumpedBuffer(
        **head_of(dump, buffer, name),
        head_guard=buffer.head_guard,
        tail_guard=buffer.tail_guard,
        gap=buffer.gap,
        fence=buffer.fence,
        first=first,
        stop=stop,
        stretches=tuple(_stretches(dump, rows, wanted)),
        missing=tuple(_missing(dump, buffer, held, ByteRange(first, stop) if asked else _all_of(buffer))),
        marks=tuple(_mark(finding) for finding in about if _within(finding, first, stop)),
        more=held.nbytes - sum(part.nbytes for span in wanted for part in held.intersection(span)),
    )


def _findings_on(dump: Dump, buffer: Buffer) -> list[Finding]:
    """Findings and notes about bytes of a buffer."""
    facts = dump.manifest.facts
    return [f for f in (*facts.damage, *facts.notes) if f.buffer.serial == buffer.serial and f.bytes is not None]


def _payloads_of(dump: Dump, buffer: Buffer) -> list[PayloadRow]:
    """The payloads with bytes of a buffer, the most reliable last."""
    rows = [row for row in dump.manifest.payloads if row.buffer == buffer.serial and row.nbytes]
    return sorted(rows, key=lambda row: _ORDER.index(row.why))


def _all_of(buffer: Buffer) -> ByteRange:
    """A buffer's bytes, counted from its start."""
    return ByteRange(0, buffer.nbytes)


def _asked(buffer: Buffer, around: Finding | None, start: int | None, count: int | None) -> ByteRange:
    if around is not None and around.bytes is not None:
        low = (around.bytes.first - AROUND) // ROW * ROW
        return ByteRange(low, min(-(-(around.bytes.last + 1 + AROUND) // ROW) * ROW, low + MOST))
    first = start or 0
    length = count if count is not None else max(0, min(buffer.nbytes - first, MOST))
    return ByteRange(first, first + length)


def _unasked(buffer: Buffer, held: RangeSet, about: Iterable[Finding]) -> RangeSet:
    """The held bytes around findings, then the buffer's own from its start on, up to the limit."""
    chosen, room = RangeSet(), MOST
    near = [_asked(buffer, finding, None, None) for finding in about]
    for span in (*near, _all_of(buffer)):
        for part in held.intersection(span):
            for fresh in RangeSet.of([part]) - chosen:
                taken = ByteRange(fresh.start, fresh.start + min(fresh.nbytes, room))
                chosen.add(taken)
                room -= taken.nbytes
    for span in near:  # a finding keeps bytes of its own where the dump holds none
        chosen.add(span)
    return chosen


def _extent(wanted: RangeSet, buffer: Buffer) -> tuple[int, int]:
    spans = list(wanted)
    return (spans[0].start, spans[-1].stop) if spans else (0, min(buffer.nbytes, MOST))


def _stretches(dump: Dump, rows: Sequence[PayloadRow], wanted: RangeSet) -> Iterable[Stretch]:
    """The most reliable bytes of each place: later rows override earlier ones."""
    taken, found = RangeSet(), []
    for row in reversed(rows):
        span = ByteRange(row.offset, row.offset + row.nbytes)
        fresh = [part for each in wanted.intersection(span) for part in RangeSet.of([each]) - taken]
        if fresh:
            data = dump.payload(row)
            found += [Stretch(p.start, row.why, data[p.start - span.start : p.stop - span.start].hex()) for p in fresh]
            taken.add(span)
    return sorted(found, key=lambda stretch: stretch.offset)


def _missing(dump: Dump, buffer: Buffer, held: RangeSet, asked: ByteRange) -> Iterable[Missing]:
    own = RangeSet.of([_all_of(buffer)])
    for gap in own - held:
        part = gap.intersect(asked)
        if part is not None:
            yield Missing(part.start, part.nbytes, _reason(dump, buffer))


def _reason(dump: Dump, buffer: Buffer) -> str:
    unread = next((row.reason for row in dump.manifest.unread if row.buffer == buffer.serial), None)
    if dump.manifest.redacted:
        return "left out: redacted"
    if unread is not None:
        return f"could not be read: {unread}"
    return "left out: the buffer was large, or the dump full" if buffer.alive else "freed before the dump was made"


def _within(finding: Finding, first: int, stop: int) -> bool:
    return finding.bytes is not None and finding.bytes.first < stop and first <= finding.bytes.last


def _mark(finding: Finding) -> Mark:
    facts, window = finding.bytes, finding.window
    assert facts is not None
    ranges = facts.ranges or ((facts.first, facts.last),)
    if window is None:
        return Mark(finding.id, finding.code, ranges, facts.ranges_total)
    return Mark(
        finding.id,
        finding.code,
        ranges,
        facts.ranges_total,
        window.offset,
        window.expected[: 2 * _WINDOW],
        window.found[: 2 * _WINDOW],
    )
