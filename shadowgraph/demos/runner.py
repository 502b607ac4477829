"""Runner of acceptance cases: the proof of damage, the buggy program under a debugger, the fixed twin under another."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from shadowgraph.common.errors import InvalidCaseError, UsageError
from shadowgraph.common.suggestions import did_you_mean
from shadowgraph.demos import (
    a1_indptr,
    a2_kv_indices,
    a3_page_table,
    a4_padding,
    a5_rebound,
    a6_workspace,
    a7_slot_cache,
    a10_fresh_input,
    a12_cloned_input,
    controls,
)
from shadowgraph.demos.case import Case
from shadowgraph.model.findings import Finding
from shadowgraph.model.run_facts import RunFacts
from shadowgraph.session import debug
from shadowgraph.views.memory_map import MemoryMap

CARVE = 1 << 14

ACCEPTANCE: tuple[Case, ...] = (
    *a1_indptr.CASES,
    *a2_kv_indices.CASES,
    *a3_page_table.CASES,
    *a4_padding.CASES,
    *a5_rebound.CASES,
    *a6_workspace.CASES,
    *a7_slot_cache.CASES,
    *a10_fresh_input.CASES,
    *a12_cloned_input.CASES,
    *controls.CASES,
)


@dataclass(slots=True)
class Outcome:
    """Result of a case.

    Attributes
    ----------
    verdict
        ``passed``, ``failed`` or ``invalid``.
    complaints
        Reasons why it is not ``passed``.
    buggy, fixed
        Facts of the two runs under a debugger; None for a run that was not made.
    memory
        The buggy run's memory map, for a picture.
    """

    case: Case
    verdict: str = "passed"
    complaints: list[str] = field(default_factory=list)
    buggy: RunFacts | None = None
    fixed: RunFacts | None = None
    memory: MemoryMap | None = None
    seconds: float = 0.0

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.buggy.findings if self.buggy else ()


def select(cases: Iterable[Case], only: Iterable[str]) -> list[Case]:
    """Cases by id.

    Raises
    ------
    UsageError
        For an id that does not exist.
    """
    known = {case.id: case for case in cases}
    wanted = list(only)
    for name in wanted:
        if name not in known:
            raise UsageError(f"no case {name!r}{did_you_mean(name, known)}; cases are: {', '.join(known)}")
    return [known[name] for name in wanted] if wanted else list(known.values())


def run_cases(cases: Iterable[Case], device: Any, **options: Any) -> Iterator[Outcome]:
    """Run cases one after another; yields each result as soon as it is there."""
    for case in cases:
        yield run_case(case, device, **options)


def run_case(case: Case, device: Any, **options: Any) -> Outcome:
    """Run one case: a failed precondition makes it invalid, any other deviation makes it fail."""
    outcome = Outcome(case)
    began = time.perf_counter()
    try:
        if case.damage is not None and not case.damage(device):
            outcome.verdict = "invalid"
            outcome.complaints.append("without a debugger the victim was not damaged")
            return outcome
        chosen = {"backend": device.name, **dict(case.options), **options}
        if case.reuses and device.name != "host":
            chosen["layout"] = "faithful"
        _run_programs(outcome, device, chosen)
    except InvalidCaseError as error:
        outcome.verdict = "invalid"
        outcome.complaints.append(str(error))
        return outcome
    finally:
        outcome.seconds = time.perf_counter() - began
    if outcome.complaints:
        outcome.verdict = "failed"
    return outcome


def _run_programs(outcome: Outcome, device: Any, options: dict[str, Any]) -> None:
    """Run the buggy program, if there is one, and the fixed twin; notes facts and complaints in the outcome."""
    case = outcome.case
    if not case.control:
        outcome.buggy, outcome.memory = _watched(case, device, False, options)
        found, exact = outcome.buggy.findings, device.names_launches
        missing = [expected.missing(found, exact) for expected in case.expected]
        outcome.complaints += [text for text in missing if text]
    outcome.fixed, _ = _watched(case, device, True, options)
    outcome.complaints += [f"the fixed twin is not silent: {f.message}" for f in outcome.fixed.findings]
    outcome.complaints += [f"fault: {fault}" for f in (outcome.buggy, outcome.fixed) if f for fault in f.faults]


def _watched(case: Case, device: Any, fixed: bool, options: dict[str, Any]) -> tuple[RunFacts, MemoryMap]:
    with debug(**options) as debugger:
        kept = case.program(device, debugger, fixed, CARVE if case.carved else 0)
        facts = debugger.report(quiet=True).facts
        memory = MemoryMap.of(debugger)
    del kept
    return facts, memory
