"""What the check knows of an influence, and how it becomes facts with names. Under no lock."""

from __future__ import annotations

from dataclasses import dataclass

from shadowgraph.checks.base import Context, Detection
from shadowgraph.checks.successors import successor_of
from shadowgraph.checks.undefined.consumption import node_reader
from shadowgraph.checks.undefined.facts import LoadFacts, Source, UndefinedDetail
from shadowgraph.checks.undefined.records import Effect, Influence
from shadowgraph.model.findings import Reader


@dataclass(frozen=True, slots=True, eq=False)
class Depends:
    """The facts of a detection before they have names."""

    found: Influence
    effect: Effect
    runs: int


def _writer(draft: Detection, found: Influence) -> Reader | None:
    """The first node that may write bytes that nothing has written."""
    if draft.graph is None or found.filled.source is not Source.UNWRITTEN:
        return None
    writers = draft.graph.writers(found.where)
    return node_reader(writers[0]) if writers else None


def influence_of(draft: Detection, context: Context) -> UndefinedDetail | None:
    """The facts of a detection, with names."""
    facts = draft.facts
    if not isinstance(facts, Depends):
        return None
    found, effect = facts.found, facts.effect
    buffer, differing = effect.output.buffer, list(effect.differing)
    load = found.loads[0] if found.loads else None
    return UndefinedDetail(
        source=found.filled.source,
        output=successor_of(buffer, context),
        first=differing[0].start - buffer.start,
        last=differing[-1].stop - 1 - buffer.start,
        count=effect.differing.nbytes,
        computed=effect.computed,
        fills=found.fills,
        values=effect.values,
        writer=_writer(draft, found),
        load=LoadFacts(load.program, load.line) if load is not None else None,
        runs=facts.runs,
    )
