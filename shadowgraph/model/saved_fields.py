"""Marks on the fields of records that stand in dumps, read by `shadowgraph.dumps.rows`.

A field without a mark stands in a dump as it is; a `shadowgraph.model.stacks.Stack` is kept once without one. A field
that a record gets later has a default, so that older dumps are read: a text or a stack is `Sparse` or may be None.
Types only: a mark costs a live record nothing.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Annotated, TypeVar

T = TypeVar("T")


class Mark(Enum):
    """What a dump does with a field."""

    TEXT = auto()
    ABSENT = auto()
    PLACE = auto()
    SPARSE = auto()


Text = Annotated[str, Mark.TEXT]  # kept once: many records have the same one
Absent = Annotated[T, Mark.ABSENT]  # not kept: a matter of the running process. Read back as the default
Place = Annotated[int, Mark.PLACE]  # not kept: the record's place among its siblings
Sparse = Annotated[T, Mark.SPARSE]  # a text or a stack that few records have: null where it is empty
