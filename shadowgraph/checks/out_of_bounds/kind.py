"""SG101, out-of-bounds write, as a kind of finding.

Facts and words of the kind; pure, any thread. The checks are in `check` (guards, slack, stores) and `given_views`
(write sets of probed replays); `shadowgraph.monitor.overrun_chain` ties findings of one overrun.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

import msgspec

from shadowgraph.checks.kind import FindingKind, Row
from shadowgraph.checks.out_of_bounds import CODE
from shadowgraph.checks.out_of_bounds.facts import OverrunDetail, overrun_of
from shadowgraph.checks.verdicts import changed_bytes, named, when, who
from shadowgraph.common.words import entries, form, listed, plural
from shadowgraph.model.findings import Finding, Severity
from shadowgraph.model.guards import Side
from shadowgraph.model.kinds import Detail
from shadowgraph.model.overrun_extents import Reached

if TYPE_CHECKING:
    from shadowgraph.checks.base import Check, Context

_ROWS = 8  # shown in a report
_SIDES: dict[Side, str] = {
    Side.ROW: (
        "The kernel lacks a bound on the column, or the rows are too short for what it packs into them. Inside one "
        "allocation nothing faults: these entries or the next row's own are lost, by the order of the programs."
    ),
    Side.SLACK: (
        "The graph was captured with a view of fewer rows than it writes. If that is meant, capture it with the whole "
        "buffer; if not, bound the kernel by the captured batch size."
    ),
}
_VIEW = (
    "Compare what the launch writes with the view that it was given: it lacks a bound, or was given too little. A "
    "kernel that walks on by strides is better given the whole buffer, so that the graph says what it uses."
)


class OutOfBoundsKind(FindingKind):
    """A launch wrote outside its buffer, into slack that the graph did not capture, or past a row's end."""

    code = CODE
    title = "out-of-bounds write"
    reports = (
        "sgl-project/sglang#27338",
        "sgl-project/sglang#27360",
        "sgl-project/sglang#24587",
        "sgl-project/sglang#27747",
        "vllm-project/vllm#36889",
        "vllm-project/vllm#41856",
        "PaddlePaddle/FastDeploy#7934",
    )
    detail = OverrunDetail
    needs_bytes = True
    node_is_sought = True
    writer_may_come_late = True
    remedy = (
        "Compare the size the launch needs in this step with the buffer's: the allocation may lack a factor (topk, "
        "steps, page size), or the kernel a bound. Assert the needed length on the host before the launch."
    )

    def verdict(self, finding: Finding) -> str:
        facts, buffer = changed_bytes(finding), named(finding.buffer, nbytes=True)
        up_to = "up to " if self.has_grown(finding) else ""
        if facts.side is Side.AFTER:
            far = plural(max(finding.past_end, overrun_of(finding).furthest), "byte")
            return f"{who(finding)} wrote {up_to}{far} past the end of {buffer}{_on_the_way(finding)}"
        if facts.side is Side.BEFORE:
            far = plural(max(-facts.first, overrun_of(finding).furthest), "byte")
            return f"{who(finding)} wrote {up_to}{far} before the start of {buffer}{_on_the_way(finding)}"
        if facts.side is Side.ROW:
            return _past_the_width(finding, buffer, up_to)
        if facts.side is None:
            given = "outside the view that it was given" if finding.severity is Severity.ERROR else "beyond its view"
            return f"{who(finding)} wrote bytes [{facts.first:,}, {facts.last:,}] of {buffer}, {given},"
        wrote = f"{who(finding)} wrote bytes [{facts.first:,}, {facts.last:,}]"
        return f"{wrote} of {buffer}, which this graph did not capture,"

    def extent_rows(self, finding: Finding) -> Iterable[Row]:
        """The overrun that a broken guard belongs to, or the whole extent of an overrun and what it ran over."""
        origin, detail = finding.continues, overrun_of(finding)
        if origin is not None:
            yield "continues", f"the overrun of {origin.buffer} (finding {origin.fingerprint})"
        if not detail.reaches or finding.bytes is None:
            return
        edge = "past the end" if finding.bytes.side is Side.AFTER else "before the start"
        yield "extent", f"{plural(detail.furthest, 'byte')} {edge}, to the last one that is known"
        left = detail.reaches_total - len(detail.reaches)
        for place, reached in enumerate(detail.reaches):
            if left > 0 and place == len(detail.reaches) - 1:
                yield "", f"... and {left:,} more before the next"
            yield "" if place else "ran over", _reached(reached, finding)

    def rows(self, finding: Finding) -> Iterable[Row]:
        rows = overrun_of(finding).rows
        for row in rows[:_ROWS]:
            into = [f"into row {r}" if r < row.rows else "past the end of the buffer" for r in row.into]
            lost = f"; {entries(row.lost)} lost" if row.lost else ""
            beyond = f"{entries(row.written_past)} beyond it, {listed(into)}{lost}"
            yield "rows", f"row {row.row} is {row.width:,} wide; {beyond}"
        if len(rows) > _ROWS:
            yield "", f"... and {len(rows) - _ROWS} more rows"

    def advice(self, finding: Finding) -> str:
        facts = finding.bytes
        if facts is None:
            return self.remedy
        return _SIDES.get(facts.side, self.remedy) if facts.side is not None else _VIEW

    def alike(self, finding: Finding) -> Hashable:
        return tuple((reached.name, reached.over) for reached in overrun_of(finding).reaches)

    def may_go_further(self, finding: Finding) -> bool:
        """No, where the buffers that it reached are known."""
        return not overrun_of(finding).reaches

    def widened(self, known: Finding, shown: Finding, further: bool) -> Detail | None:
        """With the rows of the sighting that is shown."""
        before = overrun_of(known)
        return msgspec.structs.replace(before, rows=overrun_of(shown).rows, grown=before.grown or further)

    def has_grown(self, finding: Finding) -> bool:
        return overrun_of(finding).grown

    def make_checks(self, context: Context) -> Iterable[Check]:
        from shadowgraph.checks.out_of_bounds.check import OutOfBounds
        from shadowgraph.checks.out_of_bounds.given_views import GivenViews

        yield OutOfBounds(context)
        yield GivenViews(context)


