"""Steps of pieces, as plain data: several graphs that are replayed one after the other in each step, with eager code
between them."""

from __future__ import annotations

import msgspec

from shadowgraph.model.redaction import Kept


class StepFacts(msgspec.Struct, frozen=True):
    """The step in which bytes changed, and which of its pieces may have changed them.

    Attributes
    ----------
    number
        Number of the step: of the replay of its first piece.
    first, last, pieces
        Graphs of its first and its last piece, and number of its pieces.
    since, until
        Places, from 1, of the first and the last piece that may have done it: one of these pieces, or the code between
        or after them. Equal for a replay of one piece. In phase ``between`` the two pieces around the code; in phase
        ``prepare`` both are 1.
    """

    number: Kept[int]
    first: Kept[str]
    last: Kept[str]
    pieces: Kept[int]
    since: Kept[int]
    until: Kept[int]

    @property
    def name(self) -> str:
        """``step 45 of graph#3 to graph#14``."""
        return f"step {self.number} of {self.first} to {self.last}"
