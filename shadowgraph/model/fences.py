"""Fences: buffers behind which no memory is mapped, as records of a run."""

from __future__ import annotations

import os

import msgspec

from shadowgraph.common.words import plural
from shadowgraph.model.redaction import Kept, OwnerPath

LAID = "fence laid behind "  # how the line begins that a process tells when it has laid one
HIT = "fence: "  # and when an access is about to run into one


class Fence(msgspec.Struct, frozen=True):
    """The fence behind a buffer.

    Attributes
    ----------
    name
        The buffer's name, or its dtype, shape and line.
    file, line
        Where it was allocated.
    nbytes
        Its size.
    slack
        Bytes between its end and the unmapped memory, because of its alignment.
    """

    name: OwnerPath
    file: Kept[str]
    line: Kept[int]
    nbytes: Kept[int]
    slack: Kept[int]

    def sentence(self) -> str:
        """The fence, in words."""
        site = f"{os.path.basename(self.file)}:{self.line}"
        made = "" if site in self.name else f" from {site}"
        past = "its end" if not self.slack else f"{plural(self.slack, 'byte')} past its end"
        return f"{self.name} ({plural(self.nbytes, 'byte')}){made}: not mapped from {past} on"
