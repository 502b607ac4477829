"""Facts of SG116, beside those of every finding. Pure data, no torch."""

from __future__ import annotations

import msgspec

from shadowgraph.checks.contents_lost import CODE
from shadowgraph.model.kinds import TAG, Detail
from shadowgraph.model.redaction import Kept
from shadowgraph.model.stacks import Stack


class ContentsLostDetail(Detail, msgspec.Struct, frozen=True, tag=CODE, tag_field=TAG):
    """What dropped the contents.

    Attributes
    ----------
    how
        ``torch_memory_saver pause("weights")``, ``vllm sleep(level=2)``, or ``declared``.
    stack
        Where, innermost first.
    compared
        Whether the first bytes were compared with those before the loss.
    """

    how: Kept[str]
    stack: Kept[Stack] = ()
    compared: bool = False
