"""SG104, dangling pointer, as a kind of finding.

Facts and words of the kind; pure, any thread. The check is in `check`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from shadowgraph.checks.dangling import CODE
from shadowgraph.checks.dangling.facts import DanglingDetail
from shadowgraph.checks.kind import FindingKind, Row
from shadowgraph.checks.verdicts import named, successor_said, who
from shadowgraph.common.source_paths import short
from shadowgraph.common.words import plural
from shadowgraph.model.findings import Finding, Successor
from shadowgraph.model.kinds import Detail

if TYPE_CHECKING:
    from shadowgraph.checks.base import Check, Context, Detection
    from shadowgraph.model.buffers import Buffer
    from shadowgraph.model.stacks import Frame


_FREED_FRAMES = 3
_ASSIGNED = re.compile(r"([\w.]+(?:\[[^\]]*\])*)\s*(?::[^=]+)?=(?!=)")  # the target of an assignment
_LAST = re.compile(r"(\w+|\[[^\]]*\])(?:#\d+)?$")  # the end of a name: an attribute, a variable or a key
_TOUCHED = {
    "was given": "given to",
    "writes": "written by",
    "reads": "read by",
    "reads and writes": "read and written by",
}


class DanglingPointerKind(FindingKind):
    """A graph uses memory that was freed or moved since its capture."""

    code = CODE
    title = "dangling pointer"
    reports = (
        "sgl-project/sglang#39175",
        "sgl-project/sglang#34210",
        "vllm-project/vllm#43909",
        "cupy/cupy#9655",
        "cupy/cupy#8318",
        "jcelerier/librediffusion#14",
    )
    detail = DanglingDetail
    buffer_is_gone = True
    remedy = (
        "A graph keeps addresses, not tensors. Hold a reference to what it was captured with for as long as it is "
        "replayed, and refresh it in place (copy_) instead of binding its name to a new tensor; or capture again then."
    )

    def verdict(self, finding: Finding) -> str:
        buffer, detail = named(finding.buffer, nbytes=True), finding.detail
        if not isinstance(detail, DanglingDetail):
            return f"{who(finding)} uses {buffer}, which is gone,"
        uses = _uses(detail)
        fate = "moved to other memory" if detail.fate == "moved" else "freed"
        names = [victim.name for victim in detail.victims]
        more = f" and {len(names) - 2:,} more" if len(names) > 2 else ""
        now = f", now {' and '.join(names[:2])}{more}" if names else ""
        return f"{who(finding)} {uses} {buffer}, {fate} since the capture{now},"

    def rows(self, finding: Finding) -> Iterable[Row]:
        detail = finding.detail
        if not isinstance(detail, DanglingDetail):
            return
        nbytes = plural(detail.last + 1 - detail.first, "byte")
        yield "captured", f"{_access(detail, finding.graph)}; {nbytes} from {detail.first:,} on"
        may = "overwrites" if detail.known else "may overwrite"
        overwritten = f", which the graph {may}" if detail.writes else ""
        for place, frame in enumerate(detail.freed_by[:_FREED_FRAMES]):
            yield "" if place else _fate(finding, detail), f"{short(frame.file)}:{frame.line} in {frame.function}"
            if detail.freed_source and not place:
                yield "", f"    {detail.freed_source}"
        for victim in detail.victims:
            yield "now", f"{successor_said(victim)} has these bytes{overwritten}"
        if not detail.victims:
            yield "now", "no known buffer has these bytes"
        if detail.replaced_by is not None:
            yield "replaced", f"by {successor_said(detail.replaced_by)}"

    def with_text(self, detail: Detail, text_of: Callable[[Frame], str]) -> Detail:
        if not isinstance(detail, DanglingDetail) or not detail.freed_by:
            return detail
        return msgspec.structs.replace(detail, freed_source=text_of(detail.freed_by[0]))

    def touched(self, finding: Finding) -> str:
        detail = finding.detail
        return _TOUCHED[_uses(detail)] if isinstance(detail, DanglingDetail) else "used by"

    def make_checks(self, context: Context) -> Iterable[Check]:
        from shadowgraph.checks.dangling.check import Dangling

        yield Dangling(context)

    def further_buffers(self, draft: Detection) -> Iterable[Buffer]:
        from shadowgraph.checks.dangling.details import Ended

        facts = draft.facts
        return facts.victims if isinstance(facts, Ended) else ()

    def describe(self, draft: Detection, context: Context) -> Detail | None:
        from shadowgraph.checks.dangling.details import ending_of

        return ending_of(draft, context)

    def victims(self, finding: Finding) -> Iterable[Successor]:
        """The buffers that have the bytes now."""
        return finding.detail.victims if isinstance(finding.detail, DanglingDetail) else ()

    def merged(self, known: Finding, again: Finding) -> Finding | None:
        """The known finding, with what a kernel was seen to do to the buffer, and with the allocations that now occupy
        its range once there are any."""
        before, now = known.detail, again.detail
        if not (isinstance(before, DanglingDetail) and isinstance(now, DanglingDetail)):
            return None
        if now.known and not before.known:
            seen = msgspec.structs.replace(before, access=now.access, writes=now.writes, known=True)
            fields = {"detail": seen, "culprit": again.culprit, "confidence": again.confidence}
            return msgspec.structs.replace(known, **fields, revision=known.revision + 1)
        if before.victims or not now.victims:
            return known
        taken = msgspec.structs.replace(before, victims=now.victims)
        return msgspec.structs.replace(known, detail=taken, revision=known.revision + 1)


def _fate(finding: Finding, detail: DanglingDetail) -> str:
    """What the line did: it rebound the buffer's name if it assigns to that, as far as its text tells."""
    assigned = _ASSIGNED.match(detail.freed_source)
    if detail.fate != "freed" or assigned is None:
        return detail.fate
    target, name = _LAST.search(assigned[1]), _LAST.search(finding.buffer.name)
    alike = target is not None and name is not None and target[1].replace("'", '"') == name[1]
    return "rebound" if alike else detail.fate


def _uses(detail: DanglingDetail) -> str:
    """What the culprit does to the buffer: of a kernel it is known only that it was given a pointer."""
    if not detail.known:
        return "was given"
    return "writes" if detail.access == "external-out" else "reads and writes" if detail.writes else "reads"


def _access(detail: DanglingDetail, graph: str | None) -> str:
    if not detail.known:
        return f"{graph} gives it to a kernel, which may read and write it"
    reads = "reads it before it writes it" if detail.writes else "only reads it"
    how = reads if detail.access == "live-in" else "only writes it"
    return f"{detail.access}: {graph} {how}"
