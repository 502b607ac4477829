"""Page geometry of the memory map: its columns in inches, and its colours."""

from __future__ import annotations

from shadowgraph.render.plots.pen import GREEN, GREY, SKY, YELLOW
from shadowgraph.views.scales import Columns, Span

WIDTH = 13.0
MARGIN = 0.3
LABELS: Span = (MARGIN, 3.8)
COLUMNS = Columns(head=(3.95, 4.65), payload=(4.65, 9.15), tail=(9.15, 10.35))
BARS: Span = (COLUMNS.head[0], COLUMNS.tail[1])
NOTES: Span = (10.5, WIDTH - MARGIN)
LEAST_DAMAGE = 0.035  # inches; wide enough to see at any scale

_ROLES = {"static": SKY, "pool": YELLOW, "foreign": GREEN}  # printed in grey, static and pool still differ from damage


def role_color(role: str) -> str:
    """Fill of a buffer's bar."""
    return _ROLES.get(role, GREY)
