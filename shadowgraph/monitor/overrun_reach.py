"""How far an overrun went: its extent in bytes, and the buffers that it ran over or reached.

From broken guards, from the stores of its launch where they are known, and from consequences that show which bytes of a
neighbour changed. Used by `OverrunChain`, under the debugger's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from shadowgraph.checks.out_of_bounds.facts import OverrunDetail, overrun_of
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Finding
from shadowgraph.model.guards import Side
from shadowgraph.model.overrun_extents import Reached
from shadowgraph.model.ranges import ByteRange
from shadowgraph.monitor.broken_guards import BrokenGuard, BrokenGuards
from shadowgraph.monitor.overrun_origins import is_confirmed

LISTED = 16  # buffers listed by a finding

NameOf = Callable[[Buffer], str]


def detail_of(guards: BrokenGuards, known: BrokenGuard, finding: Finding, name_of: NameOf) -> OverrunDetail:
    """The facts of an overrun's finding with its present extent and the buffers that it reached."""
    parts: dict[int, list[BrokenGuard]] = {}
    for each in guards:
        if each.origin == known.id:
            parts.setdefault(each.buffer.serial, []).append(each)
    _pass(guards, known, [*parts.values()])
    passed = {serial: buffer for serial, buffer in known.passed.items() if serial not in parts}
    met = [_reached(guards, known, sides) for sides in parts.values()]
    met += [_passed(known, buffer, finding, name_of) for buffer in passed.values()]
    order = sorted((one for one in met if one is not None), key=lambda one: one.beyond)
    chosen = order if len(order) <= LISTED else [*order[: LISTED - 1], order[-1]]
    return msgspec.structs.replace(
        overrun_of(finding),
        reaches=tuple(chosen),
        reaches_total=len(order),
        extent_nbytes=max((_span(guards, known), *(one.beyond for one in order))),
    )


def hits(known: BrokenGuard, buffer: Buffer) -> ByteRange | None:
    """The extreme bytes of a buffer that an overrun's stores, or its consequences, show to be overwritten."""
    stored = known.stores.intersection(buffer.range)
    shown = [*stored, *filter(None, [known.changed.get(buffer.serial)])]
    return ByteRange(min(s.start for s in shown), max(s.stop for s in shown)) if shown else None


def _beyond(known: BrokenGuard, where: ByteRange) -> int:
    """Bytes from the edge that was overrun to the furthest of some bytes."""
    return max(0, where.stop - known.edge if known.side is Side.AFTER else known.edge - where.start)


def _span(guards: BrokenGuards, known: BrokenGuard) -> int:
    """Bytes from the edge to the furthest byte that the damage next to the buffer, or known stores, show."""
    own = guards.damage(known)
    return max((_beyond(known, where) for where in (*known.stores, *([own] if own is not None else []))), default=0)


def _pass(guards: BrokenGuards, known: BrokenGuard, parts: Iterable[list[BrokenGuard]]) -> None:
    """Note the buffers without broken guards that the overrun passed: those which its stores hit, and those without
    guards that lie before the furthest broken one."""
    ledger = guards.ledger
    for where in known.stores:
        known.passed |= {b.serial: b for b in ledger.overlapping(where.start, where.stop) if b is not known.buffer}
    furthest = max(parts, key=lambda sides: abs(sides[0].buffer.start - known.buffer.start), default=None)
    if furthest is None:
        return
    here, there = sorted((known.buffer, furthest[0].buffer), key=lambda buffer: buffer.start)
    between = ledger.overlapping(here.stop, there.start) if here.stop < there.start else []
    known.passed |= {b.serial: b for b in between if not (b.head_guard or b.tail_guard)}


def _reached(guards: BrokenGuards, known: BrokenGuard, sides: list[BrokenGuard]) -> Reached | None:
    """The entry of a reached buffer, with one or both guards broken."""
    far = next((each for each in sides if each.side is known.side), None)
    told, buffer = guards.finding(far or sides[0]), sides[0].buffer
    parts = [part for each in sides if (part := guards.damage(each)) is not None]
    if told is None or not parts:
        return None
    hit = hits(known, buffer)
    about = told.buffer
    return Reached(
        name=about.name,
        serial=about.serial,
        nbytes=about.nbytes,
        dtype=about.dtype,
        shape=about.shape,
        over=far is not None,
        beyond=max(_beyond(known, part) for part in (*parts, *([hit] if hit is not None else []))),
        phase=told.phase,
        graph=told.graph,
        replay=told.replay,
        late=told.confidence == "low",
        overwritten=_overwritten(known, buffer, far is not None),
        sure=all(is_confirmed(guards.finding(each)) for each in sides),
    )


def _passed(known: BrokenGuard, buffer: Buffer, finding: Finding, name_of: NameOf) -> Reached:
    """The entry of a buffer that shows no broken guard."""
    return Reached(
        name=name_of(buffer),
        serial=buffer.serial,
        nbytes=buffer.nbytes,
        dtype=buffer.dtype,
        shape=buffer.shape,
        over=not known.stores and buffer.serial not in known.changed,
        beyond=_beyond(known, hits(known, buffer) or buffer.range),
        phase=finding.phase,
        graph=finding.graph,
        replay=finding.replay,
        late=finding.confidence == "low",
        overwritten=_overwritten(known, buffer, True),
        sure=is_confirmed(finding),
    )


def _overwritten(known: BrokenGuard, buffer: Buffer, over: bool) -> int | None:
    """How many bytes of a buffer the overrun is known to have written."""
    stored = sum(part.nbytes for part in known.stores.intersection(buffer.range))
    if stored or known.stores:
        return stored
    if over:
        return buffer.nbytes
    changed = known.changed.get(buffer.serial)
    return changed.nbytes if changed is not None else None
