"""What a user reads many of at once: plain tuples and lists, with a table of them in a notebook."""

from __future__ import annotations

from shadowgraph.display import Shown
from shadowgraph.findings import Finding
from shadowgraph.tracking.buffers import Buffer


class Findings(Shown, tuple[Finding, ...]):
    """Findings in order of arrival."""

    __slots__ = ()


class Buffers(Shown, tuple[Buffer, ...]):
    """Buffers in order of allocation."""

    __slots__ = ()
