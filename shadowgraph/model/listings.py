"""Sequences of findings and buffers for users: plain tuples that a notebook shows as a table."""

from __future__ import annotations

from shadowgraph.common.html_repr import HtmlRepr
from shadowgraph.common.words import plural, size
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Finding


class Findings(HtmlRepr, tuple[Finding, ...]):
    """Findings in order of arrival."""

    __slots__ = ()


class Buffers(HtmlRepr, tuple[Buffer, ...]):
    """Buffers in order of allocation."""

    __slots__ = ()

    def __repr__(self) -> str:
        held = sum(buffer.nbytes for buffer in self)
        return f"<{plural(len(self), 'buffer')}, {size(held)}; iterate to see each>"
