"""SG107, undefined influence, as a kind of finding.

Facts and words of the kind; pure, any thread. The check is in `check`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shadowgraph.checks.kind import CulpritIs, FindingKind, Row
from shadowgraph.checks.undefined import CODE
from shadowgraph.checks.undefined.facts import Source, UndefinedDetail
from shadowgraph.checks.verdicts import changed_bytes, named, successor_said, who
from shadowgraph.common.source_paths import at, short
from shadowgraph.common.words import plural
from shadowgraph.model.findings import Finding
from shadowgraph.model.guards import Side
from shadowgraph.model.kinds import Detail

if TYPE_CHECKING:
    from shadowgraph.checks.base import Check, Context, Detection
    from shadowgraph.model.buffers import Buffer

_WHY = {
    Source.GUARD: "belong to no tensor",
    Source.SLACK: "this graph did not capture",
    Source.UNWRITTEN: "nothing has written",
    Source.PADDING: "were declared padding that does not matter",
}


class UndefinedInfluenceKind(FindingKind):
    """Results of a graph depend on bytes that must not matter: beyond a buffer, never written, or padding."""

    code = CODE
    title = "undefined influence"
    reports = ("vllm-project/vllm#37442",)
    detail = UndefinedDetail
    bytes_are = "undefined"
    keeps_first_example = True
    remedy = (
        "Mask the load, or write the bytes before they are read: zeros for rows that a kernel skips, a length that "
        "ends with the tensor. A mask has to select (where), not to multiply: what is there may be a NaN."
    )

    def culprit_is(self, finding: Finding) -> CulpritIs:
        return CulpritIs.READER

    def verdict(self, finding: Finding) -> str:
        detail = finding.detail
        if not isinstance(detail, UndefinedDetail):
            return f"{who(finding)} reads undefined bytes of {named(finding.buffer)}, on which results depend,"
        if not detail.computed:
            reader = finding.reader.name if finding.reader is not None else "the program"
            return f"{reader} reads {_bytes(finding, detail)},"
        return f"{who(finding)} reads {_bytes(finding, detail)}, and {detail.output.name} depends on them,"

    def rows(self, finding: Finding) -> Iterable[Row]:
        detail = finding.detail
        if not isinstance(detail, UndefinedDetail):
            return
        size = plural(detail.count, "byte")
        if detail.computed:
            yield "depends", successor_said(detail.output)
            yield "", f"{size} of it differ, from byte {detail.first:,} to {detail.last:,}"
        if detail.values[0] or detail.values[1]:
            one, other = detail.values
            yield "values", f"{one} with {detail.fills[0]} in the undefined bytes, {other} with {detail.fills[1]}"
        if detail.writer is not None:
            left = detail.writer
            yield "skipped", f"by {left.name} (node {left.node}), which may write them,{at(left.file, left.line)}"
        if detail.load is not None:
            source = finding.culprit.source or ""
            place = f" at {short(source.rsplit(':', 1)[0])}:{detail.load.line}" if detail.load.line and source else ""
            yield "loaded", f"by program {detail.load.program}{place}"
        yield "shown", f"by {plural(detail.runs, 'run')} from one state before the replay"

    def cause(self, finding: Finding) -> str:
        detail = finding.detail
        return str(detail.source) if isinstance(detail, UndefinedDetail) else ""

    def make_checks(self, context: Context) -> Iterable[Check]:
        from shadowgraph.checks.undefined.check import UndefinedInfluence

        if context.settings.undefined:
            yield UndefinedInfluence(context)

    def further_buffers(self, draft: Detection) -> Iterable[Buffer]:
        from shadowgraph.checks.undefined.details import Depends

        return (draft.facts.effect.output.buffer,) if isinstance(draft.facts, Depends) else ()

    def describe(self, draft: Detection, context: Context) -> Detail | None:
        from shadowgraph.checks.undefined.details import influence_of

        return influence_of(draft, context)


def _bytes(finding: Finding, detail: UndefinedDetail) -> str:
    """The bytes in words, and why they must not matter."""
    damage, buffer = changed_bytes(finding), named(finding.buffer, nbytes=True)
    if damage.side is Side.AFTER:
        return f"{plural(damage.last + 1 - finding.buffer.nbytes, 'byte')} past the end of {buffer}"
    if damage.side is Side.BEFORE:
        return f"{plural(-damage.first, 'byte')} before the start of {buffer}"
    return f"bytes [{damage.first:,}, {damage.last:,}] of {buffer}, which {_WHY[detail.source]}"
