"""Selection of the memory to dump, most useful first, within a size limit. Reads no memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from shadowgraph.dumps.schema import MOST_PAYLOADS, LeftOut, Why
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.findings import Finding
from shadowgraph.model.ranges import ByteRange
from shadowgraph.tracking.foreign import hold

AROUND = 256  # bytes on either side of a finding's bytes
_FINDING_MOST = 64 << 10
_END = 4096  # bytes at either end of a large buffer


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one buffer, or of its guards, to read."""

    where: ByteRange
    buffer: Buffer
    why: Why


@dataclass(slots=True)
class Plan:
    """The selected pieces.

    Attributes
    ----------
    pieces
        In order of usefulness.
    gone
        Pieces whose memory no longer exists.
    held
        References that keep the memory of all pieces allocated; drop them after reading.
    left_out
        Pieces that did not fit.
    """

    pieces: list[Piece] = field(default_factory=list)
    gone: list[Piece] = field(default_factory=list)
    held: list[object] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)


def plan_of(findings: Iterable[Finding], live: Iterable[Buffer], whole: int, budget: int) -> Plan:
    """Choose the pieces to read.

    Parameters
    ----------
    whole
        Size in bytes of the largest buffer that is read in full.
    budget
        Largest number of bytes in all.
    """
    live = list(live)
    plan = Plan()
    over: dict[Why, list[int]] = {}
    held: dict[int, object | None] = {}
    left = budget
    for piece in _wanted(findings, live, whole):
        serial = piece.buffer.serial
        if serial not in held:
            held[serial] = hold(piece.buffer)
        if held[serial] is None:
            plan.gone.append(piece)
        elif piece.where.nbytes > left or len(plan.pieces) >= MOST_PAYLOADS:
            over.setdefault(piece.why, []).append(piece.where.nbytes)
        else:
            left -= piece.where.nbytes
            plan.pieces.append(piece)
    plan.held = [reference for reference in held.values() if reference is not None]
    plan.left_out = [LeftOut(WORDS[why], len(sizes), sum(sizes), "for size") for why, sizes in over.items()]
    return plan


WORDS = {
    Why.FINDING: "windows around findings",
    Why.SHADOW: "mirrored values",
    Why.WHOLE: "small buffers",
    Why.WINDOW: "ends of large buffers",
}


def _wanted(findings: Iterable[Finding], live: list[Buffer], whole: int) -> Iterator[Piece]:
    yield from _windows(findings, live)
    # Index arithmetic goes wrong in integers, so they come before values; statics before a graph's temporaries.
    ranked = sorted((b for b in live if b.nbytes), key=lambda b: ("int" not in b.dtype, b.role is Role.POOL))
    for buffer in ranked:
        if buffer.nbytes <= whole:
            yield Piece(buffer.range, buffer, Why.WHOLE)
    for buffer in ranked:
        if buffer.nbytes > whole:
            end = min(_END, buffer.nbytes // 2)
            yield Piece(ByteRange(buffer.start, buffer.start + end), buffer, Why.WINDOW)
            yield Piece(ByteRange(buffer.stop - end, buffer.stop), buffer, Why.WINDOW)


def _windows(findings: Iterable[Finding], live: list[Buffer]) -> Iterator[Piece]:
    """The bytes around those of findings about live buffers."""
    by_serial = {buffer.serial: buffer for buffer in live}
    for finding in findings:
        buffer = by_serial.get(finding.buffer.serial)
        where = _around(finding, buffer) if buffer is not None else None
        if buffer is not None and where is not None:
            yield Piece(where, buffer, Why.FINDING)


def _around(finding: Finding, buffer: Buffer) -> ByteRange | None:
    """The bytes around a finding's, clipped to the buffer and its guards."""
    if finding.bytes is None:
        return None
    base = finding.buffer.address
    first = max(base + finding.bytes.first - AROUND, buffer.start - buffer.head_guard)
    last = min(base + finding.bytes.last + AROUND, buffer.guard_start + buffer.tail_guard - 1)
    return ByteRange(first, min(last + 1, first + _FINDING_MOST)) if first <= last else None
