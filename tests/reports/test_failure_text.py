"""Exceptions of the program, in rows."""

from __future__ import annotations

import pytest

from shadowgraph.model.failures import Failure, LastWriter, PlanFacts
from shadowgraph.model.findings import Batch, Culprit, Status
from shadowgraph.render.text.failure_text import failure_head, failure_rows

COPY = Culprit(Status.CONFIRMED, "aten", "aten.copy_.default", 3, "/srv/app/model.py", 7)
PLAN = PlanFacts(
    "Wrapper", "decode", 99, 100, tuple(range(0, 640, 10)), 10, (40,), "attn.kv_indptr", "graph#1", 2, True
)


def rows(failure: Failure) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for label, said in failure_rows(failure):
        found.setdefault(label, []).append(said)
    return found


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (Failure("planner", "RuntimeError", "no"), "the program's planner refused: RuntimeError: no"),
        (Failure("device", "AcceleratorError", ""), "the program met a dead device: AcceleratorError"),
        (
            Failure("timeout", "", "not fed for 5 s", "sglang's watchdog"),
            "the program was not heard of in time: not fed for 5 s (caught by sglang's watchdog)",
        ),
    ],
)
def test_the_first_line(failure: Failure, said: str) -> None:
    assert failure_head(failure) == f"shadowgraph: {said}"


def test_a_long_plan_is_shown_around_what_is_broken() -> None:
    said = rows(Failure("planner", "E", "no", plan=PLAN))
    assert said["last plan"] == ["Wrapper (decode), 99 requests for replay 2 of graph#1, which failed"]
    (shown,) = said["from"]
    assert shown.startswith("100 index pointers of attn.kv_indptr: ... 180, 190, ")
    assert shown.endswith(" ...")
    assert ", *300, " in shown
    assert said["broken"] == ["[40] = 300 after [39] = 290"]
    assert "found" not in said


def test_writers_batch_and_replay() -> None:
    writers = (LastWriter(39, COPY, "graph#2", 5), LastWriter(40, COPY))
    plan = PlanFacts("Wrapper", "mla", 1, 2, (5, 3), 0, (1,), writers=writers, finding=4, found="SG102 ...")
    failure = Failure(
        "device", "E", "no", plan=plan, graph="graph#2", replay=5, seconds=1.25, batch=Batch(2, 4, (7, 9))
    )
    said = rows(failure)
    assert said["from"] == ["2 index pointers: 5, *3"]
    first, second = said["written by"]
    assert first.startswith("[39]: aten.copy_.default, node 3")
    assert first.endswith(" in replay 5 of graph#2")
    assert " in replay " not in second
    assert said["found"] == ["finding #4 is about the same memory: SG102 ..."]
    assert said["batch"] == ["2 requests, padded to 4; 7, 9 tokens"]
    assert said["replayed"] == ["last, replay 5 of graph#2, 1.2 s before"]
