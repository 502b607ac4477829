"""Merging of the records of several processes: findings get new ids, and the references between them with these."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace
from support.finding_samples import FINDING, altered

from shadowgraph.model.findings import Finding, Severity
from shadowgraph.model.overrun_extents import CausedBy, Origin
from shadowgraph.wrap.folder.merging import merge
from shadowgraph.wrap.folder.process_record import ProcessRecord

CAUSE = CausedBy(1, "SG101", FINDING.fingerprint, FINDING.buffer.name, FINDING.buffer.serial, True)
ORIGIN = Origin(FINDING.buffer.name, FINDING.buffer.serial, FINDING.fingerprint, 1)


def process(pid: int, *findings: Finding) -> ProcessRecord:
    found = [replace(finding, pid=pid, time=finding.time + pid) for finding in findings]
    return ProcessRecord(Path(f"findings-{pid}-1.jsonl"), pid=pid, findings=found)


def of_one(*, serial: int = 13, **facts: object) -> Finding:
    return altered(**{"id": 2, "fingerprint": "c" * 12, "buffer__serial": serial, **facts})


CONSEQUENCE = of_one(code="SG109", caused_by=CAUSE)
PART = of_one(id=3, severity=Severity.NOTE, continues=ORIGIN)


def test_references_lead_to_the_new_ids() -> None:
    facts = merge([process(1, FINDING, CONSEQUENCE, PART), process(2, CONSEQUENCE, PART, FINDING)])
    ids = {(one.pid, one.code): one.id for one in facts.findings}
    assert sorted(ids.values()) == [1, 2, 3, 4]
    assert [(one.pid, one.caused_by.finding) for one in facts.findings if one.caused_by is not None] == [
        (1, ids[1, "SG101"]),
        (2, ids[2, "SG101"]),
    ]
    assert [(one.pid, one.continues.finding) for one in facts.parts if one.continues is not None] == [
        (1, ids[1, "SG101"]),
        (2, ids[2, "SG101"]),
    ]
    assert facts.notes == ()
    assert [one.code for one in facts.told] == ["SG101", "SG109", "SG101", "SG109"]


def test_a_reference_to_a_finding_that_was_lost_leads_nowhere() -> None:
    (alone,) = merge([process(1, CONSEQUENCE)]).findings
    assert alone.caused_by == replace(CAUSE, finding=0)
    assert alone.message.endswith(", caused by SG101 of draft.kv_indices")


def test_two_debuggers_of_a_process_with_the_same_ids() -> None:
    second = replace(FINDING, buffer=replace(FINDING.buffer, serial=77), fingerprint="d" * 12)
    follows = of_one(serial=78, code="SG109", caused_by=replace(CAUSE, serial=77, fingerprint="d" * 12))
    facts = merge([process(1, FINDING, second, follows)])
    ids = {one.buffer.serial: one.id for one in facts.findings}
    assert facts.findings[-1].caused_by is not None
    assert facts.findings[-1].caused_by.finding == ids[77]
