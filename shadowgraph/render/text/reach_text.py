"""Extent of an overrun across buffers, as rows of a label and a text."""

from __future__ import annotations

from collections.abc import Iterator

from shadowgraph.checks.verdicts import when
from shadowgraph.common.words import form, plural
from shadowgraph.model.findings import Finding
from shadowgraph.model.guards import Side
from shadowgraph.model.overrun_extents import Reached


def reach_rows(finding: Finding) -> Iterator[tuple[str, str]]:
    """The overrun that a finding continues, or the further buffers that its own overrun reaches."""
    origin = finding.continues
    if origin is not None:
        given = "the launch was given no pointer into this buffer"
        yield "continues", f"the overrun of {origin.buffer} (finding {origin.fingerprint}): {given}"
    left = finding.reaches_total - len(finding.reaches)
    for place, reached in enumerate(finding.reaches):
        if left > 0 and place == len(finding.reaches) - 1:
            yield "", f"... and {left:,} more before the next"
        yield "" if place else "reaches", _reached(reached, finding)


def _reached(reached: Reached, finding: Finding) -> str:
    named = f"{reached.name} ({form(reached.dtype, reached.shape)}, {plural(reached.nbytes, 'byte')})"
    since = f"first {'at the latest ' if reached.late else ''}{when(reached)}"
    if reached.over:
        return f"{named} and goes over it, so that its contents are lost; {since}"
    guard = "before" if finding.bytes is not None and finding.bytes.side is Side.AFTER else "after"
    return f"the guard {guard} {named}; {since}"
