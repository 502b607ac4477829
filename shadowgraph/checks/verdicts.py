"""Words that the kinds of finding share in their one-line verdicts and rows. Pure functions; any thread."""

from __future__ import annotations

import os
from collections.abc import Iterable

from shadowgraph.common.kernel_names import brief
from shadowgraph.common.source_paths import at
from shadowgraph.common.words import form, plural
from shadowgraph.model.findings import BufferFacts, ByteFacts, Finding, Sighting, Status, Successor
from shadowgraph.model.overrun_extents import Reached
from shadowgraph.model.phases import Phase
from shadowgraph.model.probes import Search
from shadowgraph.model.steps import StepFacts

LONGEST_NAME = 60  # most columns of a culprit's name


def when(finding: Finding | Sighting | Reached) -> str:
    """Phase, graph, replay and step in words."""
    step = finding.step if isinstance(finding, Finding | Sighting) else None
    if step is not None:
        said = _within(finding.phase, finding.graph, finding.replay, step)
        if said:
            return said
    if finding.phase is Phase.PREPARE and finding.graph:
        return f"while preparing replay {finding.replay} of {finding.graph}"
    if finding.phase is Phase.REPLAY and finding.graph:
        return f"in replay {finding.replay} of {finding.graph}"
    return {
        Phase.SETUP: "during set-up, before any replay",
        Phase.CAPTURE: "during a capture",
        Phase.PREPARE: "in prepare",
        Phase.REPLAY: "in a replay",
        Phase.BETWEEN: "between two pieces of a step",
        Phase.STEP: "in a step of pieces",
        Phase.EAGER: "in eager code",
    }[finding.phase]


def _within(phase: Phase, graph: str | None, replay: int | None, step: StepFacts) -> str:
    """A phase of a step in words; empty for one that is of no step."""
    one = step.since == step.until
    pieces = f"piece {step.until}" if one else f"one of pieces {step.since} to {step.until}"
    return {
        Phase.PREPARE: f"while preparing {step.name}",
        Phase.REPLAY: f"in replay {replay} of {graph}, piece {step.until} of {step.pieces} in {step.name}",
        Phase.BETWEEN: f"between pieces {step.since} and {step.until} of {step.pieces} in {step.name}",
        Phase.STEP: f"in {step.name}, in {pieces} of {step.pieces} or next to it",
    }.get(phase, "")


def because(finding: Finding) -> str:
    """The finding that it is a consequence of, for the end of its message."""
    cause = finding.caused_by
    if cause is None:
        return ""
    number = f" #{cause.finding}" if cause.finding else ""
    return f", {'' if cause.sure else 'perhaps '}caused by {cause.code} of {cause.buffer}{number}"


def who(finding: Finding) -> str:
    """The culprit in words."""
    culprit = finding.culprit
    if culprit.name is None:
        before = f" before {os.path.basename(culprit.file)}:{culprit.line}" if culprit.file else ""
        return f"an unseen writer{before}"
    node = f" (node {culprit.node})" if culprit.node is not None else ""
    perhaps = "perhaps " if culprit.status is Status.NOT_REPRODUCED else ""
    return f"{perhaps}{brief(culprit.name, LONGEST_NAME)}{node}"


def named(buffer: BufferFacts, nbytes: bool = False) -> str:
    """``draft.kv_indices (int32[3, 128])``, or with its size in bytes."""
    size = f", {plural(buffer.nbytes, 'byte')}" if nbytes else ""
    return f"{viewed(buffer)} ({form(buffer.dtype, buffer.shape)}{size})"


def viewed(buffer: BufferFacts) -> str:
    """A buffer's name, with the part of it that a finding is about: ``draft.kv_indices[2]``."""
    if not buffer.view:
        return buffer.name
    return f"{buffer.view} of {buffer.name}" if not buffer.names else f"{buffer.name}{joined(buffer.view)}"


def joined(expression: str) -> str:
    """An expression as it follows a name: an index or a call without a space, anything else with one."""
    return expression if not expression or expression.startswith(("[", ".")) else f" {expression}"


def successor_said(buffer: Successor) -> str:
    """``runner.victim  float32[64]  256 bytes at 0x7f..., allocation 7 at model.py:33``."""
    known = "" if buffer.serial is None else f", allocation {buffer.serial}"
    place = at(buffer.allocated[0].file, buffer.allocated[0].line) if buffer.allocated else ""
    shape, nbytes = form(buffer.dtype, buffer.shape), plural(buffer.nbytes, "byte")
    return f"{buffer.name}  {shape}  {nbytes} at {buffer.address:#x}{known}{place}"


def changed_bytes(finding: Finding) -> ByteFacts:
    """The bytes of a finding of a kind that always has some."""
    assert finding.bytes is not None
    return finding.bytes


def most(finding: Finding) -> str:
    """``up to``, where a count is that of a later sighting and not of the replay that a message names."""
    return "up to " if finding.widest is not None else ""


def revised(finding: Finding) -> str:
    """The log line for the end of a closer look at a finding."""
    culprit = finding.culprit
    where = f" at {os.path.basename(culprit.file)}:{culprit.line}" if culprit.file and culprit.name else ""
    replay = f" of replay {culprit.seen_in}" if culprit.seen_in is not None else ""
    prefixes = f" {looked(culprit.search)}" if culprit.search is not None else ""
    said = {
        Status.CONFIRMED: f"seen in a closer look{replay}{prefixes}{where}",
        Status.NOT_REPRODUCED: f"not seen again in a closer look{replay}",
    }.get(culprit.status, f"no launch that we saw did it, says a closer look{replay}")
    return f"finding #{finding.id}, revision {finding.revision}: {finding.message}: {said}"


def looked(search: Search | None) -> str:
    """``run node by node``; ``by prefixes, 7 runs of 129 nodes``."""
    if search is None:
        return "run node by node"
    runs, nodes = plural(search.runs, "run"), plural(search.nodes, "node")
    disabled = ", the others disabled" if search.how == "disabled" else ""
    return f"by prefixes{disabled}, {runs} of {nodes}"


def rows_said(pairs: Iterable[tuple[int, int]]) -> str:
    """``row 0``, ``rows 1 to 3``, ``rows 0, 2 to 3 and 7 more``."""
    known = list(pairs)
    parts = [str(first) if first == last else f"{first} to {last}" for first, last in known]
    more = f" and {len(parts) - 4:,} more stretches" if len(parts) > 4 else ""
    one = len(known) == 1 and known[0][0] == known[0][1]
    return f"{'row' if one else 'rows'} {', '.join(parts[:4]) or 'unknown'}{more}"
