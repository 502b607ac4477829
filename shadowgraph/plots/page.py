"""The memory map's page: its columns in inches, its colours, and how it writes sizes and places."""

from __future__ import annotations

from shadowgraph.plots.model import MapBuffer, MapDamage
from shadowgraph.plots.pen import GREEN, GREY, SKY, YELLOW
from shadowgraph.plots.scales import Columns, Span

WIDTH = 13.0
MARGIN = 0.3
LABELS: Span = (MARGIN, 3.8)
COLUMNS = Columns(head=(3.95, 4.65), payload=(4.65, 9.15), tail=(9.15, 10.35))
BARS: Span = (COLUMNS.head[0], COLUMNS.tail[1])
NOTES: Span = (10.5, WIDTH - MARGIN)
LEAST_DAMAGE = 0.035  # inches; wide enough to be seen whatever the scale

_ROLES = {"static": SKY, "pool": YELLOW, "foreign": GREEN}  # in grey, the common two differ from damage
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def role_color(role: str) -> str:
    """Fill of a buffer's bar."""
    return _ROLES.get(role, GREY)


def size(nbytes: int) -> str:
    """``864 B``, ``3.1 MiB``: exact below 1 KiB, else with two to four digits."""
    amount, unit = float(nbytes), 0
    while amount >= 1023.95 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    text = f"{amount:.1f}".removesuffix(".0") if unit and amount < 999.95 else f"{amount:.0f}"
    return f"{text} {_UNITS[unit]}"


def count(number: int, noun: str) -> str:
    """``1 buffer``, ``5,000 buffers``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def reach(damage: MapDamage, buffer: MapBuffer) -> str:
    """How far damage goes in few characters: ``-8 B`` before the start, ``+24 B`` past the end, else what is inside."""
    if not damage.located:
        return "whole buffer"
    before, after = buffer.start - damage.first, damage.last + 1 - buffer.stop
    parts = [f"-{before:,} B"] if before > 0 else []
    parts += [f"+{after:,} B"] if after > 0 else []
    more = " or more" if damage.truncated else ""
    return (" to ".join(parts) or f"{damage.count or damage.last - damage.first + 1:,} B inside") + more


def where(damage: MapDamage, buffer: MapBuffer) -> str:
    """`reach` with the edge that it counts from."""
    if not damage.located:
        return "no bytes of its own"
    before, after = damage.first < buffer.start, damage.last >= buffer.stop
    if before and after:
        return reach(damage, buffer)
    edge = " before the start" if before else " past the end" if after else ""
    return f"{reach(damage, buffer)}{edge}"


def changed(damage: MapDamage, buffer: MapBuffer) -> str:
    """Which bytes changed, as offsets from the buffer's start."""
    if not damage.located:
        return "concerns the whole buffer"
    first, last = damage.first - buffer.start, damage.last - buffer.start
    some = f"{count(damage.count, 'byte')} of " if damage.count else ""
    return f"{some}{first:+,} to {last:+,}"
