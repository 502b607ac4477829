"""Sample findings for tests of code that consumes findings."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from shadowgraph.checks.invariants.facts import RuleDetail
from shadowgraph.checks.out_of_bounds.facts import OverrunDetail, RowOverrun, overrun_of
from shadowgraph.model.coverage import Coverage
from shadowgraph.model.findings import (
    Alias,
    BufferFacts,
    ByteFacts,
    Culprit,
    Finding,
    Neighbour,
    Reader,
    Severity,
    Status,
    Window,
)
from shadowgraph.model.guards import Side
from shadowgraph.model.high_water import Driver, Forecast, HighWaterMark, MarkedBatch, MarkedBy
from shadowgraph.model.phases import Phase
from shadowgraph.model.run_facts import RunFacts
from shadowgraph.model.stacks import Frame
from shadowgraph.model.suppressions import Rule, Suppressions

ALLOCATED = (Frame("/srv/app/backend.py", 41, "init_state"), Frame("/srv/app/server.py", 7, "main"))
LAUNCHED = (Frame("/srv/app/draft.py", 120, "prepare"), Frame("/srv/app/server.py", 9, "main"))

BUFFER = BufferFacts(
    name="draft.kv_indices",
    names=("draft.kv_indices", "worker.indices"),
    shape=(3, 128),
    dtype="int32",
    nbytes=1536,
    address=0x7F0000001000,
    serial=12,
    role="static",
    allocated=ALLOCATED,
)
AFTER = ByteFacts(1536, 1583, 44, ((1536, 1551), (1556, 1583)), 2, Side.AFTER, 0, False)
CULPRIT = Culprit(
    Status.CONFIRMED,
    "triton",
    "fill_indices",
    None,
    "/srv/app/draft.py",
    120,
    LAUNCHED,
    "/srv/app/kernels.py:12",
    (3, 2),
)
FINDING = Finding(
    code="SG101",
    severity=Severity.ERROR,
    phase=Phase.PREPARE,
    graph="graph#1",
    replay=7,
    detected_at="replay_begin",
    buffer=BUFFER,
    bytes=AFTER,
    culprit=CULPRIT,
    candidates=(Culprit(Status.CANDIDATE, "aten", "aten.copy_", None),),
    aliases=(Alias("worker.indices", ""), Alias("wrapper.buf", "[0:9]")),
    neighbour=Neighbour("draft.seq_lens", Side.AFTER, 512, 16, "int64", (2,)),
    reader=Reader("graph", "aten.sum", 4, "/srv/app/model.py", 33),
    detail=OverrunDetail((RowOverrun(0, 128, 16, 12, (1,), 3), RowOverrun(2, 128, 12, 0, (3,), 3))),
    window=Window(1520, "a1" * 80, "a1" * 16 + "07000000" * 4 + "a1" * 4 + "07000000" * 7 + "a1" * 16),
    id=1,
    time=1700000000.5,
    pid=4242,
    fingerprint="0123456789ab",
)


MARK = HighWaterMark(
    buffer="draft.kv_indices",
    dtype="int32",
    shape=(3, 128),
    used=120,
    capacity=128,
    by_row=True,
    graph="graph#1",
    replay=7,
    least=8,
    latest=96,
    steps=12,
    source=MarkedBy.PLAN,
    batch=MarkedBatch(2, 4, 16, 28),
    forecast=Forecast(Driver.TOKENS, 28, 31, 128, 528, True, ((26, 112), (28, 120)), 12),
)

_OVERRUN = "rows", "reaches", "reaches_total", "grown", "extent_nbytes"


def altered(**facts: Any) -> Finding:
    """The sample with other facts; ``buffer__name`` sets a field of a part.

    `rows`, `reaches`, `reaches_total`, `grown` and `extent_nbytes` set those of its detail, `rule` the detail of a
    broken rule (SG109); with another code the sample has no detail unless one is given.
    """
    changed: dict[str, Any] = {} if facts.get("code", FINDING.code) == FINDING.code else {"detail": None}
    overrun = {name: facts.pop(name) for name in _OVERRUN if name in facts}
    if overrun:
        changed["detail"] = replace(overrun_of(FINDING), **overrun)
    if "rule" in facts:
        facts.setdefault("code", "SG109")
        changed["detail"] = RuleDetail(facts.pop("rule"))
    for path, value in facts.items():
        part, _, inner = path.partition("__")
        if inner:
            changed[part] = replace(changed.get(part, getattr(FINDING, part)), **{inner: value})
        else:
            changed[part] = value
    return replace(FINDING, **changed)


def run_of(*findings: Finding, **facts: Any) -> RunFacts:
    """A run with these findings."""
    made = RunFacts(
        findings=findings,
        notes=(),
        suppressed=0,
        coverage=Coverage(100, 63, (), 0),
        graphs=(("graph#1", 5, 7),),
        faults={},
        guards_shrunk=0,
        guards_dropped=0,
        watches=(),
    )
    return replace(made, **facts)


def known(*fingerprints: str) -> Suppressions:
    """Rules that hide the findings with these fingerprints."""
    return Suppressions([Rule(f"known.txt:{number}", each) for number, each in enumerate(fingerprints, 1)])
