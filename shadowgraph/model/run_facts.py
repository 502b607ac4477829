"""All facts that a report shows, as one JSON document. Immutable; no lock."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from typing import Any

import msgspec

from shadowgraph.common.version import VERSION
from shadowgraph.model.coverage import Coverage
from shadowgraph.model.failures import Failure
from shadowgraph.model.fences import Fence
from shadowgraph.model.findings import Finding
from shadowgraph.model.high_water import HighWaterMark
from shadowgraph.model.launch_arguments import LastLaunch
from shadowgraph.model.redaction import FaultText, Kept, OwnerPath
from shadowgraph.model.suppressions import RuleCount
from shadowgraph.model.tensor_changes import Change

SCHEMA = "shadowgraph.report/2"
_Id = tuple[int, int]


class Replays(msgspec.Struct, frozen=True):
    """Numbers of replays.

    Attributes
    ----------
    made
        Replays that began.
    checked
        Those whose guards were checked; a device counts what its check nodes check, and may lag behind.
    observed
        Those that were observed in full, with their preparation.
    """

    made: int = 0
    checked: int = 0
    observed: int = 0

    def sentence(self) -> str:
        """Both numbers, in words."""
        checked = "each one checked" if self.checked == self.made else f"{self.checked:,} checked"
        return f"{self.made:,} made, {checked}, {self.observed:,} observed in full"


class RunFacts(msgspec.Struct, frozen=True):
    """The facts of one run.

    Attributes
    ----------
    replays
        Of all graphs, those that are gone too.
    graphs
        Name, node count and replay count of each live graph.
    faults
        Counts of internal errors by place and message.
    guards_shrunk, guards_dropped
        Blocks with smaller guards than wanted, and blocks without guards, for lack of memory.
    watches
        Name, changes and number of dropped changes of each watched tensor.
    left_alone
        Number of captures whose memory has no guards, by reason.
    stepped_aside
        How often the debugger stepped aside so that the program runs as without it, by reason.
    lost
        Why the device could no longer be read, or None.
    last_values
        After a device loss: name, dtype and bytes of small buffers at the last boundary that reached the host.
    last_launches
        After a device loss: the last launches that had begun, the latest first, with their arguments.
    names_unread, names_cut_short
        Objects that the name walks could not read, and named objects whose walk hit a bound.
    limits
        Work that was skipped so as not to delay the program, each in a sentence.
    failures
        Exceptions of the program, with the context at that moment.
    parts
        Broken guards of buffers that overruns ran over: evidence of those findings, and neither findings nor notes.
    high_water
        How far each static buffer was filled at most, in observed replays; those with a forecast first, then the
        fullest.
    fences
        The buffers behind which no memory is mapped, one for each line, type and shape.
    suppressed
        How often a finding was seen that a suppression rule hides.
    suppressions
        What each suppression rule has hidden.
    hidden
        The suppressed findings, those of one rule and fingerprint as one.
    ended
        Whether the run is over and was watched to its end, so that a rule that hid nothing is stale.
    endings
        Ends of processes other than a normal exit: at a fence, by an exception or by a signal, each in words.
    """

    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    suppressed: Kept[int]
    coverage: Kept[Coverage]
    graphs: Kept[tuple[tuple[str, int, int], ...]]
    faults: dict[FaultText, Kept[int]]
    guards_shrunk: Kept[int]
    guards_dropped: Kept[int]
    watches: tuple[tuple[OwnerPath, tuple[Change, ...], Kept[int]], ...]
    left_alone: Kept[dict[str, int]] = {}
    stepped_aside: Kept[dict[str, int]] = {}
    lost: Kept[str | None] = None
    last_values: tuple[tuple[str, str, bytes], ...] = ()
    last_launches: tuple[LastLaunch, ...] = ()
    names_unread: Kept[int] = 0
    names_cut_short: Kept[int] = 0
    limits: Kept[tuple[str, ...]] = ()
    failures: tuple[Failure, ...] = ()
    replays: Kept[Replays] = Replays()
    parts: tuple[Finding, ...] = ()
    high_water: tuple[HighWaterMark, ...] = ()
    fences: tuple[Fence, ...] = ()
    suppressions: tuple[RuleCount, ...] = ()
    hidden: tuple[Finding, ...] = ()
    ended: bool = False
    endings: Kept[tuple[str, ...]] = ()

    @property
    def told(self) -> tuple[Finding, ...]:
        """Findings, each followed by its consequences, and then the notes."""
        known = {(finding.pid, finding.id) for finding in self.findings if not finding.is_consequence}
        behind: dict[_Id, list[Finding]] = {}
        for finding in self.findings:
            cause = _cause(finding)
            if cause in known:
                behind.setdefault(cause, []).append(finding)
        first = (finding for finding in self.findings if _cause(finding) not in known)
        told = [each for finding in first for each in (finding, *behind.get((finding.pid, finding.id), ()))]
        return (*told, *self.notes)

    @property
    def damage(self) -> tuple[Finding, ...]:
        """Findings, and the parts of overruns: the damage that plots mark."""
        return (*self.findings, *self.parts)


def _cause(finding: Finding) -> _Id:
    """Process and id of the finding that another one is known to follow from; no finding has the id 0."""
    cause = finding.caused_by
    return finding.pid, cause.finding if cause is not None and cause.sure else 0


def document(facts: RunFacts, made_with: dict[str, str] | None = None) -> dict[str, Any]:
    """The facts as plain JSON types (schema ``shadowgraph.report/2``).

    Parameters
    ----------
    facts
        The facts of a run.
    made_with
        Versions of the packages that produced the facts; those of this process unless given.
    """
    return {"schema": SCHEMA, "versions": versions() if made_with is None else made_with, **plain_facts(facts)}


def plain_facts(facts: RunFacts) -> dict[str, Any]:
    """The facts as plain JSON types, each finding with its message."""
    body: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(facts))
    told = {"findings": facts.findings, "notes": facts.notes, "parts": facts.parts, "hidden": facts.hidden}
    return body | {name: [finding.to_dict() for finding in some] for name, some in told.items()}


def versions() -> dict[str, str]:
    """Versions of the packages that a finding may depend on."""
    return {
        "shadowgraph": VERSION,
        "python": platform.python_version(),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
    }


def _version(package: str) -> str:
    """A package's version, without importing it."""
    loaded = getattr(sys.modules.get(package), "__version__", None)
    if loaded is not None:
        return str(loaded)
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "-"


def to_json(facts: RunFacts) -> str:
    """The document as indented JSON text."""
    return msgspec.json.format(msgspec.json.encode(document(facts)), indent=2).decode()


def without_memory(facts: RunFacts) -> RunFacts:
    """The facts without bytes and values of memory; names and texts stay."""
    return msgspec.structs.replace(
        facts,
        findings=tuple(msgspec.structs.replace(finding, window=None) for finding in facts.findings),
        notes=tuple(msgspec.structs.replace(finding, window=None) for finding in facts.notes),
        parts=tuple(msgspec.structs.replace(finding, window=None) for finding in facts.parts),
        hidden=tuple(msgspec.structs.replace(finding, window=None) for finding in facts.hidden),
        last_values=(),
        last_launches=tuple(
            msgspec.structs.replace(launch, values=(), asserted=None) for launch in facts.last_launches
        ),
        failures=tuple(
            msgspec.structs.replace(each, plan=msgspec.structs.replace(each.plan, indptr=()) if each.plan else None)
            for each in facts.failures
        ),
    )
