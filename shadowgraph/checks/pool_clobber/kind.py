"""SG105, pool clobber, as a kind of finding.

Facts and words of the kind; pure, any thread. The check is in `check`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shadowgraph.checks.kind import FindingKind, Row
from shadowgraph.checks.pool_clobber import CODE
from shadowgraph.checks.pool_clobber.facts import Access, ClobberDetail
from shadowgraph.checks.verdicts import LONGEST_NAME, named, successor_said, who
from shadowgraph.common.kernel_names import brief
from shadowgraph.common.source_paths import at
from shadowgraph.model.findings import Finding, Successor
from shadowgraph.model.kinds import Detail

if TYPE_CHECKING:
    from shadowgraph.checks.base import Check, Context, Detection
    from shadowgraph.model.buffers import Buffer


class PoolClobberKind(FindingKind):
    """Memory of a graph pool is read as one tensor's after another tensor of the pool was written there."""

    code = CODE
    title = "pool clobber"
    reports = ("ROCm/aiter#5393",)
    detail = ClobberDetail
    bytes_are = "overwritten"
    needs_observation = True
    remedy = (
        "A replay writes all memory that its capture allocated, freed or not. Allocate what must outlive a "
        "replay before the capture; read or copy an output before another graph of its pool replays; hold the tensor "
        "itself for as long as a pointer to it is used."
    )

    def verdict(self, finding: Finding) -> str:
        buffer, detail = named(finding.buffer), finding.detail
        if not isinstance(detail, ClobberDetail):
            return f"{who(finding)} writes over {buffer}, which is read after that,"
        writes = "would write" if detail.apart else "writes"
        return f"{who(finding)} {writes} {detail.by.name} over {buffer}, which {_reader(detail)} reads after that,"

    def rows(self, finding: Finding) -> Iterable[Row]:
        detail = finding.detail
        if not isinstance(detail, ClobberDetail):
            return
        fate = {"alive": ", which is still held", "freed": ", and freed since"}.get(detail.fate, "")
        yield "pool", f"allocated in the capture of {detail.owner}{fate}"
        yield "made", _said(detail.made)
        whose = "the same capture" if detail.by_owner == detail.owner else f"the capture of {detail.by_owner}"
        yield "written", f"{successor_said(detail.by)}, of {whose}, has the same bytes"
        if detail.apart:
            yield "", "this layout keeps them apart; torch's allocator reuses the block, which was freed before"
        if finding.reader is None:
            yield "read", _said(detail.read)

    def make_checks(self, context: Context) -> Iterable[Check]:
        from shadowgraph.checks.pool_clobber.check import PoolClobbers

        yield PoolClobbers(context)

    def further_buffers(self, draft: Detection) -> Iterable[Buffer]:
        from shadowgraph.checks.pool_clobber.details import Clobbered

        return (draft.facts.by,) if isinstance(draft.facts, Clobbered) else ()

    def describe(self, draft: Detection, context: Context) -> Detail | None:
        from shadowgraph.checks.pool_clobber.details import clobber_of

        return clobber_of(draft, context)

    def victims(self, finding: Finding) -> Iterable[Successor]:
        """The tensor that has the same bytes."""
        return (finding.detail.by,) if isinstance(finding.detail, ClobberDetail) else ()


def _reader(detail: ClobberDetail) -> str:
    read = detail.read
    node = f" (node {read.node})" if read.node is not None else ""
    return f"{brief(read.name, LONGEST_NAME)}{node}"


def _said(access: Access) -> str:
    """``replay 2 of graph#1, node 0 aten.mul.Tensor at model.py:33``; without the graph in eager code."""
    within = f"in replay {access.replay} of {access.graph}, node {access.node} " if access.graph else "by eager code, "
    return f"{within}{access.name}{at(access.file, access.line)}"
