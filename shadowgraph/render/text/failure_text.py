"""Exception of the program with the facts known at that time, and failed index assertions, as texts of a report."""

from __future__ import annotations

from collections.abc import Iterator

from shadowgraph.common.words import plural
from shadowgraph.model.failures import Failure, LastWriter, PlanFacts
from shadowgraph.model.launch_arguments import AssertedIndex
from shadowgraph.render.text.batch_text import batch_said
from shadowgraph.render.text.culprit_text import culprit_line

Row = tuple[str, str]
_KINDS = {
    "planner": "the program's planner refused",
    "device": "the program met a dead device",
    "timeout": "the program was not heard of in time",
}
_SHOWN = 24  # indptr entries of a plan


def failure_head(failure: Failure) -> str:
    """``the program's planner refused: RuntimeError: kv_indptr[5]25 - ...``."""
    said = ": ".join(filter(None, (_KINDS[failure.kind], failure.error, failure.said)))
    return f"shadowgraph: {said}{f' (caught by {failure.where})' if failure.where else ''}"


def failure_rows(failure: Failure) -> Iterator[Row]:
    """Label and text of each row."""
    if failure.plan is not None:
        yield from _plan_rows(failure.plan)
    if failure.batch is not None:
        yield "batch", batch_said(failure.batch)
    if failure.graph is not None:
        yield "replayed", f"last, replay {failure.replay} of {failure.graph}, {failure.seconds:,.1f} s before"


def _plan_rows(plan: PlanFacts) -> Iterator[Row]:
    coming = f" for replay {plan.replay} of {plan.graph}" if plan.graph is not None else ""
    failed = ", which failed" if plan.failed else ""
    yield "last plan", f"{plan.planner} ({plan.kind}), {plural(plan.batch_size, 'request')}{coming}{failed}"
    if plan.indptr:
        yield "from", _pointers(plan)
    for at in plan.broken:
        before = at - 1 - plan.first
        if 0 <= before < len(plan.indptr) - 1:
            yield "broken", f"[{at}] = {plan.indptr[before + 1]} after [{at - 1}] = {plan.indptr[before]}"
    for writer in plan.writers:
        yield "written by", _writer(writer, bool(plan.broken))
    if plan.finding is not None:
        yield "found", f"finding #{plan.finding} is about the same memory: {plan.found}"


def _pointers(plan: PlanFacts) -> str:
    """The index pointers, broken ones with a star."""
    shown = _window(plan)
    last = plan.first + len(plan.indptr) - 1
    values = ", ".join(f"{'*' if at in plan.broken else ''}{value}" for at, value in shown)
    start = "... " if shown[0][0] else ""
    more = " ..." if shown[-1][0] < last or last + 1 < plan.entries else ""
    named = f" of {plan.buffer}" if plan.buffer else ""
    return f"{plural(plan.entries, 'index pointer')}{named}: {start}{values}{more}"


def _window(plan: PlanFacts) -> list[tuple[int, int]]:
    """Indices and values to show: around the first broken one, else from the start."""
    middle = plan.broken[0] - plan.first if plan.broken else 0
    start = max(0, middle - _SHOWN // 2)
    return [(plan.first + at, plan.indptr[at]) for at in range(start, min(len(plan.indptr), start + _SHOWN))]


def _writer(writer: LastWriter, one: bool) -> str:
    entry = f"[{writer.entry}]: " if one else ""
    replay = f" in replay {writer.replay} of {writer.graph}" if writer.graph is not None else ""
    return f"{entry}{culprit_line(writer.culprit)}{replay}"


def asserted_line(found: AssertedIndex) -> str:
    """``asserts 0 <= tmp24 < ks2 (2): would be 0 to 2, out of range at x = 0, 1; an index into out_ptr1``."""
    high = "" if found.high is None or found.rule.endswith(f"< {found.high}") else f" ({found.high})"
    values = f"{found.least} to {found.most}" if found.least != found.most else f"{found.least}"
    more = f" and {found.more_places:,} more" if found.more_places else ""
    places = f", out of range at x = {', '.join(map(str, found.places))}{more}" if found.places else ""
    holds = "which holds a copy of" if found.copied else "which is"
    named = f", {holds} {found.owner}" if found.owner else ""
    into = f"; an index into {found.into}{named}" if found.into else ""
    return f"asserts {found.rule}{high}: would be {values}{places}{into}"
