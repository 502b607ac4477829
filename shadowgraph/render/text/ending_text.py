"""Dangling pointer as rows of a report: the graph's access to the bytes, their present buffer, the owner's new one."""

from __future__ import annotations

from collections.abc import Iterator

from shadowgraph.common.source_paths import at
from shadowgraph.common.words import form, plural
from shadowgraph.model.findings import Finding, Successor

Row = tuple[str, str]


def ending_rows(finding: Finding) -> Iterator[Row]:
    """Label and text of each row; no rows for a finding on a live buffer."""
    ending = finding.ending
    if ending is None:
        return
    nbytes = plural(ending.last + 1 - ending.first, "byte")
    how = "reads it before it writes it" if ending.access == "live-in" else "only writes it"
    yield "captured", f"{ending.access}: {finding.graph} {how}; {nbytes} from {ending.first:,} on"
    for victim in ending.victims:
        yield (
            "now",
            f"{successor_said(victim)} has these bytes{', which the graph overwrites' if ending.writes else ''}",
        )
    if not ending.victims:
        yield "now", "no known buffer has these bytes"
    if ending.replaced_by is not None:
        yield "replaced", f"by {successor_said(ending.replaced_by)}"


def successor_said(buffer: Successor) -> str:
    """``runner.victim  float32[64]  256 bytes at 0x7f..., allocation 7 at model.py:33``."""
    known = "" if buffer.serial is None else f", allocation {buffer.serial}"
    place = at(buffer.allocated[0].file, buffer.allocated[0].line) if buffer.allocated else ""
    shape, nbytes = form(buffer.dtype, buffer.shape), plural(buffer.nbytes, "byte")
    return f"{buffer.name}  {shape}  {nbytes} at {buffer.address:#x}{known}{place}"