def _past_the_width(finding: Finding, buffer: str, up_to: str) -> str:
    lost = sum(row.lost for row in overrun_of(finding).rows)
    beyond = f"past the width of {_rows(finding)} of {buffer} into the next"
    return f"{who(finding)} wrote {beyond}; {up_to}{entries(lost)} lost"


def _on_the_way(finding: Finding) -> str:
    """Buffers that an overrun ran over or came close to; for an overrun continued from another buffer, that buffer."""
    detail = overrun_of(finding)
    if finding.continues is not None:
        return f", going on from {finding.continues.buffer},"
    over = [reached.name for reached in detail.reaches if reached.over or reached.overwritten]
    if not over:
        return f", as far as {detail.reaches[0].name}," if detail.reaches else ""
    left = detail.reaches_total - len(detail.reaches) + len(over[2:])  # the unlisted ones lie between
    more = f" and {left:,} more" if left > 0 else ""
    return f", over {(', ' if more else ' and ').join(over[:2])}{more},"


def _rows(finding: Finding) -> str:
    """The rows that were overrun, the first four by number."""
    numbers = [str(row.row) for row in overrun_of(finding).rows]
    more = f" and {len(numbers) - 4:,} more" if len(numbers) > 4 else ""
    return f"{'row' if len(numbers) == 1 else 'rows'} {', '.join(numbers[:4])}{more}"


def _reached(reached: Reached, finding: Finding) -> str:
    buffer = f"{reached.name} ({form(reached.dtype, reached.shape)})"
    since = f"first {'at the latest ' if reached.late else ''}{when(reached)}"
    doubt = "" if reached.sure else "; its launch is not confirmed, the changed bytes lie next to each other"
    if reached.overwritten or reached.over:
        return f"{buffer}: {_overwritten(reached)}; {since}{doubt}"
    guard = "before" if finding.bytes is not None and finding.bytes.side is Side.AFTER else "after"
    return f"the guard {guard} {buffer}; {since}{doubt}"


def _overwritten(reached: Reached) -> str:
    """How much of a buffer is lost."""
    if reached.overwritten is None:
        return "unknown which of its bytes"
    size = plural(reached.nbytes, "byte")
    return f"all its {size}" if reached.overwritten >= reached.nbytes else f"{reached.overwritten:,} of its {size}"
