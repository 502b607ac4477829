"""Facts of SG108, beside those of every finding. Pure data, no torch."""

from __future__ import annotations

import msgspec

from shadowgraph.checks.rebound import CODE
from shadowgraph.model.findings import Successor
from shadowgraph.model.kinds import TAG, Detail
from shadowgraph.model.redaction import OwnerPath


class ReboundDetail(Detail, msgspec.Struct, frozen=True, tag=CODE, tag_field=TAG):
    """Host code refreshes other memory than the graph reads.

    Attributes
    ----------
    attribute
        Path of the attribute that referred to the graph's memory at its capture.
    moved
        Whether the attribute refers to other memory now.
    now
        The memory that holds the values that the graph should read, if known.
    planned
        Whether a plan determines the values that the graph should read.
    """

    attribute: OwnerPath
    moved: bool
    now: Successor | None = None
    planned: bool = False
