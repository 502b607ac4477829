"""Facts of SG108, beside those of every finding. Pure data, no torch."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from shadowgraph.checks.rebound import CODE
from shadowgraph.model.findings import Successor
from shadowgraph.model.kinds import TAG, Detail
from shadowgraph.model.redaction import Kept, OwnerPath


class Evidence(StrEnum):
    """How it is known that host code refreshes other memory in place of the graph's."""

    DECLARED = "declared"  # by the user or an adapter
    NAME = "name"  # the code that was captured took its input by a name that leads elsewhere now
    COPY = "copy"  # one memory was filled from the other before the capture
    WINDOW = "window"  # both are parts of one buffer, of the same form


class ReboundDetail(Detail, msgspec.Struct, frozen=True, tag=CODE, tag_field=TAG):
    """Host code refreshes other memory than the graph reads.

    Attributes
    ----------
    attribute
        Path of the attribute that referred to the graph's memory at its capture; empty where none is known.
    moved
        Whether the attribute refers to other memory now.
    now
        The memory that holds the values that the graph should read, if known.
    planned
        Whether a plan determines the values that the graph should read.
    evidence
        How the other memory is known to be meant.
    refreshes
        With nothing declared: how many refreshes of the other memory were seen that the graph's memory did not get.
    lags
        Whether it was copied from the other memory at other times: it follows in some steps only, as a target network
        does.
    """

    attribute: OwnerPath
    moved: bool
    now: Successor | None = None
    planned: bool = False
    evidence: Evidence = Evidence.DECLARED
    refreshes: Kept[int] = 0
    lags: bool = False
