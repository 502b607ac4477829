"""The founding cases in real, unmodified sglang code."""

from __future__ import annotations

import pytest

from shadowgraph.demos.case import Case
from shadowgraph.demos.device import HostDevice
from shadowgraph.demos.founding import CASES
from shadowgraph.demos.runner import run_case
from shadowgraph.integrations.sglang_host import SGLANG_VERSION, sglang_version

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(sglang_version() != SGLANG_VERSION, reason=f"needs sglang {SGLANG_VERSION}"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case(case: Case) -> None:
    outcome = run_case(case, HostDevice())
    assert outcome.verdict == "passed", outcome.complaints
    if case.control:
        return
    (found,) = outcome.findings
    assert found.culprit.file is not None
    assert "/sglang/srt/" in found.culprit.file, "launched at a line of sglang"
    assert found.culprit.source is not None
    assert "/sglang/srt/" in found.culprit.source, "a kernel of sglang"
    assert found.buffer.allocated[0].function == "init_cuda_graph_state"
    assert "/sglang/srt/" in found.buffer.allocated[0].file
    assert found.bytes is not None
    assert (found.bytes.distance, found.bytes.truncated) == (0, False)


def test_the_numbers_of_the_reports_are_all_there() -> None:
    past = {case.id: case.expected[0].past_end for case in CASES if case.expected}
    assert past == {
        "S-eagle-48": 48,
        "S-eagle-864": 864,
        "S-eagle-4448": 4448,
        "S-aiter-4": 4,
        "S-aiter-128": 128,
        "S-aiter-176": 176,
    }
    assert [case.id for case in CASES if case.control] == ["S-eagle-0"]
