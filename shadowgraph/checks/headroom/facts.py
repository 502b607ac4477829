"""Facts of SG113, beside those of every finding. Pure data, no torch."""

from __future__ import annotations

import msgspec

from shadowgraph.checks.headroom import CODE
from shadowgraph.model.high_water import Forecast
from shadowgraph.model.kinds import TAG, Detail
from shadowgraph.model.redaction import Kept


class HeadroomDetail(Detail, msgspec.Struct, frozen=True, tag=CODE, tag_field=TAG):
    """A buffer that will overflow.

    Attributes
    ----------
    used, capacity
        Entries in use when it was reported, and entries that there are.
    by_row
        Whether both count within one row.
    row
        Number of the row of the buffer that it is about, where the buffer's name does not say so.
    forecast
        When it will overflow, and the points that say so.
    """

    used: Kept[int]
    capacity: Kept[int]
    by_row: bool
    forecast: Forecast
    row: Kept[int | None] = None
