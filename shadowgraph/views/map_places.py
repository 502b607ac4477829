"""Position of damage relative to its buffer, as short text for labels and lines."""

from __future__ import annotations

from shadowgraph.common.words import plural
from shadowgraph.views.memory_map import MapBuffer, MapDamage


def reach(damage: MapDamage, buffer: MapBuffer) -> str:
    """Extent of damage in few characters: ``-8 B`` before the start, ``+24 B`` past the end, else the bytes inside."""
    if not damage.located:
        return "whole buffer"
    before, after = buffer.start - damage.first, damage.last + 1 - buffer.stop
    parts = [f"-{before:,} B"] if before > 0 else []
    parts += [f"+{after:,} B"] if after > 0 else []
    more = " or more" if damage.truncated else ""
    return (" to ".join(parts) or f"{damage.count or damage.last - damage.first + 1:,} B inside") + more


def where(damage: MapDamage, buffer: MapBuffer) -> str:
    """`reach` with the edge from which it counts."""
    if not damage.located:
        return "the whole buffer"
    before, after = damage.first < buffer.start, damage.last >= buffer.stop
    if before and after:
        return reach(damage, buffer)
    edge = " before the start" if before else " past the end" if after else ""
    return f"{reach(damage, buffer)}{edge}"


def by(damage: MapDamage) -> str:
    """The culprit of damage, to be put behind its place or behind its buffer; empty where none is known."""
    if not damage.culprit:
        return ""
    return f" by {damage.culprit}" if damage.located else f", {damage.touched} {damage.culprit}"


def changed(damage: MapDamage, buffer: MapBuffer) -> str:
    """The changed bytes, as offsets from the buffer's start."""
    if not damage.located:
        return "concerns the whole buffer"
    first, last = damage.first - buffer.start, damage.last - buffer.start
    some = f"{plural(damage.count, 'byte')} of " if damage.count else ""
    return f"{some}{first:+,} to {last:+,}"
