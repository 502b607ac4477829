"""Facts of SG101, beside those of every finding. Pure data, no torch."""

from __future__ import annotations

import msgspec

from shadowgraph.checks.out_of_bounds import CODE
from shadowgraph.model.findings import Finding
from shadowgraph.model.kinds import TAG, Detail
from shadowgraph.model.overrun_extents import Reached
from shadowgraph.model.redaction import Kept


class RowOverrun(msgspec.Struct, frozen=True):
    """A row whose Triton programs wrote past its end.

    Attributes
    ----------
    written_past, lost
        Elements written past the row's declared width, and how many of them another row's program wrote too, with
        another value: the order of the programs decides which of the two is lost.
    into
        Rows that were hit; the table's number of rows stands for "past the end".
    rows
        The table's number of rows.
    """

    row: Kept[int]
    width: Kept[int]
    written_past: Kept[int]
    lost: Kept[int]
    into: Kept[tuple[int, ...]]
    rows: Kept[int]


class OverrunDetail(Detail, msgspec.Struct, frozen=True, tag=CODE, tag_field=TAG):
    """How far an overrun went.

    Attributes
    ----------
    rows
        Rows of a table that were written past.
    reaches, reaches_total
        Up to 16 buffers that it reached, the nearest and the furthest in this order, and the total.
    grown
        Whether a later sighting reached further than the first one, whose phase and replay the finding has.
    extent_nbytes
        Bytes from the buffer's end, or start, to the furthest byte that the overrun is known to have written, in
        whatever buffer; 0 for a finding inside a buffer.
    """

    rows: tuple[RowOverrun, ...] = ()
    reaches: tuple[Reached, ...] = ()
    reaches_total: Kept[int] = 0
    grown: bool = False
    extent_nbytes: Kept[int] = 0

    @property
    def furthest(self) -> int:
        """The extent; of a record of an older version, up to the furthest buffer that it reached."""
        return max((self.extent_nbytes, *(reached.beyond for reached in self.reaches)))


def overrun_of(finding: Finding) -> OverrunDetail:
    """The facts of a finding of this kind."""
    return finding.detail if isinstance(finding.detail, OverrunDetail) else OverrunDetail()
