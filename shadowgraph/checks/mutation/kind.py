"""SG102, in-graph mutation, as a kind of finding.

Facts and words of the kind; pure, any thread. The check is in `check`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shadowgraph.checks.kind import FindingKind
from shadowgraph.checks.mutation import CODE
from shadowgraph.checks.verdicts import changed_bytes, most, who
from shadowgraph.common.words import plural
from shadowgraph.model.findings import Finding

if TYPE_CHECKING:
    from shadowgraph.checks.base import Check, Context


class InGraphMutationKind(FindingKind):
    """A replay changed a buffer that host code owns. It has no facts beside the changed bytes and their reader."""

    code = CODE
    title = "in-graph mutation"
    node_is_sought = True
    needs_observation = True
    remedy = (
        "A graph replays its writes every time. Keep a copy that no graph is given and restore from it before each "
        "plan, let the graph write a buffer of its own, or plan from the values that the graph will write. If it "
        "is meant to write what the host plans from, suppress the fingerprint."
    )

    def verdict(self, finding: Finding) -> str:
        count = plural(changed_bytes(finding).count, "byte")
        changed = f"{who(finding)} changed {most(finding)}{count} of {finding.buffer.name},"
        if finding.reader is None:
            return f"{changed} which host code owns,"
        said = f"{changed} which the host had read before and read again ({finding.reader.name}) without writing it,"
        return said if finding.reader.wrote is None else f"{said} to write from it {finding.reader.wrote},"

    def make_checks(self, context: Context) -> Iterable[Check]:
        from shadowgraph.checks.mutation.check import InGraphMutation

        yield InGraphMutation(context)
