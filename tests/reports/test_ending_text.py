"""What a report says of a buffer that a graph still points into."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.finding_samples import ALLOCATED, FINDING, altered

from shadowgraph.checks.dangling.facts import DanglingDetail
from shadowgraph.checks.dangling.kind import DanglingPointerKind
from shadowgraph.dumps.redaction import redacted
from shadowgraph.model.findings import Successor
from shadowgraph.model.stacks import Frame

VICTIM = Successor("runner.victim", 0x7F0000001000, 256, "float32", (64,), 7, ALLOCATED)
UNTRACKED = Successor('cache["key 17"]', 0x7F0000001040, 4, "int32", ())


def rows(**facts: Any) -> list[tuple[str, str]]:
    ending = DanglingDetail(
        **{"access": "live-in", "writes": False, "fate": "freed", "first": 0, "last": 1023, **facts}
    )
    return list(DanglingPointerKind().rows(altered(code="SG104", bytes=None, detail=ending)))


def test_other_findings_have_no_such_rows() -> None:
    assert list(DanglingPointerKind().rows(FINDING)) == []


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, "live-in: graph#1 only reads it; 1,024 bytes from 0 on"),
        ({"writes": True}, "live-in: graph#1 reads it before it writes it; 1,024 bytes from 0 on"),
        (
            {"known": False, "writes": True},
            "graph#1 gives it to a kernel, which may read and write it; 1,024 bytes from 0 on",
        ),
        ({"access": "external-out", "first": 8, "last": 8}, "external-out: graph#1 only writes it; 1 byte from 8 on"),
    ],
)
def test_how_the_graph_uses_it(facts: dict[str, Any], said: str) -> None:
    assert rows(**facts) == [("captured", said), ("now", "no known buffer has these bytes")]


def test_who_came_after_it() -> None:
    victim = "runner.victim  float32[64]  256 bytes at 0x7f0000001000, allocation 7 at /srv/app/backend.py:41"
    untracked = 'cache["key 17"]  int32[]  4 bytes at 0x7f0000001040'
    assert rows(victims=(VICTIM, UNTRACKED), replaced_by=UNTRACKED)[1:] == [
        ("now", f"{victim} has these bytes"),
        ("now", f"{untracked} has these bytes"),
        ("replaced", f"by {untracked}"),
    ]
    assert rows(victims=(VICTIM,), writes=True)[1] == ("now", f"{victim} has these bytes, which the graph overwrites")
    told = rows(victims=(VICTIM,), writes=True, known=False)[1]
    assert told == ("now", f"{victim} has these bytes, which the graph may overwrite")


def test_which_line_freed_it() -> None:
    freed = (Frame("/srv/app/cache.py", 7, "evict"), Frame("/srv/app/serve.py", 70, "step"))
    assert rows(freed_by=freed)[1:3] == [
        ("freed", "/srv/app/cache.py:7 in evict"),
        ("", "/srv/app/serve.py:70 in step"),
    ]


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("self.noise = torch.randn(64)", "rebound"),
        ("noise: Tensor = torch.randn(64)", "rebound"),
        ("del self.noise", "freed"),
        ("self.other = torch.randn(64)", "freed"),
        ("if self.noise == other: drop()", "freed"),
        ("self.noise.resize_(0)", "freed"),
        ("", "freed"),
    ],
)
def test_a_line_that_rebinds_the_name(text: str, label: str) -> None:
    freed = (Frame("/srv/app/cache.py", 7, "step"), Frame("/srv/app/serve.py", 70, "run"))
    detail = DanglingDetail("live-in", False, "freed", 0, 7, freed_by=freed, freed_source=text)
    finding = altered(code="SG104", bytes=None, detail=detail)
    finding = msgspec.structs.replace(finding, buffer=msgspec.structs.replace(finding.buffer, name="sampler.noise"))
    told = [(row[0], row[1]) for row in DanglingPointerKind().rows(finding)][1:]
    shown = [("", f"    {text}")] if text else []
    assert told[: 2 + len(shown)] == [
        (label, "/srv/app/cache.py:7 in step"),
        *shown,
        ("", "/srv/app/serve.py:70 in run"),
    ]
    hidden = redacted(finding)
    assert isinstance(hidden.detail, DanglingDetail)
    assert hidden.detail.freed_source == ""


def test_a_rebound_key() -> None:
    freed = (Frame("/srv/app/cache.py", 7, "step"),)
    for key, label in (('cache["slot"]', "rebound"), ('cache["other"]', "freed")):
        detail = DanglingDetail("live-in", False, "freed", 0, 7, freed_by=freed, freed_source="cache['slot'] = None")
        finding = altered(code="SG104", bytes=None, detail=detail)
        finding = msgspec.structs.replace(finding, buffer=msgspec.structs.replace(finding.buffer, name=key))
        assert label in [row[0] for row in DanglingPointerKind().rows(finding)]


def test_redacted_it_says_no_keys() -> None:
    ending = DanglingDetail("live-in", False, "freed", 0, 7, (VICTIM, UNTRACKED), UNTRACKED)
    kept = redacted(altered(code="SG104", bytes=None, detail=ending))
    assert kept.detail is not None
    assert kept.detail.replaced_by is not None
    names = [*(victim.name for victim in kept.detail.victims), kept.detail.replaced_by.name]
    assert names == ["runner.victim", "cache[...]", "cache[...]"]
    assert "17" not in kept.message
