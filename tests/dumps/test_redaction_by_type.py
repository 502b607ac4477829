"""Redaction goes by the types of fields: what has no mark is dropped, also in records to come."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
import pytest
from msgspec import inspect
from support.finding_samples import FINDING, run_of

from shadowgraph.checks.kinds import kinds
from shadowgraph.dumps.redaction import redacted
from shadowgraph.model.failures import Failure, PlanFacts
from shadowgraph.model.findings import Batch, Finding
from shadowgraph.model.launch_arguments import AssertedIndex, LastLaunch, LaunchArgument
from shadowgraph.model.redaction import FaultText, Kept, KernelName, OwnerPath, RuleText
from shadowgraph.model.run_facts import RunFacts


class Colour(StrEnum):
    RED = "red"


class Inner(msgspec.Struct, frozen=True):
    size: Kept[int]
    text: str = "none"


class Secrets(msgspec.Struct, frozen=True):
    values: tuple[int, ...]


class Record(msgspec.Struct, frozen=True):
    """One field of each type that there is."""

    number: int
    ratio: float
    text: str
    data: bytes
    many: tuple[str, ...]
    pairs: tuple[tuple[OwnerPath, int], ...]
    named: dict[str, str]
    size: Kept[int]
    shape: Kept[tuple[int, ...]]
    sure: bool
    colour: Colour
    inner: Inner
    rest: tuple[Inner, ...]
    owner: OwnerPath
    kernel: KernelName | None
    rule: RuleText
    faults: dict[FaultText, Kept[int]]
    secrets: Secrets | None = None
    more: tuple[Secrets, ...] = ()
    later: str = "unknown"


def record(**facts: Any) -> Record:
    secret = "a prompt"
    return Record(
        7, 0.5, secret, b"\1", (secret,), (("cache['a prompt'].x", 9),), {secret: secret}, 64, (2, 3), True, Colour.RED,
        Inner(1, secret), (Inner(2, secret),), "cache['a prompt'].x", "memset 0x1234", "even: [3] = 15043",
        {"check of x: ValueError: 15043": 2, "check of x: ValueError: 7": 1}, **facts,
    )  # fmt: skip


def test_what_has_no_mark_is_dropped() -> None:
    kept = redacted(record(secrets=Secrets((1, 2)), more=(Secrets((3,)),), later="a prompt"))
    assert kept == Record(
        0, 0.0, "", b"", (), (("cache[...].x", 0),), {}, 64, (2, 3), True, Colour.RED, Inner(1), (Inner(2),),
        "cache[...].x", "memset", "even", {"check of x: ValueError": 3},
    )  # fmt: skip


def test_a_plan_a_batch_and_last_launches() -> None:
    plan = PlanFacts("W", "decode", 2, 3, (0, 5, 9), buffer="cache['a prompt']", found="15043 of a prompt")
    failure = redacted(Failure("planner", "RuntimeError", "a prompt", plan=plan, batch=Batch(2, 4, (5, 4), ("id",))))
    assert (failure.said, failure.batch) == ("", Batch(2, 4))
    assert failure.plan is not None
    assert (failure.plan.indptr, failure.plan.buffer, failure.plan.found) == ((), "cache[...]", "")
    argument = LaunchArgument("index", "cache['a prompt']", "int32", (1,), b"\1\2\3\4")
    launch = LastLaunch("k", "f.py", 3, (argument,), AssertedIndex("0 <= i", 0, 2, 5, 5))
    assert redacted(launch) == LastLaunch("k", "f.py", 3, ())


def test_a_run_keeps_its_geometry() -> None:
    facts = redacted(run_of(FINDING, last_values=(("x", "int32", b"\1"),), limits=("a limit",)))
    (finding,) = facts.findings
    assert (finding.buffer, finding.bytes, finding.culprit.name) == (FINDING.buffer, FINDING.bytes, "fill_indices")
    assert (finding.window, facts.last_values, facts.limits) == (None, (), ("a limit",))
    assert finding.message == FINDING.message


@pytest.mark.parametrize("kind", [Finding, RunFacts, Failure, *(k.detail for k in kinds() if k.detail is not None)])
def test_a_required_field_that_is_dropped_has_an_empty_value_of_its_type(kind: type[msgspec.Struct]) -> None:
    """So that a redacted record is one of its type: it is written to a dump and read back."""
    known = inspect.type_info(kind)
    assert isinstance(known, inspect.StructType)
    for field in known.fields:
        if field.required and isinstance(field.type, inspect.StructType):
            assert any(isinstance(each.type, inspect.Metadata) for each in field.type.fields), field.name
