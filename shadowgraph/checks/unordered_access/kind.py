"""SG115, unordered access, as a kind of finding.

Facts and words of the kind; pure, any thread. The check is in `check`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from shadowgraph.checks.kind import FindingKind, Row
from shadowgraph.checks.unordered_access import CODE
from shadowgraph.checks.unordered_access.facts import Missing, UnorderedDetail
from shadowgraph.checks.verdicts import named, who
from shadowgraph.model.findings import Finding

if TYPE_CHECKING:
    from shadowgraph.checks.base import Check, Context


def _stream(handle: int) -> str:
    return f"stream {handle:#x}" if handle else "the default stream"


class UnorderedAccessKind(FindingKind):
    """A write of host code and a replay that reads the same bytes, on streams that nothing orders."""

    code = CODE
    title = "unordered access"
    detail = UnorderedDetail
    bytes_are = "written and read without an order"
    needs_observation = True
    remedy = (
        "Let the stream of the replay wait for the write (wait_stream, or an event recorded behind the write), and the "
        "stream of the write for the replay that read the bytes before; or write on the stream that replays."
    )

    def verdict(self, finding: Finding) -> str:
        detail, writes = finding.detail, f"{who(finding)} writes {named(finding.buffer)}"
        if not isinstance(detail, UnorderedDetail):
            return f"{writes} in no order with a replay of {finding.graph} that reads it,"
        writes = f"{writes} on {_stream(detail.write_stream)}"
        reads = f"{finding.graph}, on {_stream(detail.replay_stream)},"
        if detail.missing is Missing.WRITE_AFTER_REPLAY:
            return f"{writes} while replay {detail.reading} of {reads} may still read it,"
        return f"{writes}, and nothing orders that before the replay of {reads} that reads it,"

    def rows(self, finding: Finding) -> Iterable[Row]:
        detail = finding.detail
        if not isinstance(detail, UnorderedDetail):
            return
        write, replay = _stream(detail.write_stream), _stream(detail.replay_stream)
        yield "streams", f"written on {write}, read on {replay}"
        label = "missing"
        if detail.missing is not Missing.WRITE_AFTER_REPLAY:
            yield label, f"no wait of {replay}, or of the host, for {write} since the write"
            label = ""
        if detail.missing is not Missing.REPLAY_AFTER_WRITE:
            which = f"replay {detail.reading}" if detail.reading is not None else "the replay before"
            yield label, f"no wait of {write}, or of the host, for {replay} between {which} and the write"

    def make_checks(self, context: Context) -> Iterable[Check]:
        from shadowgraph.checks.unordered_access.check import UnorderedAccess

        yield UnorderedAccess(context)

    def merged(self, known: Finding, again: Finding) -> Finding | None:
        """The known finding; where the other order turns out to be missing as well, with both."""
        before, now = known.detail, again.detail
        if not (isinstance(before, UnorderedDetail) and isinstance(now, UnorderedDetail)):
            return None
        if before.missing in (now.missing, Missing.BOTH):
            return known
        reading = before.reading if before.reading is not None else now.reading
        detail = msgspec.structs.replace(before, missing=Missing.BOTH, reading=reading)
        return msgspec.structs.replace(known, detail=detail, revision=known.revision + 1)
