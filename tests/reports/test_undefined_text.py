"""What reports say of SG107, from its facts alone."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.finding_samples import BUFFER, altered, run_of

from shadowgraph.checks.undefined.facts import LoadFacts, Source, UndefinedDetail
from shadowgraph.checks.undefined.kind import UndefinedInfluenceKind
from shadowgraph.dumps.redaction import redacted
from shadowgraph.model.findings import ByteFacts, Culprit, Finding, Reader, Status, Successor
from shadowgraph.model.guards import Side
from shadowgraph.model.phases import Phase
from shadowgraph.render.text.text import Report

OUTPUT = Successor("runner.scale", 4096, 4, "float32", (), 5)
NODE = Culprit(Status.CONFIRMED, "triton", "take", 4, source="/srv/app/kernels.py:12")
NAMED = "draft.kv_indices (int32[3, 128], 1,536 bytes)"
READER = Reader("eager", "aten.sum.default", None, "/srv/app/model.py", 33)


def finding(source: Source, first: int, last: int, side: Side | None, **facts: Any) -> Finding:
    computed = facts.pop("computed", True)
    detail = UndefinedDetail(source, OUTPUT, 0, 3, 4, computed, ("2.5", "-2.5"), ("7", "8"), runs=24, **facts)
    return altered(
        code="SG107",
        phase=Phase.REPLAY,
        replay=7,
        buffer=BUFFER,
        bytes=ByteFacts(first, last, last - first + 1, ((first, last),), 1, side, 0, False),
        culprit=NODE if computed else Culprit(Status.UNKNOWN),
        candidates=(),
        reader=READER,
        window=None,
        detail=detail,
    )


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            finding(Source.GUARD, 1536, 1539, Side.AFTER),
            f"take (node 4) reads 4 bytes past the end of {NAMED}, and runner.scale depends on them,",
        ),
        (
            finding(Source.GUARD, -8, -5, Side.BEFORE),
            f"take (node 4) reads 8 bytes before the start of {NAMED}, and runner.scale depends on them,",
        ),
        (
            finding(Source.SLACK, 512, 1023, Side.SLACK),
            f"take (node 4) reads bytes [512, 1,023] of {NAMED}, which this graph did not capture, and runner.scale "
            "depends on them,",
        ),
        (
            finding(Source.PADDING, 0, 3, None),
            f"take (node 4) reads bytes [0, 3] of {NAMED}, which were declared padding that does not matter, and "
            "runner.scale depends on them,",
        ),
        (
            finding(Source.UNWRITTEN, 0, 3, None, computed=False),
            f"aten.sum.default reads bytes [0, 3] of {NAMED}, which nothing has written,",
        ),
    ],
)
def test_verdicts(made: Finding, said: str) -> None:
    assert made.message == f"SG107 undefined influence: {said} in replay 7 of graph#1"


def test_without_facts() -> None:
    bare = replace(finding(Source.GUARD, 1536, 1539, Side.AFTER), detail=None)
    assert "take (node 4) reads undefined bytes of draft.kv_indices" in bare.message


def test_a_report() -> None:
    writer = Reader("graph", "skip", 2, "/srv/app/model.py", 30)
    made = finding(Source.UNWRITTEN, 0, 3, None, writer=writer, load=LoadFacts((1, 0, 0), 14))
    text = str(Report(run_of(made)))
    for line in (
        "depends    runner.scale  float32[]  4 bytes at 0x1000, allocation 5",
        "           4 bytes of it differ, from byte 0 to 3",
        "values     7 with 2.5 in the undefined bytes, 8 with -2.5",
        "skipped    by skip (node 2), which may write them, at /srv/app/model.py:30",
        "loaded     by program (1, 0, 0) at /srv/app/kernels.py:14",
        "shown      by 24 runs from one state before the replay",
        "read by    eager code, aten.sum.default at /srv/app/model.py:33",
        "do         Mask the load, or write the bytes before they are read",
    ):
        assert f"  {line}" in text


def test_redaction_drops_values() -> None:
    detail = redacted(finding(Source.GUARD, 1536, 1539, Side.AFTER)).detail
    assert isinstance(detail, UndefinedDetail)
    assert (detail.values, detail.fills, detail.output.name) == (("", ""), ("2.5", "-2.5"), "runner.scale")


def test_its_cause_tells_findings_of_one_buffer_apart() -> None:
    kind = UndefinedInfluenceKind()
    causes = [kind.cause(finding(source, 0, 3, None)) for source in Source]
    assert causes == ["guard", "slack", "unwritten", "padding"]
